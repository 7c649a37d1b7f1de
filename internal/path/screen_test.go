package path_test

import (
	"maps"
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
