package sending

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cgrouptest"
	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/mptcptest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// What a subflow has by another program stays if it is lower, whichever of the two is wanted, and is there again when
// nothing is wanted any more. The other program goes on.
func TestLowerSettingsOfOthersStay(t *testing.T) {
	theirs := cgrouptest.ForeignSettings{BytesPerSecond: 500_000, UserTimeout: 30 * time.Second}
	p := mptcptest.NewPair(t, "10.0.1.2", "10.0.1.1")
	foreign := cgrouptest.NewForeign(t, p.Client, theirs)
	s := open(t, p)
	p.Connect(t, "10.0.1.1")
	for i, c := range []struct {
		name    string
		wanted  Setting
		rate    uint32
		timeout time.Duration
	}{
		{"only a timeout", Setting{UserTimeout: 10 * time.Second}, theirs.BytesPerSecond, 10 * time.Second},
		{"only a rate", Setting{Rate: 800_000}, 100_000, theirs.UserTimeout},
		{"larger ones", Setting{Rate: 80e6, UserTimeout: time.Hour}, theirs.BytesPerSecond, theirs.UserTimeout},
		{"lower ones", Setting{Rate: 1_600_000, UserTimeout: time.Second}, 200_000, time.Second},
		{"lower ones again", Setting{Rate: 1_600_000, UserTimeout: time.Second}, 200_000, time.Second},
		{"nothing", Setting{}, theirs.BytesPerSecond, theirs.UserTimeout},
	} {
		if err := s.Set(p.Join.Local, p.Join.Remote, c.wanted); err != nil {
			t.Fatal(err)
		}
		p.Nudge(t, p.Join)
		taken(t, s, uint64(i+1))
		p.Nudge(t, p.Join) // what was set is read at the next segment
		want := cgrouptest.ForeignSettings{BytesPerSecond: c.rate, UserTimeout: c.timeout}
		if got := foreign.Now(t); got != want {
			t.Errorf("%s: the subflow has %+v, want %+v", c.name, got, want)
		}
	}
	if written, _ := foreign.Segments(t); written < 10 {
		t.Errorf("the other program's option was written in %d segments", written)
	}
}

// A cgroup whose program allows no other is a reason of its own.
func TestOccupiedCgroup(t *testing.T) {
	cgroup := cgrouptest.Occupied(t)
	netnstest.New(t).Must(t, func() error {
		s, err := Open(cgroup, nil)
		if err == nil {
			return s.Close()
		}
		if e, ok := errors.AsType[*sockops.Error](err); !ok || !e.Occupied || !strings.Contains(e.Fix, "multi") {
			t.Errorf("got %v", err)
		}
		return nil
	})
}
