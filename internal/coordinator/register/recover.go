package register

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// Recover returns entries for certificates that the authority has signed and the register lacks, because these are
// valid nevertheless. lost reports whether the register had forgotten a member that it must have known.
func (r *Register) Recover(issued []collective.IssuedCertificate, now time.Time) (out []Entry, lost bool) {
	last := map[string]collective.IssuedCertificate{}
	for _, c := range issued {
		if have, there := last[c.Name]; collective.CheckName(c.Name) == nil && (!there || compareIssued(c, have) > 0) {
			last[c.Name] = c
		}
	}
	for _, name := range slices.Sorted(maps.Keys(last)) {
		c := last[name]
		old := r.Member(name)
		if now.After(c.NotAfter.Add(Grace)) || old != nil && old.Key == c.Key && !old.Until.Before(c.NotAfter) {
			continue
		}
		if old != nil && old.Key != c.Key && (old.Expelled != nil || endsMembership(c)) {
			continue // an expelled member's name and key stay refused, and a former holder of the name does not get it back
		}
		m := &Member{Name: name, Joined: c.NotBefore.UTC()}
		if old != nil {
			*m = *old
		}
		m.Key, m.Until = c.Key, c.NotAfter.UTC()
		if c.Subnet.IsValid() { // a certificate made by hand has none, and an earlier one may still be valid
			m.Subnet = c.Subnet
		}
		if old == nil && endsMembership(c) {
			m.Expelled = &Expulsion{At: now.UTC(), Why: whyRevoked, Done: true}
			if c.Why == collective.CessationOfOperation {
				m.Expelled.Why, m.Expelled.Left = whyLeft, true
			}
		}
		out = append(out, Entry{Member: m})
		// Certificates made by hand are not in the register. They differ from ours in the length of their validity.
		off := c.NotAfter.Sub(c.NotBefore) - collective.MemberValidity
		lost = lost || old == nil && off >= 0 && off < time.Hour
	}
	return out, lost
}

// compareIssued compares the age of two certificates of one member. If both begin in the same second, the one
// that ends later is younger.
func compareIssued(a, b collective.IssuedCertificate) int {
	return cmp.Or(a.NotBefore.Compare(b.NotBefore), a.NotAfter.Compare(b.NotAfter))
}

// whyRevoked is the reason of an expulsion that was found on the authority's revocation list.
const whyRevoked = "its certificates were revoked (dcol ca revoke)"

// endsMembership reports whether a certificate was revoked for a reason that concerns the member's next one, too.
// A superseded certificate is followed by another.
func endsMembership(c collective.IssuedCertificate) bool {
	return c.Revoked && c.Why != collective.Superseded
}

// Withdraw expels members whose unexpired certificates the operator has all revoked by hand.
func (r *Register) Withdraw(issued []collective.IssuedCertificate, now time.Time) (out []Entry) {
	over := map[string]bool{}
	for _, c := range issued {
		if m := r.Member(c.Name); now.After(c.NotAfter) || m != nil && m.Key != c.Key { // a former holder of the name had it
			continue
		}
		if is, seen := over[c.Name]; !seen || is {
			over[c.Name] = endsMembership(c)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(over)) {
		if m := r.Member(name); over[name] && m.IsMember() {
			out = append(out, Entry{Member: m.ended(Expulsion{At: now.UTC(), Why: whyRevoked})})
		}
	}
	return out
}

// VoidInvitations makes all open invitations void, for a register that may have forgotten which were used.
func (r *Register) VoidInvitations() (out []Entry) {
	for _, hash := range r.hashes() {
		if i := *r.invitations[hash]; i.Member == "" && !i.Void {
			i.Void = true
			out = append(out, Entry{Invitation: &i})
		}
	}
	return out
}
