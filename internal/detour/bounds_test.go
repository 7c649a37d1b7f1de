package detour

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/path"
)

// A waypoint that grants for no time does not have its client ask each round
// trip, and one that grants for ever does not keep a mapping on offer for ever.
func TestLeasesAreBounded(t *testing.T) {
	for granted, want := range map[time.Duration]time.Duration{
		0: leastLease, time.Millisecond: leastLease, time.Minute: time.Minute, 365 * 24 * time.Hour: mostLease,
	} {
		b := New(nil)
		b.Up(bob)
		a := b.Request(server, start)[0]
		b.Granted(a, Grant{Port: 443, Lease: granted}, start)
		if asks := b.Request(server, start); len(asks) > 0 {
			t.Errorf("granted for %v, it is asked again at once", granted)
		}
		if next, _ := b.Next(); !next.Equal(after(want * 2 / 3)) {
			t.Errorf("granted for %v, it is looked at after %v, want %v", granted, next.Sub(start), want*2/3)
		}
		b.Due(after(want * 2 / 3))
		if _, events := b.Due(after(want)); len(events) != 1 {
			t.Errorf("granted for %v, after %v there are %v", granted, want, events)
		}
	}
}

func TestWaitsAreBounded(t *testing.T) {
	for named, want := range map[time.Duration]time.Duration{
		time.Millisecond: leastWait, time.Minute: time.Minute, 365 * 24 * time.Hour: mostWait,
	} {
		b := New(nil)
		b.Up(bob)
		a := b.Request(server, start)[0]
		b.Refused(a, Refusal{Why: "no", For: named, All: true}, start)
		if asks := b.Request(server, after(want-time.Millisecond)); len(asks) > 0 {
			t.Errorf("not to be asked for %v, it is before %v", named, want)
		}
		if asks := b.Request(server, after(want)); len(asks) != 1 {
			t.Errorf("not to be asked for %v, it is not after %v", named, want)
		}
	}
}

// Whatever a waypoint answers, one server costs it no more than a request a
// second, though there is always a connection that would like a mapping.
func TestNoAnswerMakesTheBookAskWithoutEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, now := New([]path.Kind{path.Mapped}), start
		b.Up(bob)
		asked := 0
		answer := func(asks []Ask) {
			for _, a := range asks {
				asked++
				named := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "named"))
				if rapid.Bool().Draw(t, "granted") {
					b.Granted(a, Grant{Port: 443, Lease: named - 1}, now)
				} else {
					b.Refused(a, Refusal{Why: "no", For: named}, now)
				}
			}
		}
		const seconds = 60
		for range seconds * 10 {
			answer(b.Request(server, now))
			due, _ := b.Due(now)
			answer(due)
			now = now.Add(100 * time.Millisecond)
		}
		if asked > seconds+1 {
			t.Fatalf("asked %d times in %d s", asked, seconds)
		}
	})
}
