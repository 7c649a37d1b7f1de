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
			l.Take("alpha", now)
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
	if now = now.Add(2 * time.Minute); !l.May("alpha", now) {
		t.Error("none after two more minutes")
	}
	if l.Take("beta", now); len(l.members) != 2 {
		t.Error("forgets a member that has not its whole burst")
	}
	if l.Take("beta", now.Add(4*time.Minute)); len(l.members) != 1 {
		t.Error("remembers a member that has its whole burst again")
	}
}

func TestRefused(t *testing.T) {
	l := New(200, 50*time.Millisecond)
	now := time.Unix(1_000_000, 0)
	take := func(n int) (accepted, refused int) {
		for range n {
			if r := l.Take("alice", now); r == 0 {
				accepted++
			} else {
				refused = r
			}
		}
		return accepted, refused
	}
	for _, step := range []struct {
		after             time.Duration
		uses              int
		accepted, refused int
	}{
		{0, 250, 200, 50},
		{time.Second, 30, 20, 60},
		{0, 2000, 0, 2060},
		{10 * time.Second, 201, 200, 1}, // after a rest
	} {
		now = now.Add(step.after)
		if accepted, refused := take(step.uses); accepted != step.accepted || refused != step.refused {
			t.Errorf("%v later: accepted %d, refused %d", step.after, accepted, refused)
		}
		if r := l.Take("bob", now); r != 0 {
			t.Error("bob pays for alice")
		}
	}
}
