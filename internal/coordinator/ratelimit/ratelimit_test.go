package ratelimit

import (
	"testing"
	"time"
)

func TestLimits(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	l := New(3, time.Minute)
	uses := func() (n int) {
		for l.May("alpha", now) {
			l.Spend("alpha", now)
			n++
		}
		return n
	}
	if n := uses(); n != 3 {
		t.Errorf("the burst has %d", n)
	}
	if !l.May("beta", now) {
		t.Error("one member uses up another's")
	}
	if now = now.Add(90 * time.Second); uses() != 1 {
		t.Error("not one more after a minute and a half")
	}
	if l.Sweep(now); l.Len() != 1 {
		t.Error("forgets a member that has not its whole burst")
	}
	if l.Sweep(now.Add(3 * time.Minute)); l.Len() != 0 {
		t.Error("remembers a member that has its whole burst again")
	}
}
