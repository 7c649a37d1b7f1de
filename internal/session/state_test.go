package session

import (
	"math"
	"testing"

	"github.com/quic-go/quic-go"
	"pgregory.net/rapid"
)

// The delay begins at a second, never falls between tries, and never exceeds a minute.
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

func TestLoss(t *testing.T) {
	var l loss
	l.update(quic.ConnectionStats{})
	if l.ratio() != 0 {
		t.Errorf("no packets: %v", l.ratio())
	}
	var s quic.ConnectionStats
	for range 200 {
		s.PacketsSent += 10
		s.PacketsLost++
		l.update(s)
	}
	if got := l.ratio(); math.Abs(got-0.1) > 0.001 {
		t.Errorf("one in ten: %v", got)
	}
	for range 200 { // nothing lost any more; and one packet turns out to have arrived
		s.PacketsSent += 10
		l.update(s)
	}
	s.PacketsLost--
	l.update(s)
	if got := l.ratio(); got < 0 || got > 0.01 {
		t.Errorf("long after: %v", got)
	}
}

func TestLossStaysARatio(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l loss
		var s quic.ConnectionStats
		for range rapid.IntRange(1, 50).Draw(t, "pings") {
			s.PacketsSent += uint64(rapid.IntRange(0, 20).Draw(t, "sent"))
			s.PacketsLost = uint64(rapid.IntRange(0, int(s.PacketsSent)).Draw(t, "lost"))
			l.update(s)
			if r := l.ratio(); r < 0 || r > 1 || math.IsNaN(r) {
				t.Fatalf("loss %v", r)
			}
		}
	})
}
