package measure

import (
	"iter"
	"time"
)

// span is the number of seconds that a window covers, including the current one.
const span = 5

// window holds one T for each of the last seconds in which something was recorded.
type window[T any] struct {
	seconds [span]struct {
		second int64
		value  T
	}
}

// at returns the current second's T. It is zero if nothing was recorded in this second yet.
func (w *window[T]) at(now time.Time) *T {
	second := now.Unix()
	c := &w.seconds[second%span]
	if c.second != second {
		c.second = second
		c.value = *new(T)
	}
	return &c.value
}

// until returns an iterator over the last seconds up to now, including the current one.
func (w *window[T]) until(now time.Time) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range w.seconds {
			c := &w.seconds[i]
			if age := now.Unix() - c.second; age >= 0 && age < span && !yield(&c.value) {
				return
			}
		}
	}
}
