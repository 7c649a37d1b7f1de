package path_test

import (
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// bestOfFour returns a host with one detour to a server that accepts this many, and waypoints of which one is the best.
func bestOfFour(t *testing.T, seed uint64, accepts int) (*fluid, *transfer) {
	t.Helper()
	f := oneDetour(t, seed, 30*time.Millisecond, 60*time.Millisecond, map[string]float64{"": 3, "best": 30, "mid0": 6, "mid1": 7, "mid2": 8})
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
		gone := f.m.Snapshot(f.now).Conns[0].Left
		if why := gone[len(gone)-1].Why(); !strings.Contains(why, "while it was tried, and best ") {
			t.Errorf("%d: it ended, because %s", i, why)
		}
	}
}

// A detour that the operator wants stays, even if the extra one carries more.
func TestWantedDetourStaysBesideExtra(t *testing.T) {
	began := 0
	for i := range networks(12) {
		f, d := bestOfFour(t, i, 2)
		for end := f.now.Add(20 * time.Second); d.detours() < 2 && f.now.Before(end); {
			f.step()
		}
		if d.detours() < 2 {
			continue
		}
		began++
		wanted := d.lanes[1].waypoint
		f.tell(path.Steered{Steering: path.Steering{Use: []string{wanted}}})
		f.run(20 * time.Second)
		if !d.carries(wanted) || d.detours() != 1 {
			t.Errorf("%d: wanted %s, %d detours: %v", i, wanted, d.detours(), d.log)
		}
	}
	if began == 0 {
		t.Error("no connection had two detours")
	}
}

// A connection whose program sends less from then on has the configured number of detours again.
func TestExtraDetourEndsWithBulkTraffic(t *testing.T) {
	began := 0
	for i := range networks(12) {
		f, d := bestOfFour(t, i, 2)
		for end := f.now.Add(20 * time.Second); d.detours() < 2 && f.now.Before(end); {
			f.step()
		}
		if d.detours() < 2 {
			continue
		}
		began++
		d.demand, d.writes = 300e3, 20*time.Millisecond
		f.run(40 * time.Second)
		if d.detours() != 1 {
			t.Errorf("%d: %d detours: %v", i, d.detours(), d.log)
		}
	}
	if began == 0 {
		t.Error("no connection had two detours")
	}
}
