package measure_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// pairs gives an Agreement one pair every 200 ms, and returns when it first shows one queue.
func pairs(n int, queues func(i int) (x, y time.Duration)) (shows time.Duration, ok bool) {
	var a measure.Agreement
	now := time.Unix(1e9, 0)
	for i := range n {
		x, y := queues(i)
		a.Take(now, x, y)
		if a.Shows(now) {
			return time.Duration(i) * 200 * ms, true
		}
		now = now.Add(200 * ms)
	}
	return 0, false
}

// One queue that grows is found, and sooner if it grows more.
func TestAgreementOfOneQueue(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 40))
	for _, c := range []struct {
		grows time.Duration // each 200 ms
		most  time.Duration
	}{{15 * ms, 1200 * ms}, {2 * ms, 3 * time.Second}} {
		at, ok := pairs(50, func(i int) (x, y time.Duration) {
			queue := 50*ms + time.Duration(i)*c.grows
			return queue + time.Duration(random.Int64N(int64(ms))), queue
		})
		if !ok || at > c.most {
			t.Errorf("grows by %v: found %v after %v", c.grows, ok, at)
		}
	}
}

// Queues that differ from time to time, are too short or do not change do not count as one.
func TestAgreementOfOthers(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 41))
	for what, queues := range map[string]func(i int) (x, y time.Duration){
		"they differ each second": func(i int) (x, y time.Duration) {
			queue := 50*ms + time.Duration(i)*ms
			if i%5 == 4 {
				return queue, queue + 10*ms
			}
			return queue, queue
		},
		"short":          func(i int) (x, y time.Duration) { return time.Duration(i%10) * ms, time.Duration(i%10) * ms },
		"always as long": func(int) (x, y time.Duration) { return 100*ms + time.Duration(random.Int64N(int64(2*ms))), 100 * ms },
		"independent": func(int) (x, y time.Duration) {
			return time.Duration(random.Int64N(int64(100 * ms))), time.Duration(random.Int64N(int64(100 * ms)))
		},
	} {
		if at, ok := pairs(500, queues); ok {
			t.Errorf("%s: shows one queue after %v", what, at)
		}
	}
}

// A series ends if no pair comes for a while. What it showed does not last.
func TestAgreementEnds(t *testing.T) {
	var a measure.Agreement
	now := time.Unix(1e9, 0)
	for i := range 10 {
		queue := 50*ms + time.Duration(i)*20*ms
		a.Take(now, queue, queue)
		now = now.Add(200 * ms)
	}
	if !a.Shows(now) {
		t.Error("does not show one queue")
	}
	if now = now.Add(3 * time.Second); a.Shows(now) || a.Begins(now, time.Minute) {
		t.Error("shows one queue after 3 s without a pair")
	}
	a.Take(now, 300*ms, 300*ms)
	if a.Shows(now) || !a.Begins(now, time.Minute) {
		t.Error("a pair after 3 s belongs to the series before")
	}
}
