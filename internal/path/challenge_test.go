package path_test

import (
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// twoAndAnother returns a host with a connection over two detours of 8 Mbit/s. Then a waypoint is offered that gives this many
// Mbit/s. It gets a place in a challenge.
func twoAndAnother(t *testing.T, seed uint64, mbit float64) (*fluid, *transfer) {
	t.Helper()
	buffer := 100 * time.Millisecond
	f := offeredTo(t, seed, map[string]*way{
		"":        wayOf(60*time.Millisecond, queued(3, buffer)),
		"one":     wayOf(40*time.Millisecond, queued(8, buffer)),
		"two":     wayOf(40*time.Millisecond, queued(8, buffer)),
		"another": wayOf(40*time.Millisecond, queued(mbit, buffer)),
	}, "one", "two")
	d := f.connect(0)
	f.run(20 * time.Second)
	f.offer("another")
	return f, d
}

// joins lets the connection run until a subflow through the waypoint joins.
func (f *fluid) joins(d *transfer, waypoint string) {
	for f.now.Sub(f.start) < 2*time.Minute && !strings.Contains(strings.Join(d.log, ";"), "join "+waypoint) {
		f.step()
	}
}

// tried returns the result of the waypoint, or fails the test if there is none within 13 s.
func (f *fluid) tried(t *testing.T, waypoint string) path.Tryout {
	t.Helper()
	for range 130 {
		for _, r := range f.m.Snapshot(f.now).Conns[0].Tried {
			if r.Waypoint == waypoint {
				return r
			}
		}
		f.step()
	}
	t.Fatalf("%s has no result", waypoint)
	return path.Tryout{}
}

// A challenge ends early if the waypoint gives far too little, and not before its result is known if it gives nearly enough.
func TestPoorChallengerIsLeftEarly(t *testing.T) {
	took := map[float64]time.Duration{}
	for _, mbit := range []float64{1, 6, 16} {
		n := networks(12)
		for i := range n {
			f, d := twoAndAnother(t, i, mbit)
			f.joins(d, "another")
			began := f.now
			r := f.tried(t, "another")
			if won := r.Verdict == path.TryoutKept; won != (mbit == 16) {
				t.Errorf("%v Mbit/s: %+v: %v", mbit, r, d.log)
			}
			took[mbit] += r.At.Sub(began) / time.Duration(n)
		}
	}
	if took[1] > 3*time.Second || took[6] < took[1]+500*time.Millisecond {
		t.Errorf("results after %v", took)
	}
}

// A challenge ends when the waypoint's detour ends for a reason of its own, or does not come up.
func TestChallengerThatDoesNotCarry(t *testing.T) {
	for _, want := range []path.TryoutVerdict{path.TryoutLeft, path.TryoutUnreached} {
		t.Run(want.String(), func(t *testing.T) {
			f, d := twoAndAnother(t, 1, 8)
			if want == path.TryoutUnreached {
				f.limit = 1
			}
			f.joins(d, "another")
			began := f.now
			if want == path.TryoutLeft {
				f.run(time.Second)
				l := d.over("another")
				d.drop(l)
				f.tell(path.SubflowClosed{Token: d.token, Local: l.local, Remote: l.remote})
			}
			f.limit = 2
			r := f.tried(t, "another")
			if r.Verdict != want || r.At.Sub(began) > 3*time.Second {
				t.Errorf("after %v: %+v: %v", r.At.Sub(began), r, d.log)
			}
			if f.run(5 * time.Second); d.over("one") == nil || d.over("two") == nil {
				t.Errorf("the earlier detour did not come back: %v", d.log)
			}
		})
	}
}

// A waypoint that is so slow that the other subflows wait for it is left after about a second.
func TestChallengerThatStopsOthers(t *testing.T) {
	for i := range networks(12) {
		f, d := twoAndAnother(t, i, 0.2)
		d.stopped, d.burden = "another", "another"
		f.joins(d, "another")
		began := f.now
		for f.now.Sub(began) < 10*time.Second && (d.carries("another") || d.over("one") == nil || d.over("two") == nil) {
			f.step()
		}
		if r := f.tried(t, "another"); f.now.Sub(began) > 1200*time.Millisecond || r.Verdict != path.TryoutLost || r.Sum == 0 {
			t.Errorf("back after %v: %+v: %v", f.now.Sub(began), r, d.log)
		}
	}
}
