package path_test

import (
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// The time until a lost SYN is sent again does not count as part of the join's round trip.
func TestJoinTripWithoutLostSYNs(t *testing.T) {
	for _, c := range []struct {
		measured time.Duration
		again    uint32
		want     time.Duration
	}{
		{250 * time.Millisecond, 0, 250 * time.Millisecond},
		{1250 * time.Millisecond, 1, 250 * time.Millisecond},
		{3250 * time.Millisecond, 2, 250 * time.Millisecond},
		{1250 * time.Millisecond, 0, 1250 * time.Millisecond}, // a path that is that long
		{250 * time.Millisecond, 1, 250 * time.Millisecond},   // measured from the SYN that arrived
	} {
		s := path.Sample{MinRTT: c.measured, Retransmitted: c.again}
		if got := path.JoinTrip(&s); got != c.want {
			t.Errorf("%v after %d SYNs again: %v, want %v", c.measured, c.again, got, c.want)
		}
	}
}

// The shortest round trip falls when the queue drains that the join met. It does not rise when the kernel forgets it.
func TestLeastTripFallsAndStays(t *testing.T) {
	const ms = time.Millisecond
	receives := func(trip time.Duration, timestamps bool) (all []path.Sample) {
		for i := range uint64(8) {
			all = append(all, path.Sample{MinRTT: 300 * ms, ReceiverRTT: trip, Timestamps: timestamps, DataSegsIn: i})
		}
		return all
	}
	for name, c := range map[string]struct {
		samples []path.Sample
		want    time.Duration
	}{
		"joined in a queue":           {[]path.Sample{{MinRTT: 300 * ms}, {MinRTT: 300 * ms}, {MinRTT: 40 * ms}}, 40 * ms},
		"the same, receives only":     {receives(45*ms, true), 45 * ms},
		"receives with pauses":        {receives(700*ms, true), 300 * ms},
		"receives without timestamps": {receives(45*ms, false), 300 * ms},
		"forgotten by the kernel":     {[]path.Sample{{MinRTT: 40 * ms}, {MinRTT: 300 * ms}}, 40 * ms},
		"not measured yet":            {[]path.Sample{{}, {MinRTT: 40 * ms}, {}}, 40 * ms},
		"lost packets, no SYN":        {[]path.Sample{{MinRTT: 1250 * ms}, {MinRTT: 1200 * ms, Retransmitted: 3}}, 1200 * ms},
		"a lost SYN":                  {[]path.Sample{{MinRTT: 1250 * ms, Retransmitted: 1}, {MinRTT: 1250 * ms, Retransmitted: 1}, {MinRTT: 240 * ms, Retransmitted: 1}}, 240 * ms},
	} {
		if got := path.LeastTrip(c.samples...); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
