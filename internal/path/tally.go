package path

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Carried counts the payload carried over one kind of path since the Manager began: what samples showed, and the rest
// from the last counters of ended subflows (SubflowCounted). Linux counts SYN and FIN as one byte each.
type Carried struct {
	Kind     string // "direct" or the name of a Kind
	Waypoint string // empty for the direct path
	Received uint64
	Sent     uint64 // acknowledged by the peer
}

// Lifetimes is a histogram of the lifetimes of ended connections.
type Lifetimes struct {
	// Counts has one element for each of LifetimeBounds, and a last one. An element counts the lifetimes up to its
	// bound and above the bound before. The last element counts those above all bounds.
	Counts []uint64
	// Sum is the sum of all lifetimes.
	Sum time.Duration
}

// LifetimeBounds lists the upper bounds of the classes of Lifetimes.
var LifetimeBounds = []time.Duration{
	100 * time.Millisecond, time.Second, 10 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 24 * time.Hour,
}

// tally counts what all connections carried, and how long they lived.
type tally struct {
	carried   map[carrier]*Carried
	lifetimes Lifetimes
}

type carrier struct{ kind, waypoint string }

func newTally() tally {
	return tally{carried: make(map[carrier]*Carried), lifetimes: Lifetimes{Counts: make([]uint64, len(LifetimeBounds)+1)}}
}

// carrierOf returns the kind and the waypoint of a subflow's path. known is false if the path was not recognised.
func carrierOf(s *subflow) (by carrier, known bool) {
	switch {
	case s.direct:
		return carrier{kind: directWord}, true
	case s.detour != nil:
		return carrier{s.detour.Kind.String(), s.detour.Waypoint}, true
	}
	return by, false
}

// add counts payload carried over a path.
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

// ended counts the lifetime of a connection that ended.
func (y *tally) ended(lived time.Duration) {
	i, _ := slices.BinarySearch(LifetimeBounds, lived)
	y.lifetimes.Counts[i]++
	y.lifetimes.Sum += max(lived, 0)
}

// list returns all counts, sorted by waypoint and kind.
func (y *tally) list() (all []Carried) {
	for _, c := range slices.SortedFunc(maps.Values(y.carried), func(a, b *Carried) int {
		return cmp.Or(cmp.Compare(a.Waypoint, b.Waypoint), cmp.Compare(a.Kind, b.Kind))
	}) {
		all = append(all, *c)
	}
	return all
}
