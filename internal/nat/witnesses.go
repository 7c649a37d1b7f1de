package nat

import (
	"net/netip"
	"slices"
)

const (
	// maxWitnesses bounds the number of members remembered, and maxTold the addresses of each. So a
	// lying member can only cause a few addresses to be denied, and cannot displace the reports of
	// others.
	maxWitnesses = 64
	maxTold      = 8
)

// Witnesses records the public addresses at which members have seen this host, separately for each
// member. The zero value is empty.
type Witnesses struct {
	all []witness // the most recent one last
}

type witness struct {
	member string
	told   []netip.Addr // the most recent one last
}

// Hear records the address at which a member has seen this host.
func (w *Witnesses) Hear(member string, at netip.Addr) {
	at = at.Unmap().WithZone("")
	if !isPublic(at) {
		return
	}
	who := witness{member: member}
	if i := slices.IndexFunc(w.all, func(w witness) bool { return w.member == member }); i >= 0 {
		who = w.all[i]
		w.all = slices.Delete(w.all, i, i+1)
	}
	who.told = Newest(who.told, at)
	w.all = append(w.all, who)
	w.all = w.all[max(0, len(w.all)-maxWitnesses):]
}

// Newest returns the last maxTold addresses of list with at appended or moved to the end.
func Newest(list []netip.Addr, at netip.Addr) []netip.Addr {
	list = slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return a == at })
	list = append(list, at)
	return list[max(0, len(list)-maxTold):]
}

// Told returns all recorded addresses.
func (w *Witnesses) Told() (all []netip.Addr) {
	for _, who := range w.all {
		all = append(all, who.told...)
	}
	return all
}

// Sure reports whether an IPv4 address is certain: two members have reported it, or a trusted one
// has.
func (w *Witnesses) Sure(trusted func(member string) bool) bool {
	by := make(map[netip.Addr]int)
	for _, who := range w.all {
		for _, a := range who.told {
			if !a.Is4() {
				continue
			}
			if by[a]++; by[a] > 1 || trusted(who.member) {
				return true
			}
		}
	}
	return false
}
