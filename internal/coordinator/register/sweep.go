package register

import (
	"net/netip"
	"time"
)

// Grace is the time for which a member may still renew after its certificate has ended. Then its name and subnet are free.
const Grace = 90 * 24 * time.Hour

// keepInvitations is the time for which an expired invitation is kept, so that a late host is told that it has expired.
const keepInvitations = 30 * 24 * time.Hour

// Sweep forgets memberships and invitations that ended long ago. Of expelled members it keeps the name and the
// key, and frees the subnet. The name of a forgotten member belongs to the last expelled one again, if there is one.
func (r *Register) Sweep(now time.Time) (out []Entry) {
	var e Entry
	for _, hash := range r.hashes() {
		if now.After(r.invitations[hash].Expires.Add(keepInvitations)) {
			e.Drop = append(e.Drop, hash)
		}
	}
	for _, m := range r.Members() {
		switch kept := m.swept(now); kept {
		case m:
		case nil:
			e.Forget = append(e.Forget, m.Name)
		default:
			out = append(out, Entry{Member: kept})
		}
	}
	if !e.empty() {
		out = append(out, e)
	}
	return out
}

// swept returns what is kept under the name of m: m itself, another Member, or nil.
func (m *Member) swept(now time.Time) *Member {
	switch last := len(m.Former) - 1; {
	case !now.After(m.Until.Add(Grace)):
		return m
	case m.IsMember() || m.Expelled.Left && m.Expelled.Done:
		if last < 0 {
			return nil
		}
		return m.former(last)
	case m.Subnet.IsValid() && m.Expelled.Done:
		next := *m
		next.Subnet, next.LANs = netip.Prefix{}, nil
		return &next
	}
	return m
}
