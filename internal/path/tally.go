package path

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Carried counts the payload that subflows over one kind of path carried since the Manager began, as far as it was
// sampled: what a subflow carried after its last sample is missing.
type Carried struct {
	Kind     string // "direct" or the name of a Kind
	Waypoint string // empty for the direct path
	Received uint64
	Sent     uint64 // acknowledged by the peer
}

// Lifetimes is a histogram of how long connections lived that have ended.
type Lifetimes struct {
	// Counts has the number of connections for each of LifetimeBounds that lived no longer than that and longer than the
	// bound before, and at last those that lived longer.
	Counts []uint64
	// Sum is their time together.
	Sum time.Duration
}

// LifetimeBounds are the bounds of Lifetimes.
var LifetimeBounds = []time.Duration{
	100 * time.Millisecond, time.Second, 10 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 24 * time.Hour,
}

// tally counts what the connections did.
type tally struct {
	carried   map[carrier]*Carried
	lifetimes Lifetimes
}

type carrier struct{ kind, waypoint string }

func newTally() tally {
	return tally{carried: make(map[carrier]*Carried), lifetimes: Lifetimes{Counts: make([]uint64, len(LifetimeBounds)+1)}}
}

// add counts what a subflow carried between two samples.
func (y *tally) add(s *subflow, received, sent uint64) {
	var by carrier
	switch {
	case received == 0 && sent == 0:
		return
	case s.direct:
		by.kind = directWord
	case s.detour != nil:
		by = carrier{s.detour.Kind.String(), s.detour.Waypoint}
	default:
		return
	}
	c := y.carried[by]
	if c == nil {
		c = &Carried{Kind: by.kind, Waypoint: by.waypoint}
		y.carried[by] = c
	}
	c.Received += received
	c.Sent += sent
}

// ended counts a connection that has ended.
func (y *tally) ended(lived time.Duration) {
	i, _ := slices.BinarySearch(LifetimeBounds, lived)
	y.lifetimes.Counts[i]++
	y.lifetimes.Sum += max(lived, 0)
}

// list returns what was carried, in the order of the paths' names.
func (y *tally) list() (all []Carried) {
	for _, c := range slices.SortedFunc(maps.Values(y.carried), func(a, b *Carried) int {
		return cmp.Or(cmp.Compare(a.Waypoint, b.Waypoint), cmp.Compare(a.Kind, b.Kind))
	}) {
		all = append(all, *c)
	}
	return all
}
