// Package deadline orders items by when they are due.
package deadline

import (
	"container/heap"
	"time"
)

// Queue holds entries, the first due on top. It is not for concurrent use.
type Queue[T any] struct{ heap entries[T] }

// Entry is an item and its place in a queue. One without a time is in no queue.
type Entry[T any] struct {
	Item  T
	due   time.Time
	place int
}

// New returns an empty queue. Items that are due at the same time come in the order of compare; nil: in any order.
func New[T any](compare func(a, b T) int) *Queue[T] {
	return &Queue[T]{entries[T]{compare: compare}}
}

// Due returns when the entry is due; zero if it is in no queue.
func (e *Entry[T]) Due() time.Time { return e.due }

// Len returns the number of entries.
func (q *Queue[T]) Len() int { return len(q.heap.list) }

// Has reports whether the entry is in the queue.
func (q *Queue[T]) Has(e *Entry[T]) bool {
	return e.place < len(q.heap.list) && q.heap.list[e.place] == e
}

// Set changes when an entry is due. The zero time takes it out.
func (q *Queue[T]) Set(e *Entry[T], due time.Time) {
	was := e.due
	switch {
	case due.Equal(was):
	case due.IsZero():
		heap.Remove(&q.heap, e.place)
		e.due = due
	case was.IsZero():
		e.due = due
		heap.Push(&q.heap, e)
	default:
		e.due = due
		heap.Fix(&q.heap, e.place)
	}
}

// First returns the entry that is due first, or nil if there is none.
func (q *Queue[T]) First() *Entry[T] {
	if len(q.heap.list) == 0 {
		return nil
	}
	return q.heap.list[0]
}

// entries implements heap.Interface.
type entries[T any] struct {
	list    []*Entry[T]
	compare func(a, b T) int
}

func (h *entries[T]) Len() int { return len(h.list) }

func (h *entries[T]) Less(i, j int) bool {
	a, b := h.list[i], h.list[j]
	if order := a.due.Compare(b.due); order != 0 || h.compare == nil {
		return order < 0
	}
	return h.compare(a.Item, b.Item) < 0
}

func (h *entries[T]) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].place, h.list[j].place = i, j
}

func (h *entries[T]) Push(x any) {
	e := x.(*Entry[T])
	e.place = len(h.list)
	h.list = append(h.list, e)
}

func (h *entries[T]) Pop() any {
	last := len(h.list) - 1
	e := h.list[last]
	h.list[last] = nil
	h.list = h.list[:last]
	return e
}
