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
