package coordinator

import (
	"maps"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// recover makes the register agree with what the authority has signed, which counts whatever the register
// says. lost says that it had forgotten a member that it must have known.
func (r *register) recover(issued []collective.IssuedCertificate, now time.Time) (out []entry, lost bool) {
	last := map[string]collective.IssuedCertificate{}
	for _, c := range issued {
		if have, there := last[c.Name]; collective.CheckName(c.Name) == nil && (!there || c.NotBefore.After(have.NotBefore)) {
			last[c.Name] = c
		}
	}
	for _, name := range slices.Sorted(maps.Keys(last)) {
		c := last[name]
		old := r.members[name]
		if now.After(c.NotAfter.Add(grace)) || old != nil && old.Key == publicKey(c.Key) && !old.Until.Before(c.NotAfter) {
			continue
		}
		if old != nil && old.Expelled != nil && old.Key != publicKey(c.Key) {
			continue // its name and its key stay refused
		}
		m := &member{Name: name, Joined: c.NotBefore.UTC()}
		if old != nil {
			*m = *old
		}
		m.Key, m.Until = publicKey(c.Key), c.NotAfter.UTC()
		if c.Subnet.IsValid() { // one made by hand has none, and another before it may count
			m.Subnet = c.Subnet
		}
		if old == nil && endsMembership(c) {
			m.Expelled = &expelled{At: now.UTC(), Why: whyRevoked, Done: true}
		}
		out = append(out, entry{Member: m})
		// Of certificates made by hand nobody tells the register. They do not last just as long as ours.
		off := c.NotAfter.Sub(c.NotBefore) - collective.MemberValidity
		lost = lost || old == nil && off >= 0 && off < time.Hour
	}
	return out, lost
}

// whyRevoked is all that is known of an expulsion that came from the authority's list.
const whyRevoked = "its certificates were revoked (dcol ca revoke)"

// endsMembership says whether a certificate was revoked for a reason that its member's next one would have,
// too. One that was superseded is followed by another.
func endsMembership(c collective.IssuedCertificate) bool {
	return c.Revoked && c.Why != collective.Superseded
}

// withdraw expels the members of whose certificates none is good any more, though not all have ended: the
// operator has revoked them by hand.
func (r *register) withdraw(issued []collective.IssuedCertificate, now time.Time) (out []entry) {
	over := map[string]bool{}
	for _, c := range issued {
		if now.After(c.NotAfter) {
			continue
		}
		if is, seen := over[c.Name]; !seen || is {
			over[c.Name] = endsMembership(c)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(over)) {
		if m := r.members[name]; over[name] && m != nil && m.Expelled == nil {
			next := *m
			next.Expelled = &expelled{At: now.UTC(), Why: whyRevoked}
			out = append(out, entry{Member: &next})
		}
	}
	return out
}

// voidTokens is for a register that may have forgotten which were used.
func (r *register) voidTokens() (out []entry) {
	for _, hash := range slices.Sorted(maps.Keys(r.tokens)) {
		if t := *r.tokens[hash]; t.Member == "" && !t.Void {
			t.Void = true
			out = append(out, entry{Token: &t})
		}
	}
	return out
}
