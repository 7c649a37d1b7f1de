package attribution

import (
	"fmt"
	"slices"
)

// order follows the chain from line to line, and finds in it what was changed, removed, added or moved.
// What it remembers grows with the gaps only.
type order struct {
	have bool
	n    uint64 // of the last line in its place
	hash hash
	at   string
	// before is what stood before that line: if a line follows there, the last one was put in between.
	before hash
	// The line before is known to be bad: that the next does not follow it is no news.
	broken  bool
	strange row
	missing []Span // in their order

	segment Span   // lines in a row that follow each other
	signs   bool   // there is a head in it
	proven  uint64 // the last
}

// follow reports whether a line is in its place, and notes in the report what is wrong.
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

// skip passes over a line that is known to be bad.
func (o *order) skip(t *text) {
	o.before, o.hash, o.at, o.broken = o.hash, hashOf(t.bytes), t.place(), true
	o.n++
}

// row is lines in a row that do not follow the one before: one of them was changed, or more.
type row struct {
	lines              int
	first, before, end string // places; before is that of the last line but one
}

func (s *row) add(place string) {
	if s.lines++; s.lines == 1 {
		s.first = place
	}
	s.before, s.end = s.end, place
}

// settle says where in a row of lines that do not follow each other the change is.
func (o *order) settle(r *Report) {
	switch s := o.strange; s.lines {
	case 0:
	case 2: // the first of the two is not what the second follows
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

// start begins a row of lines that follow each other.
func (o *order) start(n uint64, r *Report) {
	o.endSegment(r)
	o.segment = Span{n, n}
}

// signed says that the waypoint has signed the row up to here.
func (o *order) signed(n uint64) { o.signs, o.proven = true, n }

// unsigned is how many lines of the last row no head covers.
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
