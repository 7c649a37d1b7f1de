package path_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// threeSubflows lets connections have two detours.
func threeSubflows(c *path.Config) { c.Policy = policy.Detours{Subflows: 3} }

// six returns a network of six waypoints: a good one, one that is bad only under load, others between, and a poor
// direct path.
func six(random *rand.Rand) (ways map[string]*way, names []string) {
	good := 12 + 20*random.Float64()
	ways = map[string]*way{
		"":       wayOf(randomTrip(random), randomLink(random, good*(0.05+0.15*random.Float64()))),
		"good":   wayOf(randomTrip(random), randomLink(random, good)),
		"loaded": wayOf(10*time.Millisecond, &link{rate: good * 0.1 * 1e6, buffer: 1600 * time.Millisecond, calm: 1}),
	}
	for i := range 4 {
		ways[fmt.Sprint("mid", i)] = wayOf(randomTrip(random), randomLink(random, good*(0.2+0.4*random.Float64())))
	}
	if w := ways["mid0"]; random.IntN(2) == 0 { // loses packets at random
		w.loss = lossFor(w.links[0].rate/2e6, w.trip)
	}
	return ways, []string{"good", "loaded", "mid0", "mid1", "mid2", "mid3"}
}

// gives returns what one connection alone gets over these paths.
func gives(t *testing.T, seed uint64, ways map[string]*way, over []string, long time.Duration) float64 {
	t.Helper()
	f := newFluid(t, seed, ways, threeSubflows)
	f.offer(over...)
	d := f.connect(0)
	f.run(10 * time.Second)
	return f.rate(d, long)
}

// bestPair returns the pair of waypoints that gives most, and how much.
func bestPair(t *testing.T, seed uint64, ways map[string]*way, names []string) (pair []string, most float64) {
	t.Helper()
	for i, a := range names {
		for _, b := range names[:i] {
			if got := gives(t, seed, ways, []string{a, b}, 5*time.Second); got > most {
				pair, most = []string{a, b}, got
			}
		}
	}
	return pair, most
}

// reaches returns the time until a connection gets this rate over half a second and keeps nine tenths of it for two
// seconds.
func (f *fluid) reaches(d *transfer, want float64, most time.Duration) (took time.Duration) {
	began := f.now
	for f.now.Sub(began) < most {
		at := f.now.Sub(began)
		if f.rate(d, 500*time.Millisecond) >= want {
			return at
		}
	}
	return most
}

// A first connection finds the best pair of six waypoints within the limit of a stock server.
func TestSixWaypoints(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 1))
	late, less, again, tried := 0, 0, 0, int(networks(12))
	for i := range uint64(tried) {
		ways, names := six(random)
		pair, best := bestPair(t, i, ways, names)
		f := offeredTo(t, i, ways, names...)
		d := f.connect(0)
		took := f.reaches(d, 0.9*best, 20*time.Second)
		f.run(60*time.Second - f.now.Sub(f.start))
		share := 8 * float64(d.bytes) / 60 / best
		settled := f.rate(d, 10*time.Second) / best
		if took > 10*time.Second || settled < 0.9 {
			late++
		}
		if share < 0.88 {
			less++
		}
		if took > 10*time.Second || settled < 0.9 || share < 0.88 || testing.Verbose() {
			t.Logf("%d: %v %.1f: after %v, %.2f of the bytes, settled at %.2f: %v", i, pair, best/1e6, took, share, settled, d.log)
			for _, r := range f.m.Snapshot(f.now).Conns[0].Tried {
				t.Logf("  %+v", r)
			}
			for w, x := range ways {
				t.Logf("  %s %v %.1f loss %.3f buffer %v", w, x.trip, x.links[0].rate/1e6, x.loss, x.links[0].buffer)
			}
		}
		f.close(d)
		f.run(2 * time.Second)
		d = f.connect(0)
		if took := f.reaches(d, 0.9*best, 10*time.Second); took > 3*time.Second {
			again++
			t.Logf("%d again: after %v: %v", i, took, d.log)
		}
	}
	if late > max(1, tried/12) || less > max(1, tried/12) || again > max(1, tried/12) {
		t.Errorf("of %d: %d late, %d carry less, %d late with a history", tried, late, less, again)
	}
}

// When the good waypoint turns bad, the connection is back at the best of the others within five seconds.
func TestSixWaypointsTurn(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 2))
	late, tried := 0, int(networks(12))
	for i := range uint64(tried) {
		ways, names := six(random)
		_, best := bestPair(t, i, ways, slices.DeleteFunc(slices.Clone(names), func(w string) bool { return w == "good" }))
		f := offeredTo(t, i, ways, names...)
		d := f.connect(0)
		f.run(20 * time.Second)
		n := len(d.log)
		ways["good"].links[0].rate /= 16
		if i%2 == 0 { // its data comes late, and the other subflows' data waits for it
			ways["good"].loss, d.held = 0.05, "good"
		}
		if took := f.reaches(d, 0.9*best, 20*time.Second); took > 5*time.Second {
			late++
			t.Logf("%d: %.1f after %v: %v THEN %v", i, best/1e6, took, d.log[:n], d.log[n:])
		}
	}
	if late > max(1, tried/12) {
		t.Errorf("%d of %d are late", late, tried)
	}
}

// offeredTo returns a host with waypoints on offer, towards a server that takes two more subflows, as Linux does by
// default.
func offeredTo(t *testing.T, seed uint64, ways map[string]*way, names ...string) *fluid {
	t.Helper()
	f := newFluid(t, seed, ways, threeSubflows)
	f.limit = 2
	f.offer(names...)
	f.idle = names
	return f
}

// If the direct path is the best, trying costs at most one percent.
func TestDirectIsBest(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 3))
	for i := range networks(12) {
		home := randomLink(random, 10+20*random.Float64())
		ways := map[string]*way{"": wayOf(randomTrip(random), home)}
		var names []string
		for n := range 6 {
			name := fmt.Sprint("w", n)
			names = append(names, name)
			ways[name] = &way{trip: randomTrip(random), links: []*link{home, randomLink(random, 5+20*random.Float64())}}
		}
		f := offeredTo(t, i, ways, names...)
		d := f.connect(0)
		alone := newFluid(t, i, ways, nil)
		a := alone.connect(0)
		f.run(20 * time.Second)
		alone.run(20 * time.Second)
		if share := float64(d.bytes) / float64(a.bytes); share < 0.99 {
			t.Errorf("%d: %.3f: %v", i, share, d.log)
		}
		n := len(d.log)
		f.run(5 * time.Minute)
		if joins := strings.Count(strings.Join(d.log[n:], ";"), "join"); joins > 8 {
			t.Errorf("%d: %d joins in five minutes: %v", i, joins, d.log[n:])
		}
	}
}

// On networks that do not change, the waypoints in use do not change either, except in challenges, which become
// rarer.
func TestScreenedStays(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 4))
	for i := range networks(6) {
		ways, names := six(random)
		f := offeredTo(t, i, ways, names...)
		d := f.connect(0)
		f.run(time.Minute)
		n := len(d.log)
		f.run(20 * time.Minute)
		if joins := strings.Count(strings.Join(d.log[n:], ";"), "join"); joins > 8 {
			t.Errorf("%d: %d joins in 20 minutes: %v THEN %v", i, joins, d.log[:n], d.log[n:])
		}
	}
}

// Two waypoints that share a bottleneck are not used together if a third gives more beside one of them, and less
// alone.
func TestSharedBottleneckIsLeft(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 5))
	late, tried := 0, int(networks(12))
	for i := range uint64(tried) {
		rate := 12 + 12*random.Float64()
		shared := randomLink(random, rate)
		ways := map[string]*way{
			"":      wayOf(randomTrip(random), randomLink(random, 2)),
			"one":   {trip: randomTrip(random), links: []*link{shared}},
			"other": {trip: randomTrip(random), links: []*link{shared}},
			"third": wayOf(randomTrip(random), randomLink(random, rate*(0.25+0.2*random.Float64()))),
		}
		f := offeredTo(t, i, ways, "one", "other", "third")
		d := f.connect(0)
		f.run(90 * time.Second)
		if d.over("third") == nil {
			late++
			t.Logf("%d: %v", i, d.log)
		}
	}
	if late > max(1, tried/12) {
		t.Errorf("%d of %d use what is shared", late, tried)
	}
}

// A waypoint that recovers is taken again.
func TestLoweredWaypointIsTriedAgain(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 6))
	late, tried := 0, int(networks(12))
	for i := range uint64(tried) {
		ways, names := six(random)
		f := offeredTo(t, i, ways, names...)
		d := f.connect(0)
		f.run(20 * time.Second)
		good := ways["good"].links[0]
		good.rate /= 16
		f.run(3 * time.Minute)
		good.rate *= 16
		n := len(d.log)
		f.run(8 * time.Minute)
		if d.over("good") == nil {
			late++
			t.Logf("%d: %v THEN %v", i, d.log[:n], d.log[n:])
		}
	}
	if late > max(1, tried/12) {
		t.Errorf("%d of %d stay without it", late, tried)
	}
}

// Messages, short connections and programs that send less than the paths carry try nothing.
func TestNothingIsTried(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 7))
	for i := range networks(12) {
		ways, names := six(random)
		f := offeredTo(t, i, ways, names...)
		d := f.connect(200e3)
		f.run(time.Minute)
		if n := len(d.log); n > 2 && strings.Contains(strings.Join(d.log, ";"), "end ") {
			t.Errorf("a stream: %v", d.log)
		}
		f.close(d)
		d = f.connect(0)
		f.run(time.Second)
		if n := len(d.log); n > 2 {
			t.Errorf("a short one: %v", d.log)
		}
	}
}

// Twelve equal hosts that try six waypoints of different capacity at the same time do not all end up at the largest
// ones.
func TestHostsSpread(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 8))
	for i := range networks(4) {
		ways := map[string]*way{}
		var names []string
		capacity := 0.0
		for n := range 6 {
			name := fmt.Sprint("w", n)
			names = append(names, name)
			ways[name] = wayOf(time.Duration(20+random.IntN(20))*time.Millisecond, randomLink(random, float64(2*(n+1))))
			capacity += 2e6 * float64(n+1)
		}
		var hosts []*fluid
		var transfers []*transfer
		for n := range uint64(12) {
			own := map[string]*way{"": wayOf(40*time.Millisecond, randomLink(random, 1))}
			for name, w := range ways {
				own[name] = w
			}
			capacity += 1e6
			f := newFluid(t, 100*i+n, own, nil)
			f.limit = 2
			f.offer(names...)
			hosts = append(hosts, f)
			transfers = append(transfers, f.connect(0))
		}
		over := func(long time.Duration) (total, jain float64) {
			before := make([]uint64, len(transfers))
			for n, d := range transfers {
				before[n] = d.bytes
			}
			for end := hosts[0].now.Add(long); hosts[0].now.Before(end); {
				stepTogether(hosts)
			}
			squares := 0.0
			for n, d := range transfers {
				rate := 8 * float64(d.bytes-before[n]) / long.Seconds()
				total += rate
				squares += rate * rate
			}
			return total / capacity, total * total / squares / float64(len(transfers))
		}
		over(20 * time.Second)
		if total, jain := over(40 * time.Second); total < 0.65 || jain < 0.65 {
			t.Errorf("%d: %.2f of the capacity, Jain's index %.2f", i, total, jain)
		}
	}
}

// If the direct path carries most, nothing is screened: waypoints are tried one at a time, and the connection has no less
// than on the direct path alone.
func TestDirectCarriesMost(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 9))
	for i := range networks(8) {
		ways, names := six(random)
		ways[""] = wayOf(10*time.Millisecond, randomLink(random, 100))
		f := offeredTo(t, i, ways, names...)
		d := f.connect(0)
		f.run(15 * time.Second)
		alone := newFluid(t, i, ways, nil)
		a := alone.connect(0)
		alone.run(15 * time.Second)
		if log := strings.Join(d.log, ";"); strings.Count(log, "join") > 6 || d.bytes < a.bytes {
			t.Errorf("%d: %d bytes, alone %d: %v", i, d.bytes, a.bytes, d.log)
		}
	}
}

// oneDetour returns a host whose connections have one detour. direct is the round trip of the direct path, and that through each
// waypoint is 40 ms. rates has the rates in Mbit/s, by waypoint.
func oneDetour(t *testing.T, seed uint64, direct, buffer time.Duration, rates map[string]float64) *fluid {
	ways := map[string]*way{}
	for name, mbit := range rates {
		trip := 40 * time.Millisecond
		if name == "" {
			trip = direct
		}
		ways[name] = wayOf(trip, queued(mbit, buffer))
	}
	names := slices.Sorted(maps.Keys(rates))[1:] // without the direct path
	f := newFluid(t, seed, ways, func(c *path.Config) { c.Policy = policy.Detours{Subflows: 2} })
	f.offer(names...)
	f.idle = names
	return f
}

// A single detour that carries less than the direct path does not keep others from being tried: the waypoint that gives
// most is found in half a minute.
func TestBetterWaypointIsFoundBesideGoodDirectPath(t *testing.T) {
	took := map[bool]int{}
	for i := range networks(24) {
		f := oneDetour(t, i, 30*time.Millisecond, 60*time.Millisecond, map[string]float64{"": 10, "best": 30, "mid0": 6, "mid1": 6, "mid2": 6})
		d := f.connect(0)
		soon := f.reaches(d, 0.9*40e6, 60*time.Second) <= 30*time.Second
		took[soon]++
		if !soon {
			t.Logf("%d: %v", i, d.log)
		}
	}
	if took[false] > took[true]/4 {
		t.Errorf("%d late, %d in time", took[false], took[true])
	}
}

// Whether the direct path carries most is not decided before the rate of a long detour is known. Until then its slow
// start hides what it gives, and connections that began with poor detours kept them for twenty seconds.
func TestScreeningWaitsForLongDetour(t *testing.T) {
	began := 0
	for i := range uint64(60) {
		ways := map[string]*way{
			"":       wayOf(60*time.Millisecond, queued(3, 50*time.Millisecond)),
			"far":    wayOf(240*time.Millisecond, queued(8, 50*time.Millisecond)),
			"loaded": wayOf(20*time.Millisecond, queued(2, 1600*time.Millisecond)),
			"good":   wayOf(25*time.Millisecond, queued(16, 50*time.Millisecond)),
			"near":   wayOf(38*time.Millisecond, queued(8, 50*time.Millisecond)),
		}
		f := offeredTo(t, i, ways, "far", "loaded", "good", "near")
		d := f.connect(0)
		f.run(500 * time.Millisecond)
		if d.over("far") == nil || d.over("loaded") == nil {
			continue
		}
		began++
		f.run(9500 * time.Millisecond)
		if d.over("good") == nil {
			t.Errorf("%d: %v", i, d.log)
		}
	}
	if began == 0 {
		t.Error("no connection began with the poor detours")
	}
}

// A connection whose detours are known to be the best of at least half of the waypoints does not give their places to
// all others. It tries those one at a time, and later.
func TestInformedConnectionDoesNotScreen(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 10))
	for i := range networks(12) {
		ways, names := six(random)
		f := offeredTo(t, i, ways, "good", "loaded", "mid1")
		d := f.warm()
		f.close(d)
		f.run(2 * time.Second)
		f.offer(names...)
		d = f.connect(0)
		f.run(12 * time.Second)
		if log := strings.Join(d.log, ";"); d.over("good") == nil || strings.Contains(log, "end ") {
			t.Errorf("%d: %v", i, d.log)
		}
		n := len(d.log)
		f.run(3 * time.Minute)
		if log := strings.Join(d.log[n:], ";"); !strings.Contains(log, "join ") {
			t.Errorf("%d: nothing was tried: %v", i, d.log)
		}
	}
}

// A detour that is set aside as a burden while the connection screens does not keep its place from better ones.
func TestBurdenDoesNotKeepItsPlace(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 11))
	late, burdens, tried := 0, 0, int(networks(24))
	for i := range uint64(tried) {
		ways, names := six(random)
		_, best := bestPair(t, i, ways, slices.DeleteFunc(slices.Clone(names), func(w string) bool { return w == "mid0" }))
		f := offeredTo(t, i, ways, names...)
		d := f.connect(0)
		d.burden = "mid0"
		took := f.reaches(d, 0.9*best, 30*time.Second)
		for _, left := range f.m.Snapshot(f.now).Conns[0].Left {
			if left.Reason.Cause == path.CauseBurden {
				burdens++
				break
			}
		}
		if took > 12*time.Second {
			late++
			t.Logf("%d: after %v: %v %q", i, took, d.log, f.why(d, "mid0"))
		}
	}
	if late > max(1, tried/12) || burdens < tried/2 {
		t.Errorf("%d of %d are late; %d burdens", late, tried, burdens)
	}
}

// Once another waypoint has shown that detours carry more than the direct path, the connection screens the rest.
func TestScreensAfterWonChallenge(t *testing.T) {
	began := 0
	for i := range uint64(48) {
		f := oneDetour(t, i, 60*time.Millisecond, 200*time.Millisecond, map[string]float64{"": 3, "poor": 2, "best": 30, "mid0": 8, "mid1": 8, "mid2": 8, "mid3": 8})
		d := f.connect(0)
		f.run(500 * time.Millisecond)
		if d.over("poor") == nil {
			continue
		}
		began++
		if took := f.reaches(d, 0.9*33e6, time.Minute); took > 25*time.Second {
			t.Errorf("%d: after %v: %v", i, took, d.log)
		}
	}
	if began == 0 {
		t.Error("no connection began with the poor detour")
	}
}

// The detour that comes after a collapsed one is no burden because data that the other had not delivered is missing.
func TestDetourAfterFlightIsNoBurden(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 12))
	fled, burdens, tried := 0, 0, int(networks(24))
	for i := range uint64(tried) {
		ways, names := six(random)
		f := offeredTo(t, i, ways, names...)
		d := f.connect(0)
		f.run(20 * time.Second)
		if d.over("good") == nil {
			continue
		}
		ways["good"].links[0].rate /= 16
		d.resent = "good"
		f.run(6 * time.Second)
		left := map[path.Cause]int{}
		for _, l := range f.m.Snapshot(f.now).Conns[0].Left {
			if f.now.Sub(l.At) < 6*time.Second {
				left[l.Reason.Cause]++
			}
		}
		fled += left[path.CauseCollapsed]
		if left[path.CauseBurden] > 0 {
			burdens++
			t.Logf("%d: %v", i, d.log)
		}
	}
	if burdens > max(1, tried/12) || fled < tried/6 {
		t.Errorf("%d of %d connections left the collapsed detour, and %d took the next one for a burden", fled, tried, burdens)
	}
}

// While a detour collapses, data that waits is that of the collapsing detour, so that another one is no burden.
func TestBesideCollapsingDetourIsNoBurden(t *testing.T) {
	began, burdens := 0, 0
	for i := range uint64(24) {
		f := offeredTo(t, i, map[string]*way{
			"":     wayOf(60*time.Millisecond, queued(3, 60*time.Millisecond)),
			"good": wayOf(40*time.Millisecond, queued(16, 800*time.Millisecond)),
			"far":  wayOf(170*time.Millisecond, queued(2, 60*time.Millisecond)),
		}, "good", "far")
		d := f.connect(0)
		f.run(20 * time.Second)
		if !d.carries("good") || !d.carries("far") {
			continue
		}
		began++
		f.ways["good"].links[0].rate /= 16
		f.run(500 * time.Millisecond)
		d.burden = "far"
		f.run(700 * time.Millisecond)
		for _, l := range f.m.Snapshot(f.now).Conns[0].Left {
			if l.Waypoint == "far" && l.Reason.Cause == path.CauseBurden {
				burdens++
				t.Logf("%d: %v", i, d.log)
			}
		}
	}
	if began < 12 || burdens > 0 {
		t.Errorf("%d of %d burdens", burdens, began)
	}
}

// A burden carries again as soon as the network gives the connection less without it than the burden had, and not earlier.
func TestBurdenIsMissed(t *testing.T) {
	for _, c := range []struct {
		name   string
		direct float64 // rate of the direct path in Mbit/s
		falls  float64 // part of the other detour's rate that is left
		demand float64 // as transfer.demand, from then on
		wanted bool
	}{
		{"little is left", 1, 0.02, 0, true},
		{"enough is left", 1, 0.5, 0, false},
		{"the program sends less", 8, 1, 3e6, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			burdens, back, tried := 0, 0, int(networks(24))
			for i := range uint64(tried) {
				f := offeredTo(t, i, map[string]*way{
					"":     wayOf(60*time.Millisecond, queued(c.direct, 60*time.Millisecond)),
					"good": wayOf(40*time.Millisecond, queued(16, 60*time.Millisecond)),
					"far":  wayOf(170*time.Millisecond, queued(4, 60*time.Millisecond)),
				}, "good", "far")
				d := f.connect(0)
				f.run(20 * time.Second)
				d.burden = "far"
				for end := f.now.Add(5 * time.Second); d.carries("far") && f.now.Before(end); {
					f.run(100 * time.Millisecond)
				}
				if d.carries("far") || d.over("far") == nil || !d.carries("good") {
					continue
				}
				burdens++
				d.burden = ""
				f.ways["good"].links[0].rate *= c.falls
				d.demand = c.demand
				f.run(8 * time.Second)
				if d.carries("far") {
					back++
				}
				if d.carries("far") != c.wanted {
					t.Logf("%d: %v", i, d.log)
				}
			}
			if burdens < tried/3 || c.wanted && back < burdens-burdens/8 || !c.wanted && back > 0 {
				t.Errorf("%d burdens, %d of them carry again", burdens, back)
			}
		})
	}
}
