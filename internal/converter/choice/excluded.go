package choice

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/converter/known"
)

// Addresses are excluded because a name that is excluded leads to them. The exclusion ends with its time, or when the user
// no longer excludes the name.

const (
	excludedMost = 16 << 10
	// namesMost bounds the names for one address.
	namesMost = 16
)

// excluded holds the excluded addresses, with the names that lead there, and until when.
type excluded struct {
	*known.Map[netip.Addr, map[string]time.Time]
}

func newExcluded() excluded {
	return excluded{known.NewMap[netip.Addr, map[string]time.Time](excludedMost)}
}

// Exclude makes connections to an address go directly until a time, because of a name.
func (c *Choice) Exclude(addr netip.Addr, name string, until, now time.Time) {
	addr = addr.Unmap()
	names, _ := c.excluded.Get(addr, now)
	if names == nil {
		names = make(map[string]time.Time)
	}
	maps.DeleteFunc(names, func(_ string, until time.Time) bool { return !now.Before(until) })
	if _, has := names[name]; !has && len(names) >= namesMost {
		name = "" // of no name that is excluded or not: only time ends it
	}
	names[name] = maxTime(names[name], until)
	c.excluded.keep(addr, names)
}

// keep sets the names of an address. It forgets an address without names.
func (x excluded) keep(addr netip.Addr, names map[string]time.Time) {
	var last time.Time
	for _, until := range names {
		last = maxTime(last, until)
	}
	if len(names) == 0 {
		x.Forget(addr)
		return
	}
	x.Set(addr, names, last)
}

// endExclusions forgets names that the policy does not exclude any more.
func (c *Choice) endExclusions() {
	changed := make(map[netip.Addr]map[string]time.Time)
	for addr, names := range c.excluded.All(time.Time{}) {
		for name := range names {
			if name != "" && !c.policy.ExcludesName(name) {
				delete(names, name)
				changed[addr] = names
			}
		}
	}
	for addr, names := range changed {
		c.excluded.keep(addr, names)
	}
}

// Excluded is an address that is excluded by a name.
type Excluded struct {
	Addr  netip.Addr `json:"addr"`
	Name  string     `json:"name"`
	Until time.Time  `json:"until"`
}

// Excluded returns addresses that are excluded by names, at most the given number, and how many there are.
func (c *Choice) Excluded(most int, now time.Time) (list []Excluded, all int) {
	for addr, names := range c.excluded.All(now) {
		if all++; all > most {
			continue
		}
		e := Excluded{Addr: addr}
		for name, until := range names {
			if until.After(e.Until) || until.Equal(e.Until) && name < e.Name {
				e.Name, e.Until = name, until
			}
		}
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b Excluded) int { return cmp.Or(cmp.Compare(a.Name, b.Name), a.Addr.Compare(b.Addr)) })
	return list, all
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
