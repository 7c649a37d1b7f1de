package nat

import (
	"net/netip"
	"slices"
)

const (
	// maxWitnesses bounds how many members are remembered, and maxTold how many addresses of each: a member that
	// lies has so many denied, and makes nothing forgotten that others tell.
	maxWitnesses = 64
	maxTold      = 8
)

// Witnesses remembers at which public addresses members have seen this host. What one of them says stays beside
// what others say. The zero Witnesses has heard nobody.
type Witnesses struct {
	all []witness // who spoke last is last
}

type witness struct {
	member string
	told   []netip.Addr // what was told last is last
}

// Hear takes note of where a member has seen this host.
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

// Newest returns list with at as its last address, and at most maxTold, the last ones.
func Newest(list []netip.Addr, at netip.Addr) []netip.Addr {
	list = slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return a == at })
	list = append(list, at)
	return list[max(0, len(list)-maxTold):]
}

// Told lists what was told.
func (w *Witnesses) Told() (all []netip.Addr) {
	for _, who := range w.all {
		all = append(all, who.told...)
	}
	return all
}

// Sure reports whether an IPv4 address is certain: two members have told it, or one that is trusted.
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
