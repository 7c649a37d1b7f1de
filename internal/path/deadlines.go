package path

import (
	"cmp"
	"container/heap"
	"time"
)

// deadlines orders connections by the time at which they need a Tick. Each connection is in it at
// most once, at index conn.place. Only set writes conn.due.
type deadlines struct{ h dueHeap }

// set changes when c is due. The zero time removes it.
func (d *deadlines) set(c *conn, at time.Time) {
	was := c.due
	switch {
	case at.Equal(was):
	case at.IsZero():
		heap.Remove(&d.h, c.place)
		c.due = at
	case was.IsZero():
		c.due = at
		heap.Push(&d.h, c)
	default:
		c.due = at
		heap.Fix(&d.h, c.place)
	}
}

// first returns the connection that is due next, or nil if none is.
func (d *deadlines) first() *conn {
	if len(d.h) == 0 {
		return nil
	}
	return d.h[0]
}

type dueHeap []*conn

func (h dueHeap) Len() int { return len(h) }

func (h dueHeap) Less(i, j int) bool {
	return cmp.Or(h[i].due.Compare(h[j].due), cmp.Compare(h[i].token, h[j].token)) < 0
}

func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *dueHeap) Push(x any) {
	c := x.(*conn)
	c.place = len(*h)
	*h = append(*h, c)
}

func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	c := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return c
}
