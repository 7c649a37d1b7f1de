package lease

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// ExpiryGrace ensures that a lease expires here only after it has expired in the kernel, whose clock ticks in jiffies and
// whose element was written later.
const ExpiryGrace = time.Second

// Ending lists the changes that ended leases require.
type Ending struct {
	Keys    []netip.Addr // addresses whose in-band keys have changed; to be written first, because nothing passes without a key
	Entries []attribution.Entry
	Change  rules.Change
	Tunnels []netip.Addr // addresses in tunnels whose connections end
}

// Changes reports whether the kernel's table must change.
func (e *Ending) Changes() bool {
	return len(e.Change.Admit)+len(e.Change.Revoke)+len(e.Change.Remove) > 0
}

// Expire ends expired leases, which the kernel has already removed.
func (l *Leases) Expire(now time.Time) (e Ending) {
	until := now.Add(-ExpiryGrace)
	l.endAdmissions(&e, now, func(a *admission) bool { return !a.expires.After(until) })
	l.endTunnels(&e, now, l.tunnelsWhere(func(t *tunnelAddress) bool { return !t.expires.After(until) }))
	l.endConversions(&e, now, func(c *conversion) bool { return !c.expires.After(until) })
	l.ports.expire(now)
	for m := l.mappings.expire(until); m != nil; m = l.mappings.expire(until) {
		e.Entries = append(e.Entries, l.mappingEntry(attribution.MappingExpired, now, m))
	}
	return e
}

// Expel ends all leases of a member, and returns the number of its mappings.
func (l *Leases) Expel(m *Member, now time.Time) (e Ending, mappings int) {
	m.Expelled = true
	l.ports.expel(m)
	l.endAdmissions(&e, now, func(a *admission) bool { return a.Member == m })
	l.endTunnels(&e, now, l.tunnelsWhere(func(t *tunnelAddress) bool { return t.member == m }))
	l.endConversions(&e, now, func(c *conversion) bool { return c.member == m })
	l.endMappings(&e, now, func(x *Mapping) bool { return x.Member == m.ID })
	return e, len(e.Change.Remove)
}

// EndForbidden ends the mappings that would no longer be granted. The policy may forbid their servers, after a restart with
// another policy, or because the host or its network now has the server's address. Or their ports are now for authenticated
// SYNs, which the agent that granted them did not require. Mappings that are forbidden only until the waypoint knows its
// external address stay, because an agent that knew the address has allowed them. Open connections continue.
//
// EndForbidden also ends the leases that lead to any server, of members whose servers are limited, and the ports of members
// to whom the converter may no longer connect.
func (l *Leases) EndForbidden(policy *egress.Policy, servers func(member string) egress.Narrowing, now time.Time) (e Ending) {
	limited := func(m *Member) bool { return servers(m.Name).Limits() }
	l.endAdmissions(&e, now, func(a *admission) bool { return limited(a.Member) })
	l.endTunnels(&e, now, l.tunnelsWhere(func(t *tunnelAddress) bool { return limited(t.member) }))
	l.endConversions(&e, now, func(c *conversion) bool { return limited(c.member) })
	l.ports.endWays(func(_ uint16, _ *heldPort, w Way) bool {
		err := policy.Check(w.At)
		return err != nil && !egress.ForNow(err)
	})
	l.endMappings(&e, now, func(m *Mapping) bool {
		err := policy.Check(m.Server)
		return err != nil && !egress.ForNow(err) || l.guards(m.Server) && m.Key.Port == m.Server.Port() ||
			servers(l.members.of(m.Member).Name).Check(m.Server) != nil
	})
	return e
}

// EndTunnels ends the leases of addresses in tunnels. It ignores addresses that are not assigned.
func (l *Leases) EndTunnels(addrs []netip.Addr, now time.Time) (e Ending) {
	l.endTunnels(&e, now, addrs)
	return e
}

// SessionUp records a member's session. by is nil if the member has signed nothing.
func (l *Leases) SessionUp(r Request, by *attribution.Session) {
	if m := l.members.get(r.Name, r.Serial); m != nil {
		l.sessions.add(r.Session, session{Caller{m, r.Client}, by})
	}
}

// SessionDown records the end of a session. Its in-band admissions end; with the last session of a caller, all of the caller's
// do. Tunnels stay until their lease expires; a client that is still there requests them again in its next session.
func (l *Leases) SessionDown(id uint64, now time.Time) (e Ending) {
	x, ok := l.sessions.remove(id)
	if !ok {
		return e
	}
	for _, t := range l.tunnels {
		t.left = t.left || t.session == id
	}
	l.endSession(&e, id, x.Caller, now)
	return e
}

// SessionMoved records the new address of a session, and returns the caller before. ok is false if the session is not known.
func (l *Leases) SessionMoved(id uint64, to netip.Addr, now time.Time) (e Ending, before Caller, ok bool) {
	x, ok := l.sessions.remove(id)
	if !ok {
		return e, before, false
	}
	before = x.Caller
	x.Addr = to
	l.sessions.add(id, x)
	l.endSession(&e, id, before, now)
	return e, before, true
}

// Calls reports whether a caller has a session.
func (l *Leases) Calls(c Caller) bool { return l.sessions.of[c] > 0 }

// endSession ends the admissions of a session that no longer belongs to its caller.
func (l *Leases) endSession(e *Ending, id uint64, c Caller, now time.Time) {
	last := !l.Calls(c)
	l.endAdmissions(e, now, func(a *admission) bool { return a.Caller == c && (last || a.session == id) })
}

// endAdmissions ends the admissions for which which returns true. A caller without any is no longer admitted.
func (l *Leases) endAdmissions(e *Ending, now time.Time, which func(*admission) bool) {
	for c, by := range l.admissions.take(which) {
		if !slices.Contains(e.Keys, c.Addr) {
			e.Keys = append(e.Keys, c.Addr)
		}
		if !l.admissions.until(c).IsZero() {
			e.Change.Admit = append(e.Change.Admit, l.admissions.rule(c, now))
			continue
		}
		e.Change.Revoke = append(e.Change.Revoke, rules.Admission{Addr: c.Addr, Kind: wire.InBand, Member: c.Member.ID})
		e.Entries = append(e.Entries, l.admissionEntry(attribution.AdmissionEnded, now, c, by))
	}
}

func (l *Leases) endTunnels(e *Ending, now time.Time, addrs []netip.Addr) {
	for _, addr := range addrs {
		t := l.tunnels[addr]
		if t == nil {
			continue
		}
		delete(l.tunnels, addr)
		e.Tunnels = append(e.Tunnels, addr)
		e.Change.Revoke = append(e.Change.Revoke, t.rule(addr, now))
		e.Entries = append(e.Entries, t.entry(attribution.AdmissionEnded, now, addr, 0))
	}
}

func (l *Leases) tunnelsWhere(is func(*tunnelAddress) bool) []netip.Addr {
	var addrs []netip.Addr
	for addr, t := range l.tunnels {
		if is(t) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

func (l *Leases) endMappings(e *Ending, now time.Time, which func(*Mapping) bool) {
	for _, m := range l.mappings.byKey {
		if which(m) {
			e.Change.Remove = append(e.Change.Remove, m.rule(now))
			e.Entries = append(e.Entries, l.mappingEntry(attribution.MappingRemoved, now, m))
			l.mappings.remove(m)
		}
	}
}
