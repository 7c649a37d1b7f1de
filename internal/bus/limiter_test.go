package bus

import (
	"testing"
	"time"
)

func TestLimiter(t *testing.T) {
	l := newLimiter()
	now := time.Unix(1_000_000, 0)
	take := func(n int) (out [4]int) {
		for range n {
			out[l.take("alice", now)]++
		}
		return out
	}
	if got := take(250); got != [4]int{200, 50, 0, 0} {
		t.Fatalf("a burst: %v", got)
	}
	if l.take("bob", now) != accept {
		t.Fatal("bob pays for alice")
	}
	now = now.Add(time.Second)
	if got := take(30); got != [4]int{20, 10, 0, 0} {
		t.Fatalf("a second later: %v", got)
	}
	if got := take(2000); got != [4]int{0, 939, 1, 1060} {
		t.Fatalf("a flood: %v", got)
	}
	now = now.Add(10 * time.Second)
	if got := take(201); got != [4]int{200, 1, 0, 0} {
		t.Fatalf("after a rest: %v", got)
	}
	now = now.Add(time.Hour)
	if l.take("bob", now); len(l.members) != 1 {
		t.Fatalf("%d members are remembered", len(l.members))
	}
}
