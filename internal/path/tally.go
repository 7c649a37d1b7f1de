package path

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Carried counts the payload that subflows over one kind of path carried since the Manager began: what they were sampled
// to have carried, and the rest when their last counters are known (SubflowCounted). Linux counts SYN and FIN for a byte
// each.
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

// carrierOf returns the path of a subflow, if it is known.
func carrierOf(s *subflow) (by carrier, known bool) {
	switch {
	case s.direct:
		return carrier{kind: directWord}, true
	case s.detour != nil:
		return carrier{s.detour.Kind.String(), s.detour.Waypoint}, true
	}
	return by, false
}

// add counts what was carried over a path.
func (y *tally) add(by carrier, received, sent uint64) {
	if received == 0 && sent == 0 {
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
