package attribution

import (
	"fmt"
	"slices"
)

// order follows the chain from line to line, and detects changed, removed, added and moved lines. Its memory grows only
// with the number of gaps.
type order struct {
	have bool
	n    uint64 // number of the last line in order
	hash hash
	at   string
	// before is the hash before that line: if the next line follows there, the last one was inserted.
	before hash
	// The previous line is known to be wrong, so the next one need not match its hash.
	broken  bool
	strange row
	missing []Span // in order

	segment Span   // consecutive lines that follow each other
	signs   bool   // it contains a head
	proven  uint64 // the last
}

// follow reports whether a line is in order, and adds faults to the report.
func (o *order) follow(t *text, r *Report) bool {
	l := t.line
	next := o.n + 1
	switch {
	case !o.have:
		o.start(l.N, r)
	case l.Prev == o.hash:
		if l.N != next {
			r.fault(Changed, t.place(), fmt.Sprintf("the line must have number %d, but has %d", next, l.N))
			l.N = next
		}
		o.settle(r)
		o.segment.Last = l.N
	case l.N == next && o.broken:
		o.start(l.N, r)
	case l.N == next:
		if o.strange.lines == 0 {
			o.strange.add(o.at)
		}
		o.strange.add(t.place())
		o.start(l.N, r)
	case l.N == o.n && l.Prev == o.before:
		r.fault(Added, o.at, "the line was inserted")
		o.start(l.N, r)
	case l.N > next:
		o.settle(r)
		r.missing(t.place(), Span{next, l.N - 1})
		o.missing = append(o.missing, Span{next, l.N - 1})
		o.start(l.N, r)
	case o.wasMissing(l.N):
		r.fault(Reordered, t.place(), fmt.Sprintf("line %d is after line %d", l.N, o.n))
		return false
	default:
		r.fault(Added, t.place(), fmt.Sprintf("line %d is repeated after line %d", l.N, o.n))
		return false
	}
	o.before = l.Prev
	o.have, o.broken, o.n, o.hash, o.at = true, false, l.N, hashOf(t.bytes), t.place()
	return true
}

// skip skips a line that is known to be wrong.
func (o *order) skip(t *text) {
	o.before, o.hash, o.at, o.broken = o.hash, hashOf(t.bytes), t.place(), true
	o.n++
}

// row describes consecutive lines that do not match the hash of the previous one: at least one of them was changed.
type row struct {
	lines              int
	first, before, end string // places; before is that of the second to last line
}

func (s *row) add(place string) {
	if s.lines++; s.lines == 1 {
		s.first = place
	}
	s.before, s.end = s.end, place
}

// settle adds a fault with the place of the change in a row of lines that do not match.
func (o *order) settle(r *Report) {
	switch s := o.strange; s.lines {
	case 0:
	case 2: // the second line does not follow the first
		r.fault(Changed, s.first, "the line was changed: it does not match the hash in the next one")
	default:
		r.fault(Changed, s.first, fmt.Sprintf("lines from here to %s were changed", s.before))
	}
	o.strange = row{}
}

func (o *order) wasMissing(n uint64) bool {
	_, found := slices.BinarySearchFunc(o.missing, n, func(s Span, n uint64) int {
		switch {
		case s.Last < n:
			return -1
		case s.First > n:
			return 1
		}
		return 0
	})
	return found
}

// start begins a segment of lines that follow each other.
func (o *order) start(n uint64, r *Report) {
	o.endSegment(r)
	o.segment = Span{n, n}
}

// signed records that the waypoint has signed the segment up to line n.
func (o *order) signed(n uint64) { o.signs, o.proven = true, n }

// unsigned returns the number of lines in the last segment after its last head.
func (o *order) unsigned() uint64 {
	switch {
	case !o.have:
		return 0
	case o.signs:
		return o.segment.Last - o.proven
	}
	return o.segment.Last - o.segment.First + 1
}

func (o *order) endSegment(r *Report) {
	if o.signs {
		r.prove(Span{o.segment.First, o.proven})
	}
	o.signs = false
}
