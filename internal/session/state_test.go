package session

import (
	"testing"

	"pgregory.net/rapid"
)

// The delay starts at one second, never decreases between tries, and is at most a minute.
func TestBackoff(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b backoff
		least := firstDelay
		for range rapid.IntRange(1, 100).Draw(t, "tries") {
			d := b.next(rapid.Float64Range(0, 0.999).Draw(t, "chance"))
			if d < least || d > lastDelay {
				t.Fatalf("delay %v, at least %v and at most %v", d, least, lastDelay)
			}
			least = min(2*least, lastDelay)
		}
		b.reset()
		if d := b.next(0); d != firstDelay {
			t.Fatalf("after a reset %v", d)
		}
	})
}
