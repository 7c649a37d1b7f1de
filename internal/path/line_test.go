package path_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// fiveBehindHome returns paths that share the line at home, which is their bottleneck. One of them has losses.
func fiveBehindHome(random *rand.Rand) (ways map[string]*way, home *link, names []string) {
	names = []string{"near", "far", "lossy", "good", "slow"}
	home = randomLink(random, 12+20*random.Float64())
	home.buffer = max(home.buffer, 60*time.Millisecond)
	ways = map[string]*way{"": wayOf(randomTrip(random), home)}
	for _, name := range names {
		ways[name] = wayOf(randomTrip(random), home, randomLink(random, 5+20*random.Float64()))
	}
	ways["lossy"].loss = 0.02
	return ways, home, names
}

// If sessions show that the line at home is the bottleneck, all detours soon stand by, and no other is tried out.
func TestLineIsTheBottleneck(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 31))
	for i := range networks(12) {
		ways, _, names := fiveBehindHome(random)
		f := offeredTo(t, i, ways, names...)
		d := f.connect(0)
		alone := newFluid(t, i, ways, nil)
		a := alone.connect(0)
		f.run(6 * time.Second)
		alone.run(6 * time.Second)
		n := len(d.log)
		if share := f.rate(d, 50*time.Second) / alone.rate(a, 50*time.Second); share < 0.995 {
			t.Errorf("%d: %.3f: %v", i, share, d.log)
		}
		if len(d.log) > n {
			t.Errorf("%d: %v THEN %v", i, d.log[:n], d.log[n:])
		}
		for _, l := range d.lanes {
			if l.waypoint != "" && !strings.HasPrefix(f.why(d, l.waypoint), "stands by, because this host's own line is the bottleneck: ") {
				t.Errorf("%d: %s", i, f.why(d, l.waypoint))
			}
		}
	}
}

// twoBehindSlowLine returns paths that share a slow line with a long queue. Both detours are long and lose packets.
func twoBehindSlowLine(random *rand.Rand) (ways map[string]*way, names []string) {
	home := randomLink(random, 3+7*random.Float64())
	home.buffer = time.Duration(100+700*random.Float64()) * time.Millisecond
	ways, names = map[string]*way{"": wayOf(randomTrip(random), home)}, []string{"long", "longer"}
	for _, name := range names {
		ways[name] = wayOf(80*time.Millisecond+randomTrip(random), home, randomLink(random, 2+8*random.Float64()))
		ways[name].loss = 0.002 + 0.004*random.Float64()
	}
	return ways, names
}

// stand reports whether all detours of the connection stand by.
func (d *transfer) stand() bool {
	return !slices.ContainsFunc(d.lanes, func(l *lane) bool { return l.waypoint != "" && !l.backup })
}

// If all waypoints carry, the line is found because the packets of their sessions wait equally long.
func TestLineBehindBusyWaypoints(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 37))
	for i := range networks(24) {
		ways, names := twoBehindSlowLine(random)
		f := offeredTo(t, i, ways, names...)
		if i%2 == 1 {
			f.lags = names[i/2%2] // its session has a longer round trip
		}
		d := f.connect(0)
		f.run(8 * time.Second)
		n := len(d.log)
		f.run(50 * time.Second)
		if !d.stand() || len(d.log) > n {
			t.Errorf("%d: %v THEN %v", i, d.log[:n], d.log[n:])
		}
	}
}

// A full line may lose packets of sessions with waypoints for so long that the sessions end. When a session is back, its detour
// joins again, and stands by as before.
func TestDetourRejoinsBehindLine(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 39))
	for i := range networks(24) {
		ways, names := twoBehindSlowLine(random)
		f := offeredTo(t, i, ways, names...)
		d := f.connect(0)
		f.run(10 * time.Second)
		n := len(d.log)
		for _, name := range names[:1+i%2] {
			f.withdraw(name)
			l := d.over(name)
			d.drop(l)
			f.tell(path.SubflowClosed{Token: d.token, Local: l.local, Remote: l.remote})
		}
		f.run(3 * time.Second)
		f.offer(names[:1+i%2]...)
		for range 20 {
			f.run(time.Second)
			if !d.stand() {
				t.Errorf("%d: carries: %v THEN %v", i, d.log[:n], d.log[n:])
				break
			}
		}
		if d.over(names[0]) == nil {
			t.Errorf("%d: does not join again: %v THEN %v", i, d.log[:n], d.log[n:])
		}
	}
}

// A direct path behind a full line that has lost many packets at once, and whose data waits for them, needs no
// detours. The packets are repaired together or one by one.
func TestHoleBehindLine(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 38))
	for i := range networks(24) {
		ways, names := twoBehindSlowLine(random)
		f := offeredTo(t, i, ways, names...)
		d := f.connect(0)
		d.trickles = 0.05 * float64(i%3)
		f.run(10*time.Second + time.Duration(random.Float64()*float64(4*time.Second)))
		n := len(d.log)
		for range 3 {
			d.holes = true
			f.run(time.Second)
			d.holes = false
			f.run(3 * time.Second)
			if !d.stand() {
				t.Errorf("%d: carries: %v THEN %v", i, d.log[:n], d.log[n:])
				break
			}
		}
	}
}

// Paths with queues of their own do not count as one line, except while both queues happen to be equally long for
// seconds.
func TestFullPathsAreNotOneLine(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 39))
	const most = 0.05
	n, taken := networks(96), 0
	for i := range n {
		ways, names, sum := map[string]*way{}, []string{"one", "other"}, 0.0
		rate, buffer := 5+20*random.Float64(), time.Duration(40+200*random.Float64())*time.Millisecond
		for _, name := range append(names, "") {
			k := randomLink(random, rate+random.Float64())
			k.buffer = buffer
			ways[name] = &way{trip: randomTrip(random), links: []*link{k}, near: true}
			sum += k.rate
		}
		f := offeredTo(t, i, ways, names...)
		d := f.connect(0)
		f.run(3 * time.Second)
		share := f.rate(d, 20*time.Second) / sum
		if strings.Contains(strings.Join(d.log, ";"), "demote") {
			taken++
		} else if share < 0.99 {
			t.Errorf("%d: %.3f: %v", i, share, d.log)
		}
		if share < 0.96 {
			t.Errorf("%d: %.3f: %v", i, share, d.log)
		}
	}
	if float64(taken) > 1+most*float64(n) {
		t.Errorf("%d of %d", taken, n)
	}
}

// After the line at home was the bottleneck, detours of later connections begin as backups. They carry if the direct
// path has another bottleneck. From then on detours to that network carry from the beginning.
func TestLineIsRemembered(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 34))
	carried := func(d *transfer) bool {
		return slices.ContainsFunc(d.lanes, func(l *lane) bool { return l.waypoint != "" && !l.backup })
	}
	for i := range networks(12) {
		ways, home, names := fiveBehindHome(random)
		f := offeredTo(t, i, ways, names...)
		first := f.connect(0)
		f.run(20 * time.Second)
		f.close(first)
		f.run(10 * time.Second)
		for range 3 {
			d := f.connect(0)
			for range 200 {
				if f.step(); carried(d) {
					t.Errorf("%d: %v", i, d.log)
					break
				}
			}
			if why := f.why(d, d.lanes[1].waypoint); why != "stands by: this host's own line was the bottleneck lately, so it would add nothing" {
				t.Errorf("%d: %s", i, why)
			}
			f.close(d)
		}
		ways[""].links = append(ways[""].links, randomLink(random, home.rate/1e6/4))
		ways[""].links[1].buffer = max(ways[""].links[1].buffer, 50*time.Millisecond)
		d := f.connect(0)
		f.run(3 * time.Second)
		if !carried(d) {
			t.Errorf("%d: does not carry: %v", i, d.log)
		}
		f.close(d)
		f.run(time.Second)
		d = f.connect(0)
		f.run(time.Second)
		if !carried(d) {
			t.Errorf("%d: does not carry at once: %v", i, d.log)
		}
	}
}

// If detours stand by and the direct path becomes worse or dies, they soon carry.
func TestLineIsNoBottleneckAnyMore(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 35))
	for i := range networks(12) {
		for _, left := range []float64{0.3, 0} {
			ways, home, names := fiveBehindHome(random)
			f := offeredTo(t, i, ways, names...)
			first := f.connect(0)
			f.run(20 * time.Second)
			f.close(first)
			d := f.connect(0)
			f.run(20 * time.Second)
			direct := randomLink(random, left*home.rate/1e6)
			direct.buffer = max(direct.buffer, 50*time.Millisecond)
			ways[""].links = append(ways[""].links, direct)
			f.run(5 * time.Second)
			if !slices.ContainsFunc(d.lanes, func(l *lane) bool { return l.waypoint != "" && !l.backup }) {
				t.Errorf("%d, %.1f of the direct path left: %v", i, left, d.log)
			}
		}
	}
}

// Detours that are called up because the direct path is silent for a moment soon stand by again.
func TestPauseBehindLine(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 36))
	for i := range networks(12) {
		ways, _, names := fiveBehindHome(random)
		f := offeredTo(t, i, ways, names...)
		first := f.connect(0)
		f.run(20 * time.Second)
		for _, d := range []*transfer{first, f.connect(0)} {
			f.run(20 * time.Second)
			n := len(d.log)
			d.paused = true
			f.run(800 * time.Millisecond)
			d.paused = false
			f.run(1500 * time.Millisecond)
			if log := strings.Join(d.log[n:], ";"); !strings.Contains(log, "promote") {
				t.Errorf("%d: none was called up: %v", i, d.log)
			}
			if slices.ContainsFunc(d.lanes, func(l *lane) bool { return l.waypoint != "" && !l.backup }) {
				t.Errorf("%d: carries: %v", i, d.log)
			}
		}
	}
}

// Other traffic of this host may fill its line, while detours add much to the direct path.
func TestFullLineIsNotTheBottleneck(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 32))
	for i := range networks(12) {
		ways := map[string]*way{"idle": wayOf(randomTrip(random), randomLink(random, 1))}
		sum := 0.0
		for _, name := range []string{"", "one", "other"} {
			k := randomLink(random, 5+20*random.Float64())
			ways[name] = wayOf(randomTrip(random), k)
			sum += k.rate
		}
		f := offeredTo(t, i, ways, "one", "other")
		f.idle, f.crowd = []string{"idle"}, 200*time.Millisecond
		d := f.connect(0)
		f.run(5 * time.Second)
		before := d.bytes
		f.run(2 * time.Minute)
		if share := 8 * float64(d.bytes-before) / sum / 120; share < 0.95 {
			t.Errorf("%d: %.3f: %v", i, share, d.log)
		}
		if !d.carries("one") || !d.carries("other") {
			t.Errorf("%d: %v", i, d.log)
		}
	}
}

// Sessions are measured often only while detours are young, and not for messages.
func TestSessionsAreMeasuredSeldom(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 33))
	for what, demand := range map[string]float64{"bulk traffic": 0, "messages": 20e3} {
		ways, names := six(random)
		f := offeredTo(t, 1, ways, names...)
		f.connect(demand)
		f.run(2 * time.Minute)
		if begin := f.asked; demand > 0 && begin > 0 || begin > 300 {
			t.Errorf("%d times in two minutes of %s", begin, what)
		}
		f.asked = 0
		f.run(time.Minute)
		if f.asked > 0 {
			t.Errorf("%d times in the minute after two of %s", f.asked, what)
		}
	}
}
