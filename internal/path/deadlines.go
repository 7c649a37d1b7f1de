package path

import (
	"container/heap"
	"time"
)

// deadlines orders connections by when they want a Tick. An entry whose
// connection is gone or wants another time by now is dead weight that is
// dropped when it comes up.
type deadlines struct{ h dueHeap }

type dueEntry struct {
	at    time.Time
	token Token
}

func (d *deadlines) add(c *conn) { heap.Push(&d.h, dueEntry{c.due, c.token}) }

// drain drops dead entries from the front.
func (d *deadlines) drain(conns map[Token]*conn) {
	for len(d.h) > 0 {
		if c := conns[d.h[0].token]; c != nil && c.due.Equal(d.h[0].at) {
			return
		}
		heap.Pop(&d.h)
	}
}

func (d *deadlines) next(conns map[Token]*conn) (time.Time, bool) {
	d.drain(conns)
	if len(d.h) == 0 {
		return time.Time{}, false
	}
	return d.h[0].at, true
}

// pop returns a connection that is due, once; nil when none is.
func (d *deadlines) pop(conns map[Token]*conn, now time.Time) *conn {
	d.drain(conns)
	if len(d.h) == 0 || d.h[0].at.After(now) {
		return nil
	}
	c := conns[heap.Pop(&d.h).(dueEntry).token]
	c.due = time.Time{}
	return c
}

type dueHeap []dueEntry

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(dueEntry)) }
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	*h = (*h)[:last]
	return e
}
