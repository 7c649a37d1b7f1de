package mptcp

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// The trial comes to the same result each time.
func TestLosesOverlaps(t *testing.T) {
	ns := netnstest.New(t)
	try := func() (loses bool) {
		ns.Must(t, func() (err error) {
			loses, err = LosesOverlaps()
			return err
		})
		return loses
	}
	first := try()
	t.Logf("this kernel loses overlaps: %v", first)
	for range 3 {
		if loses := try(); loses != first {
			t.Errorf("the trial found %v, and %v before", loses, first)
		}
	}
}

// A connection that is plain TCP from the start loses nothing, and gets the repeated segment.
func TestTCPLosesNoOverlaps(t *testing.T) {
	ns := netnstest.New(t)
	for range 3 {
		ns.Must(t, func() error {
			loses, err := losesOverlaps(unix.IPPROTO_TCP)
			if loses {
				t.Error("plain TCP lost data")
			}
			return err
		})
	}
}
