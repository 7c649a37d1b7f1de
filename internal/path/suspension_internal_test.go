package path

import (
	"net/netip"
	"testing"
	"time"
)

// The number of suspensions is bounded. Those that end last are kept.
func TestSuspensionsAreBounded(t *testing.T) {
	x, now := make(suspensions), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	d := &Detour{Waypoint: "bob", Kind: InBand}
	server := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), 80)
	}
	const all = 3 * mostSuspensions
	for i := range all {
		now = now.Add(10 * time.Millisecond)
		x.add(d, server(i), &swallows, now, now)
		if len(x) > mostSuspensions {
			t.Fatalf("%d are kept", len(x))
		}
	}
	for i := all - mostSuspensions/2; i < all; i++ {
		if _, ok := x.on(d, server(i), false, now); !ok {
			t.Fatalf("%d of %d is forgotten", i, all)
		}
	}
}

// The wait before a last resort doubles with each attempt, with or without a result, up to an hour. It stays short for a
// connection without a path that works.
func TestWaitsBeforeALastResort(t *testing.T) {
	x, now := make(suspensions), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	d, server := &Detour{Waypoint: "bob", Kind: InBand}, netip.MustParseAddrPort("203.0.113.80:80")
	who := suspended{d.Waypoint, d.Kind, server}
	x.add(d, server, &swallows, now, now)
	for i, want := range []time.Duration{5 * time.Second, 12 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second} {
		if got := x[who].lastResort(false).Sub(later(x[who].began, x[who].tried)); got != want {
			t.Errorf("attempt %d: after %v, want %v", i+1, got, want)
		}
		if got, want := x[who].lastResort(true).Sub(x[who].began), min(5*time.Second<<i, urgentWait); got != want {
			t.Errorf("attempt %d, urgent: after %v, want %v", i+1, got, want)
		}
		now = x[who].lastResort(false)
		x.attempt(d, server, now)
	}
	for range 10 {
		now = now.Add(time.Minute)
		x.add(d, server, &swallows, now, now)
	}
	if got := x[who].lastResort(false).Sub(now); got != time.Hour {
		t.Errorf("after ten silences: after %v, want an hour", got)
	}
}

// Silences that are long past do not count any more, and nothing is kept of them.
func TestSilencesAge(t *testing.T) {
	x, now := make(silences), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	who := suspended{waypoint: "bob", kind: WireGuard}
	add := func(n byte) bool {
		return x.add(who, netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, n, 0, 1}), 80), false, now)
	}
	for n := range byte(6) {
		if n%2 == 0 {
			now = now.Add(silenceKept)
		}
		now = now.Add(silentApart)
		if add(n) {
			t.Errorf("silence %d: two in three hours are enough", n)
		}
	}
	now = now.Add(silentApart)
	if !add(6) {
		t.Error("three in a minute are not enough")
	}
	x.forget(now.Add(silenceKept))
	if len(x) != 1 {
		t.Error("the last silence is forgotten too soon")
	}
	if x.forget(now.Add(silenceKept + 1)); len(x) != 0 {
		t.Error("the last silence is not forgotten")
	}
}
