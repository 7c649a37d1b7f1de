package report

import (
	"cmp"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/trace/present"
)

// Side counts the places of a change as several vantage points see them. It counts only destinations that were traced
// from two or more of them, by traces whose later quotes show whole packets.
type Side struct {
	What string `json:"what"`
	// Destination counts the destinations towards which all vantage points see the change.
	Destination int `json:"destinations_seen_by_all"`
	// Some counts destinations towards which only some vantage points see the change.
	Some int `json:"destinations_seen_by_some"`
	// From has the vantage points that see it.
	From []SideFrom `json:"from"`
}

// SideFrom counts what one vantage point sees of a change.
type SideFrom struct {
	Name string `json:"name"`
	Seen int    `json:"seen"` // destinations
	Of   int    `json:"of"`
	// Alone counts destinations towards which no other vantage point sees it.
	Alone int `json:"alone"`
}

// AtSource reports whether the change belongs to the vantage point's side: it sees the change towards nearly all
// destinations, and mostly alone.
func (f SideFrom) AtSource() bool { return f.Of > 1 && 10*f.Seen >= 9*f.Of && 2*f.Alone > f.Seen }

// sighting has the kinds of changes that a trace from one vantage point shows.
type sighting struct {
	from  string
	kinds []string // of changes
}

// watched reports whether a trace would show a change anywhere before its last part: a router behind the middle of the
// way quotes whole packets.
func watched(t *present.Trace, length int) bool {
	return slices.ContainsFunc(t.Hops, func(h present.Hop) bool {
		return len(h.Quotes) > 0 && h.Quotes[0].Full && 2*h.Distance >= length
	})
}

// sides compares what the vantage points see.
func sides(seen map[string][]sighting) []Side {
	all := map[string]*Side{}
	from := map[[2]string]*SideFrom{}
	for _, list := range seen {
		if len(list) < 2 {
			continue
		}
		count := map[string]int{}
		for _, s := range list {
			for _, k := range s.kinds {
				count[k]++
			}
		}
		for what, n := range count {
			side := all[what]
			if side == nil {
				side = &Side{What: what}
				all[what] = side
			}
			if n == len(list) {
				side.Destination++
			} else {
				side.Some++
			}
			for _, s := range list {
				if !slices.Contains(s.kinds, what) {
					continue
				}
				key := [2]string{what, s.from}
				f := from[key]
				if f == nil {
					f = &SideFrom{Name: s.from}
					from[key] = f
				}
				f.Seen++
				if n == 1 {
					f.Alone++
				}
			}
		}
	}
	traced := map[string]int{}
	for _, list := range seen {
		if len(list) > 1 {
			for _, s := range list {
				traced[s.from]++
			}
		}
	}
	var result []Side
	for key, f := range from {
		f.Of = traced[f.Name]
		all[key[0]].From = append(all[key[0]].From, *f)
	}
	for _, s := range all {
		slices.SortFunc(s.From, func(a, b SideFrom) int { return cmp.Or(b.Seen-a.Seen, strings.Compare(a.Name, b.Name)) })
		result = append(result, *s)
	}
	slices.SortFunc(result, func(a, b Side) int {
		return cmp.Or(b.Destination+b.Some-a.Destination-a.Some, strings.Compare(a.What, b.What))
	})
	return result
}
