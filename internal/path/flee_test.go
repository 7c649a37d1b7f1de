package path_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// turning returns a connection over bob that knows what carol gives.
func turning(t *testing.T, seed uint64, random *rand.Rand) (f *fluid, d *transfer, bob *link) {
	t.Helper()
	bob = randomLink(random, 10+20*random.Float64())
	ways := map[string]*way{
		"":      wayOf(randomTrip(random), randomLink(random, 2+4*random.Float64())),
		"bob":   {trip: randomTrip(random), links: []*link{bob}},
		"carol": wayOf(randomTrip(random), randomLink(random, bob.rate/1e6*(0.5+0.4*random.Float64()))),
	}
	if seed%3 == 0 {
		ways["bob"].loss = lossFor(bob.rate/1e6, ways["bob"].trip) * random.Float64()
	}
	f = newFluid(t, seed, ways, nil)
	f.offer("carol")
	f.close(f.warm())
	f.withdraw("carol")
	f.offer("bob")
	d = f.connect(0)
	f.run(12 * time.Second)
	f.offer("carol")
	f.run(3 * time.Second)
	d.log = nil
	return f, d, bob
}

// A detour that turns bad in the middle of a transfer is left within seconds, for a waypoint that was measured or
// not.
func TestCollapsedDetourIsLeft(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 1))
	late, fled, tried := 0, 0, int(networks(40))
	var slowest time.Duration
	for i := range uint64(tried) {
		f, d, bob := turning(t, i, random)
		bob.rate *= 0.02 + 0.15*random.Float64()
		turned := f.now
		for d.over("carol") == nil && f.now.Sub(turned) < 20*time.Second {
			f.run(dt)
		}
		took := f.now.Sub(turned)
		slowest = max(slowest, took)
		if took > 3500*time.Millisecond {
			late++
			t.Logf("after %v: %v to %.1f Mbit/s, direct %v: %v", took, f.ways["bob"].trip, bob.rate/1e6, f.ways[""].trip, d.log)
		}
		if got, want := f.rate(d, 10*time.Second), f.ways["carol"].links[0].rate; got < 0.8*want && took < 20*time.Second {
			t.Errorf("%.1f of carol's %.1f: %v", got/1e6, want/1e6, d.log)
		}
		if took < 3500*time.Millisecond && !strings.Contains(strings.Join(d.log, ";"), "demote bob") {
			fled++
			if !strings.Contains(f.why(d, "carol"), "in place of bob, which fell from ") {
				t.Errorf("why carol: %s", f.why(d, "carol"))
			}
		}
	}
	if fled < tried/2 {
		t.Errorf("only %d fled", fled)
	}
	t.Logf("of %d, %d took longer than 3.5 s, at most %v", tried, late, slowest)
	if late > max(1, tried/20) {
		t.Errorf("%d of %d are late", late, tried)
	}
}

// A detour that is good for ten seconds and then bad, again and again, is left, and tried again less and less often.
func TestFlappingDetourIsLeft(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 2))
	for i := range networks(8) {
		f, d, bob := turning(t, i, random)
		good := bob.rate
		for range 30 {
			bob.rate = good * 0.05
			f.run(10 * time.Second)
			bob.rate = good
			f.run(10 * time.Second)
		}
		if joins := strings.Count(strings.Join(d.log, ";"), "join"); joins > 5 || d.over("carol") == nil {
			t.Errorf("%v", d.log)
		}
	}
}

// If all detours flap, a connection changes less and less often.
func TestAllFlap(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 3))
	for i := range networks(8) {
		f, d, bob := turning(t, i, random)
		flaps := []*link{bob, f.ways["carol"].links[0]}
		good := []float64{flaps[0].rate, flaps[1].rate}
		for range 60 {
			n := random.IntN(2)
			flaps[n].rate = good[n] * 0.05
			f.run(time.Duration(3+random.IntN(12)) * time.Second)
			flaps[n].rate = good[n]
			f.run(time.Duration(3+random.IntN(12)) * time.Second)
		}
		if joins := strings.Count(strings.Join(d.log, ";"), "join"); joins > 12 {
			t.Errorf("%d times in a quarter of an hour: %v", joins, d.log)
		}
	}
}

// A connection does not flee because a program pauses, traffic moves to another subflow, other traffic uses all paths
// or a third of them, or connections come and go.
func TestNothingToFlee(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 4))
	for name, happens := range map[string]func(f *fluid, d *transfer, bob *link){
		"nothing": func(f *fluid, _ *transfer, _ *link) { f.run(2 * time.Minute) },
		"pauses": func(f *fluid, d *transfer, _ *link) {
			for range 20 {
				d.paused = true
				f.run(time.Duration(500+random.IntN(6000)) * time.Millisecond)
				d.paused = false
				f.run(time.Duration(1000+random.IntN(6000)) * time.Millisecond)
			}
		},
		"the program has less at times": func(f *fluid, d *transfer, bob *link) {
			for range 20 {
				d.demand = bob.rate * (0.02 + 0.5*random.Float64())
				f.run(time.Duration(1+random.IntN(8)) * time.Second)
				d.demand = 0
				f.run(time.Duration(1+random.IntN(8)) * time.Second)
			}
		},
		"the program has little, and the scheduler varies": func(f *fluid, d *transfer, bob *link) {
			d.demand = bob.rate / 2
			f.run(3 * time.Minute)
		},
		"all paths get less": func(f *fluid, _ *transfer, bob *link) {
			all := []*link{bob, f.ways[""].links[0], f.ways["carol"].links[0]}
			for range 10 {
				for _, k := range all {
					k.rate /= 10
				}
				f.run(4 * time.Second)
				for _, k := range all {
					k.rate *= 10
				}
				f.run(8 * time.Second)
			}
		},
		"others take a third of it": func(f *fluid, _ *transfer, bob *link) {
			whole := bob.rate
			for range 20 {
				bob.rate = whole * (0.67 + 0.33*random.Float64())
				f.run(time.Duration(1+random.IntN(6)) * time.Second)
			}
		},
		"a second without a path": func(f *fluid, _ *transfer, bob *link) {
			whole := bob.rate
			for range 10 {
				bob.rate = whole / 50
				f.run(600 * time.Millisecond)
				bob.rate = whole
				f.run(10 * time.Second)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fled := 0
			var logs [][]string
			random = rand.New(rand.NewPCG(9, 4))
			for i := range networks(12) {
				f, d, bob := turning(t, i, random)
				happens(f, d, bob)
				if d.over("bob") == nil {
					fled++
					logs = append(logs, d.log)
				}
			}
			if fled > 2 { // the program's rate and losses may change together
				t.Errorf("%d of 12 fled: %v", fled, logs)
			}
		})
	}
}

// A waypoint that is near while idle and has a long queue under load is left for one that is known to give more.
func TestBadUnderLoad(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 6))
	for i := range networks(10) {
		ways := map[string]*way{
			"":      wayOf(60*time.Millisecond, randomLink(random, 3)),
			"bob":   wayOf(40*time.Millisecond, queued(2, 1600*time.Millisecond)),
			"carol": wayOf(70*time.Millisecond, randomLink(random, 6+10*random.Float64())),
		}
		f, transfers := overBob(t, i, ways, 0)
		f.run(40 * time.Second)
		if transfers[0].over("carol") == nil {
			t.Errorf("%v", transfers[0].log)
		}
	}
}

// If what is left of it is as good as any other waypoint, the connection stays.
func TestNoRefuge(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 5))
	for i := range networks(10) {
		f, d, bob := turning(t, i, random)
		f.withdraw("carol")
		bob.rate /= 20
		f.run(time.Minute)
		if d.over("bob") == nil || slices.ContainsFunc(d.log, func(line string) bool { return strings.Contains(line, "join") }) {
			t.Errorf("%v", d.log)
		}
	}
}
