package path_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// fourRates has the rates of the direct path and of four waypoints in Mbit/s.
var fourRates = map[string]float64{"": 3, "best": 30, "mid0": 6, "mid1": 7, "mid2": 8}

// bestOfFour returns a host with one detour to a server that accepts this many, and waypoints of which one is the best.
func bestOfFour(t *testing.T, seed uint64, accepts int) (*fluid, *transfer) {
	t.Helper()
	f := oneDetour(t, seed, 30*time.Millisecond, 60*time.Millisecond, fourRates)
	f.limit = accepts
	d := f.connect(0)
	return f, d
}

// detours counts the detours of a connection.
func (d *transfer) detours() (n int) {
	for _, l := range d.lanes {
		if l.waypoint != "" {
			n++
		}
	}
	return n
}

// logged counts the log's lines that contain the words.
func (d *transfer) logged(words string) int { return strings.Count(strings.Join(d.log, "; "), words) }

// untilExtra runs until the connection has two detours.
func (f *fluid) untilExtra(t *testing.T, d *transfer) {
	t.Helper()
	for end := f.now.Add(20 * time.Second); d.detours() < 2; {
		if !f.now.Before(end) {
			t.Fatalf("no extra detour: %v", d.log)
		}
		f.step()
	}
}

// lastLeft returns the detour that the only connection left last.
func (f *fluid) lastLeft() *path.Departure {
	gone := f.m.Snapshot(f.now).Conns[0].Left
	return &gone[len(gone)-1]
}

// A connection with one detour that begins with the best waypoint keeps it while it measures the others, and has one detour
// again afterwards.
func TestBestDetourCarriesOn(t *testing.T) {
	began := 0
	for i := range networks(24) {
		f, d := bestOfFour(t, i, 2)
		f.run(500 * time.Millisecond)
		if d.over("best") == nil {
			continue
		}
		began++
		f.run(20 * time.Second)
		if got := 8 * float64(d.bytes) / 20; got < 30e6 || d.logged("demote best") > 0 {
			t.Errorf("%d: %.1f Mbit/s, %v", i, got/1e6, d.log)
		}
		if tried := f.m.Snapshot(f.now).Conns[0].Tried; len(tried) != 4 {
			t.Errorf("%d: tried %v, want all four", i, tried)
		}
		if !d.carries("best") || d.detours() != 1 {
			t.Errorf("%d: %d detours, best %v: %v", i, d.detours(), d.carries("best"), d.log)
		}
		if n := d.logged("join "); n != 4 {
			t.Errorf("%d: %d joins, want one for each waypoint: %v", i, n, d.log)
		}
	}
	if began == 0 {
		t.Error("no connection began with the best waypoint")
	}
}

// The best waypoint is found beside another one, and also if the server accepts only one detour.
func TestBestDetourIsFound(t *testing.T) {
	for _, accepts := range []int{1, 2, 8} {
		for i := range networks(12) {
			f, d := bestOfFour(t, i, accepts)
			f.run(20 * time.Second)
			if !d.carries("best") || d.detours() != 1 || d.logged("refused") > 2 {
				t.Errorf("%d accepted, %d: %d detours: %v", accepts, i, d.detours(), d.log)
			}
		}
	}
}

// A lossy waypoint ends when that is known, so that the others are measured beside the best one.
func TestLossyExtraDetourEnds(t *testing.T) {
	began := 0
	for i := range networks(24) {
		f, d := bestOfFour(t, i, 2)
		f.ways["mid1"].loss = 0.08
		f.run(500 * time.Millisecond)
		if d.over("best") == nil {
			continue
		}
		began++
		f.run(20 * time.Second)
		if d.logged("demote best") > 0 || d.logged("refused") > 0 || d.logged("join ") != 4 || d.detours() != 1 {
			t.Errorf("%d: %d detours: %v", i, d.detours(), d.log)
		}
	}
	if began == 0 {
		t.Error("no connection began with the best waypoint")
	}
}

// The extra detour ends soon after the screening, even if nothing else happens.
func TestExtraDetourEndsWithScreening(t *testing.T) {
	for i := range networks(12) {
		f, d := bestOfFour(t, i, 2)
		for end := f.now.Add(20 * time.Second); d.logged("demote") < 3 && f.now.Before(end); { // all but the best
			f.step()
		}
		for _, r := range f.m.Snapshot(f.now).Conns[0].Tried { // the last ones until the screening ended
			if wait := f.now.Sub(r.At); r.Waypoint == "best" && wait > 200*time.Millisecond {
				t.Errorf("%d: it ended %v after the screening: %v", i, wait, d.log)
			}
		}
		f.run(2 * time.Second)
		if d.detours() != 1 {
			t.Errorf("%d: %d detours: %v", i, d.detours(), d.log)
		}
		if why := f.lastLeft().Why(); !strings.Contains(why, " beside best, which carried ") {
			t.Errorf("%d: it ended, because %s", i, why)
		}
	}
}

// A detour that the operator wants stays, even if the extra one carries more.
func TestWantedDetourStaysBesideExtra(t *testing.T) {
	for i := range networks(12) {
		f, d := bestOfFour(t, i, 2)
		f.untilExtra(t, d)
		wanted := d.lanes[1].waypoint
		f.tell(path.Steered{Steering: path.Steering{Use: []string{wanted}}})
		f.run(20 * time.Second)
		if !d.carries(wanted) || d.detours() != 1 {
			t.Errorf("%d: wanted %s, %d detours: %v", i, wanted, d.detours(), d.log)
		}
		if why := f.lastLeft(); why.Reason.Cause != path.CauseOtherWanted {
			t.Errorf("%d: %s ended, because %s", i, why.Waypoint, why.Why())
		}
	}
}

// A connection whose program sends less from then on has the configured number of detours again.
func TestExtraDetourEndsWithBulkTraffic(t *testing.T) {
	for i := range networks(12) {
		f, d := bestOfFour(t, i, 2)
		f.untilExtra(t, d)
		d.demand, d.writes = 300e3, 20*time.Millisecond
		f.run(40 * time.Second)
		if why := f.lastLeft(); d.detours() != 1 || why.Reason.Cause != path.CauseTried {
			t.Errorf("%d: %d detours, because %s: %v", i, d.detours(), why.Why(), d.log)
		}
	}
}

// The extra detour ends after a while if nothing is measured any more.
func TestStaleExtraDetourEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(f *fluid, d *transfer)
	}{
		{"the program pauses", func(_ *fluid, d *transfer) { d.paused = true }},
		{"both are wanted", func(f *fluid, d *transfer) {
			f.tell(path.Steered{Steering: path.Steering{Use: []string{d.lanes[1].waypoint, d.lanes[2].waypoint}}})
		}},
		{"a waypoint forwards nothing", func(f *fluid, d *transfer) { f.ways[d.lanes[2].waypoint].links[0].rate = 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for i := range networks(12) {
				f, d := bestOfFour(t, i, 2)
				f.untilExtra(t, d)
				c.then(f, d)
				f.run(time.Minute)
				if d.detours() != 1 {
					t.Errorf("%d: %d detours: %v", i, d.detours(), d.log)
				}
			}
		})
	}
}

// A program that pauses for a moment does not cost its connection the best detour.
func TestPauseKeepsBestDetour(t *testing.T) {
	lost, tried := 0, 0
	for start := 2 * time.Second; start < 5*time.Second; start += 200 * time.Millisecond {
		for i := range networks(12) {
			f, d := bestOfFour(t, i, 2)
			f.run(start)
			d.paused = true
			f.run(time.Second)
			d.paused = false
			f.run(20 * time.Second)
			tried++
			if !d.carries("best") {
				lost++
				t.Logf("%v %d: %v", start, i, d.log)
			}
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d lost", lost, tried)
	}
}

// The best detour is also found if the server accepts one, and may still count another that has just ended.
func TestBestDetourIsFoundAfterAnEnd(t *testing.T) {
	for i := range networks(12) {
		f, d := bestOfFour(t, i, 1)
		f.run(700 * time.Millisecond)
		first := d.lanes[1].waypoint
		if first == "best" {
			continue
		}
		f.tell(path.Steered{Steering: path.Steering{Avoid: []string{first}}})
		f.run(30 * time.Second)
		if !d.carries("best") || d.logged("refused") > 2 {
			t.Errorf("%d: %v", i, d.log)
		}
	}
}

// A detour that ends because the operator lowered the number says so, long after the screening.
func TestLoweredNumberIsTheReason(t *testing.T) {
	for i := range networks(6) {
		ways := oneDetour(t, i, 30*time.Millisecond, 60*time.Millisecond, fourRates).ways
		f := offeredTo(t, i, ways, "best", "mid0", "mid1", "mid2")
		f.connect(0)
		f.run(5 * time.Minute)
		f.tell(path.Reconfigured{Policy: policy.Detours{Subflows: 2}})
		f.run(3 * time.Second)
		if why := f.lastLeft().Why(); why != "the configuration allowed fewer subflows" {
			t.Errorf("%d: because %s", i, why)
		}
	}
}

// If the direct path carries most and the first detour little, other waypoints are measured beside it. They are not if the
// server accepts only one detour, because that would cost what the detour carries.
func TestPoorFirstDetourBesideGoodDirectPath(t *testing.T) {
	for accepts, wanted := range map[int]bool{1: false, 2: true} {
		found, tried := 0, 0
		for i := range networks(12) {
			f := oneDetour(t, i, 30*time.Millisecond, 60*time.Millisecond, map[string]float64{"": 20, "best": 30, "mid0": 3, "mid1": 3, "mid2": 3})
			f.limit = accepts
			d := f.connect(0)
			f.run(500 * time.Millisecond)
			if d.over("best") != nil {
				continue
			}
			tried++
			f.run(10 * time.Second)
			if d.carries("best") {
				found++
			} else {
				t.Logf("%d accepted, %d: %v", accepts, i, d.log)
			}
			if n := d.logged("end "); accepts == 1 && n > 2 { // for a challenge and back
				t.Errorf("%d accepted, %d: %d detours gave their places: %v", accepts, i, n, d.log)
			}
		}
		if wanted && found < tried || !wanted && found > tried/2 {
			t.Errorf("%d accepted: %d of %d found", accepts, found, tried)
		}
	}
}

// A program that sends less than its paths carry gets no extra detour.
func TestNoExtraDetourForLittle(t *testing.T) {
	for i := range networks(12) {
		f := oneDetour(t, i, 30*time.Millisecond, 60*time.Millisecond, map[string]float64{"": 30, "best": 30, "mid0": 30, "mid1": 30, "mid2": 30})
		f.limit = 2
		d := f.connect(9e6)
		f.run(30 * time.Second)
		if d.logged("join ") > 1 {
			t.Errorf("%d: %v", i, d.log)
		}
	}
}

// A detour whose quota is used up while it is tried ends like others, and no join is refused.
func TestExtraDetourEndsWithQuota(t *testing.T) {
	for i := range networks(12) {
		from := oneDetour(t, i, 30*time.Millisecond, 60*time.Millisecond, fourRates)
		f := newFluid(t, i, from.ways, func(c *path.Config) {
			c.Policy = policy.Detours{Subflows: 2}
			c.Rules = []path.Rule{{Name: "q", Quota: map[string]uint64{"mid0": 200 << 10, "mid1": 200 << 10, "mid2": 200 << 10}}}
		})
		f.offer(from.idle...)
		f.idle, f.limit = from.idle, 2
		d := f.connect(0)
		f.run(2 * time.Minute)
		if d.detours() != 1 || d.logged("refused") > 0 {
			t.Errorf("%d: %d detours, %v: %v", i, d.detours(), f.m.Snapshot(f.now).Conns[0].Note, d.log)
		}
	}
}

// A connection never has more than one detour beyond its policy, has none after its screening, and says nothing about a
// limit of the server if it has all that it should have.
func TestExtraDetourInRandomNetworks(t *testing.T) {
	for _, c := range []struct{ subflows, accepts int }{{2, 1}, {2, 2}, {2, 8}, {3, 3}, {3, 8}} {
		random := rand.New(rand.NewPCG(77, uint64(c.subflows*10+c.accepts)))
		for i := range networks(16) {
			ways, names := six(random)
			f := newFluid(t, i, ways, func(x *path.Config) { x.Policy = policy.Detours{Subflows: c.subflows} })
			f.offer(names...)
			f.limit, f.idle = c.accepts, names
			d := f.connect(0)
			switch i % 4 {
			case 1:
				d.demand = 5e6
			case 2:
				d.window = 3e6
			case 3:
				ways["mid1"].loss = 0.05
				d.held = "mid2"
			}
			most, notes := 0, 0
			for range 600 {
				f.step()
				most = max(most, d.detours())
				if f.m.Snapshot(f.now).Conns[0].Note.Code == path.NoteServerLimit && d.detours() >= c.subflows-1 && f.now.Sub(f.start) > time.Second {
					notes++
				}
			}
			if d.detours() > c.subflows-1 || most > c.subflows || notes > 0 {
				t.Errorf("%+v, %d: %d detours, at most %d, %d notes: %v", c, i, d.detours(), most, notes, d.log)
			}
		}
	}
}
