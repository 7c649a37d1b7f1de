// Package known remembers a bounded number of things for a limited time: Map any, and Servers which servers speak
// MPTCP. Callers pass the time.
package known

import (
	"container/list"
	"iter"
	"time"
)

// Map remembers values until they expire. If it is full, it forgets the key that was set or found longest ago. It is
// not safe for concurrent use.
type Map[K comparable, V any] struct {
	most    int
	entries map[K]*list.Element
	recent  list.List // of *entry, the most recently used first
}

type entry[K comparable, V any] struct {
	key   K
	value V
	until time.Time
}

// NewMap returns a Map that holds at most the given number of keys.
func NewMap[K comparable, V any](most int) *Map[K, V] {
	return &Map[K, V]{most: most, entries: map[K]*list.Element{}}
}

// Set remembers a value until a time.
func (m *Map[K, V]) Set(key K, value V, until time.Time) {
	m.Forget(key)
	if m.most <= 0 {
		return
	}
	if len(m.entries) == m.most {
		m.remove(m.recent.Back())
	}
	m.entries[key] = m.recent.PushFront(&entry[K, V]{key, value, until})
}

// Get returns the value of a key. ok is false if the map has none, or it has expired.
func (m *Map[K, V]) Get(key K, now time.Time) (value V, ok bool) {
	e := m.entries[key]
	if e == nil {
		return value, false
	}
	found := e.Value.(*entry[K, V])
	if !now.Before(found.until) {
		m.remove(e)
		return value, false
	}
	m.recent.MoveToFront(e)
	return found.value, true
}

// All returns all entries that have not expired. That does not count as finding them.
func (m *Map[K, V]) All(now time.Time) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for e := m.recent.Front(); e != nil; e = e.Next() {
			if found := e.Value.(*entry[K, V]); now.Before(found.until) && !yield(found.key, found.value) {
				return
			}
		}
	}
}

// Forget removes a key.
func (m *Map[K, V]) Forget(key K) {
	if e := m.entries[key]; e != nil {
		m.remove(e)
	}
}

// Len returns the number of keys. That includes expired keys that Get has not removed yet.
func (m *Map[K, V]) Len() int { return len(m.entries) }

func (m *Map[K, V]) remove(e *list.Element) {
	delete(m.entries, e.Value.(*entry[K, V]).key)
	m.recent.Remove(e)
}
