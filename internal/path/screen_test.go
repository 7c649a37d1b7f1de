package path_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// screening returns a host with detours of these rates in Mbit/s, beside a direct path, and a server that takes two of them.
func screening(t *testing.T, seed uint64, direct float64, rates map[string]float64) (*fluid, *transfer) {
	t.Helper()
	ways := map[string]*way{"": wayOf(40*time.Millisecond, queued(direct, 60*time.Millisecond))}
	for name, mbit := range rates {
		ways[name] = wayOf(40*time.Millisecond, queued(mbit, 80*time.Millisecond))
	}
	f := offeredTo(t, seed, ways, slices.Sorted(maps.Keys(rates))...)
	d := f.connect(0)
	return f, d
}

// A connection screens although the direct path carries most, if its detours carry nearly as much. It tries one waypoint at a
// time. If they carry much less, it does not.
func TestScreensOneByOneBesideDirectPath(t *testing.T) {
	for slow, rates := range map[bool]map[string]float64{
		false: {"best": 28, "mid0": 12, "mid1": 7, "mid2": 9, "mid3": 8},
		true:  {"best": 28, "mid0": 3, "mid1": 2, "mid2": 3, "mid3": 2},
	} {
		screened, late, began, tried := 0, 0, 0, int(networks(24))
		for i := range uint64(tried) {
			f, d := screening(t, i, 24, rates)
			f.run(500 * time.Millisecond)
			if d.over("best") != nil {
				continue
			}
			began++
			for range 75 {
				f.step()
				if d.carries("") && len(slices.DeleteFunc(slices.Clone(d.lanes), func(l *lane) bool { return !l.backup })) > 1 {
					t.Errorf("%d: two detours stand by at once: %v", i, d.log)
				}
			}
			if strings.Count(strings.Join(d.log, ";"), "join ") > 4 {
				screened++
			}
			if d.over("best") == nil {
				late++
			}
		}
		if slow && screened > 0 || !slow && (screened < began*3/4 || late > began/6) || began < tried/3 {
			t.Errorf("slow detours %v: %d of %d screened, and %d had not found the best waypoint", slow, screened, began, late)
		}
	}
}

// A detour that the operator wants does not give its place, and the others are screened nevertheless.
func TestScreensBesideWantedDetour(t *testing.T) {
	without, tried := 0, int(networks(12))
	for i := range uint64(tried) {
		f, d := screening(t, i, 24, map[string]float64{"best": 28, "mid0": 12, "mid1": 7, "mid2": 9, "wanted": 7})
		f.tell(path.Steered{Steering: path.Steering{Use: []string{"wanted"}}})
		if f.run(12 * time.Second); d.over("wanted") == nil || d.over("best") == nil {
			without++
			t.Logf("%d: %v", i, d.log)
		}
	}
	if without > max(1, tried/12) {
		t.Errorf("%d of %d do not use both", without, tried)
	}
}

// A connection whose only detour is a burden soon measures other waypoints beside it, or else in its place.
func TestScreensBesideBurden(t *testing.T) {
	for _, accepts := range []int{1, 2} {
		found, tried := 0, 0
		for i := range networks(48) {
			f, d := bestOfFour(t, i, accepts)
			f.run(100 * time.Millisecond)
			first := d.lanes[len(d.lanes)-1].waypoint
			if first == "best" || first == "" {
				continue
			}
			d.burden = first
			tried++
			f.run(20 * time.Second)
			if d.carries("best") {
				found++
			} else {
				t.Logf("%d: %v", i, d.log)
			}
		}
		if found < tried || tried < int(networks(48))/2 {
			t.Errorf("%d accepted: %d of %d found", accepts, found, tried)
		}
	}
}

// It measures none if this host's line is the bottleneck.
func TestDoesNotScreenBesideBurdenBehindLine(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 57))
	burdens, tried := 0, int(networks(24))
	for i := range uint64(tried) {
		f, d := bestOfFour(t, i, 2)
		home := queued(2+random.Float64(), time.Duration(20+20*random.Float64())*time.Millisecond)
		for _, way := range f.ways {
			way.links = append(way.links, home)
		}
		f.run(100 * time.Millisecond)
		d.burden = d.lanes[len(d.lanes)-1].waypoint
		f.run(10 * time.Second)
		burdens += min(d.logged("demote "+d.burden), 1)
		if d.logged("join ") > 1 {
			t.Errorf("%d: %v", i, d.log)
		}
	}
	if burdens < tried/2 {
		t.Errorf("%d of %d burdens", burdens, tried)
	}
}

// A screening beside the detours does not end because the share of the direct path varies a little.
func TestScreeningGoesOnNearItsLimit(t *testing.T) {
	began, found := 0, 0
	for i := range networks(48) {
		f := oneDetour(t, i, 30*time.Millisecond, 60*time.Millisecond, map[string]float64{"": 27, "best": 30, "mid0": 3, "mid1": 3, "mid2": 3})
		f.limit = 2
		d := f.connect(0)
		f.run(500 * time.Millisecond)
		if d.over("best") != nil {
			continue
		}
		f.run(15 * time.Second)
		if d.logged("join ") < 2 {
			continue
		}
		began++
		if d.carries("best") {
			found++
		} else {
			t.Logf("%d: %v", i, d.log)
		}
	}
	if found < began || began < int(networks(48))/6 {
		t.Errorf("%d of %d found", found, began)
	}
}
