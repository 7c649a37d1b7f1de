package budget

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var may = time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)

func TestLevels(t *testing.T) {
	b := New(Limits{Total: 1000, Waypoint: 500, Metered: 100}, nil)
	b.Turn(may)
	for _, step := range []struct {
		waypoint string
		metered  bool
		bytes    uint64
		changed  bool
		is       Standing // of the waypoint, unmetered
		level    Level
	}{
		{"bob", false, 399, false, Standing{Scope: Waypoint, Waypoint: "bob", Used: 399, Limit: 500}, Free},
		{"bob", false, 1, true, Standing{Scope: Waypoint, Waypoint: "bob", Used: 400, Limit: 500}, Nearly},
		{"bob", false, 99, false, Standing{Scope: Waypoint, Waypoint: "bob", Used: 499, Limit: 500}, Nearly},
		{"bob", false, 1, true, Standing{Scope: Waypoint, Waypoint: "bob", Used: 500, Limit: 500}, Spent},
		{"eve", false, 0, false, Standing{Scope: Total, Used: 500, Limit: 1000}, Free},
		{"eve", true, 100, true, Standing{Scope: Total, Used: 600, Limit: 1000}, Free},
		{"eve", false, 200, true, Standing{Scope: Total, Used: 800, Limit: 1000}, Nearly},
		{"dan", false, math.MaxUint64, true, Standing{Scope: Waypoint, Waypoint: "dan", Used: math.MaxUint64, Limit: 500}, Spent},
	} {
		if changed := b.Add(step.waypoint, step.metered, step.bytes); changed != step.changed {
			t.Errorf("%d more through %s: changed %v", step.bytes, step.waypoint, changed)
		}
		step.is.Renews = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
		is := b.Of(step.waypoint, false)
		if d := cmp.Diff(step.is, is); d != "" || is.Level() != step.level {
			t.Errorf("%d more through %s: level %v (-want +is)\n%s", step.bytes, step.waypoint, is.Level(), d)
		}
	}
	if s := b.Of("eve", true); s.Scope != Metered && s.Scope != Total || s.Level() != Spent {
		t.Errorf("from a metered interface: %+v", s)
	}
}

// A new month begins at zero. After a wrong clock is corrected, earlier counts are found again.
func TestTurn(t *testing.T) {
	b := New(Limits{Total: 100}, nil)
	if b.Turn(may) || b.Turn(may.Add(time.Hour)) {
		t.Error("nothing was used, and yet a level changed")
	}
	b.Add("bob", false, 100)
	for _, at := range []time.Time{may.AddDate(0, 1, 0), may, may.AddDate(40, 0, 0), may} {
		if !b.Turn(at) {
			t.Errorf("at %v no level changed", at)
		}
		want := Free
		if at.Equal(may) {
			want = Spent
		}
		if level := b.Of("bob", false).Level(); level != want {
			t.Errorf("at %v: %v, want %v", at, level, want)
		}
	}
	for i := range 50 {
		b.Turn(may.AddDate(0, i, 0))
	}
	b.Turn(time.Unix(0, 0))
	b.Add("bob", false, 7)
	used := b.Used()
	if len(used) > monthsKept+1 || used["1970-01"].Total != 7 {
		t.Errorf("%d months are kept: %v", len(used), used)
	}
}

// A new book continues earlier counts. Used returns a copy.
func TestUsed(t *testing.T) {
	b := New(Limits{Waypoint: 10}, map[Month]Use{"2026-05": {Total: 12, Waypoints: map[string]uint64{"bob": 9}}})
	b.Turn(may)
	before := b.Used()
	b.Add("bob", false, 1)
	if before["2026-05"].Waypoints["bob"] != 9 || b.Of("bob", false).Level() != Spent {
		t.Errorf("before %v, now %v", before, b.Used())
	}
}

func TestUnlimited(t *testing.T) {
	b := New(Limits{}, nil)
	b.Turn(may)
	b.Add("bob", true, 5)
	if b.Limited() || len(b.Used()) > 0 || len(b.Standings()) > 0 || b.Of("bob", true).Level() != Free {
		t.Errorf("%v", b.Used())
	}
}

func TestManyWaypoints(t *testing.T) {
	b := New(Limits{Total: 1 << 30}, nil)
	b.Turn(may)
	for i := range 2 * mostWaypoints {
		b.Add(fmt.Sprint(i), false, 1)
	}
	if u := b.Used()["2026-05"]; len(u.Waypoints) != mostWaypoints || u.Total != 2*mostWaypoints {
		t.Errorf("%d waypoints, %d bytes", len(u.Waypoints), u.Total)
	}
}
