package path_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// behindHome returns paths that share the line at home, which is their bottleneck: a near one, and one with a long
// queue.
func behindHome(random *rand.Rand) (ways map[string]*way, home *link) {
	home = randomLink(random, 12+20*random.Float64())
	return map[string]*way{
		"":       wayOf(randomTrip(random), home),
		"near":   wayOf(randomTrip(random), home, randomLink(random, 100)),
		"loaded": wayOf(20*time.Millisecond, home, &link{rate: home.rate * 0.1, buffer: 1600 * time.Millisecond, calm: 1}),
	}, home
}

// waitsFor makes a connection's data wait for the slowest path: it gets nine tenths of the line while that path's
// queue is 1.6 s long.
func (d *transfer) waitsFor(home *link) *transfer {
	d.window = 0.9 * home.rate * 1.2
	return d
}

func (d *transfer) carries(waypoint string) bool {
	l := d.over(waypoint)
	return l != nil && !l.backup
}

// If the line at home limits all paths, a detour that makes the others wait soon stands by, and dcol why says so.
func TestDetourThatAddsNothingStandsBy(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 21))
	for i := range networks(12) {
		ways, home := behindHome(random)
		f := newFluid(t, i, ways, threeSubflows)
		f.offer("near", "loaded")
		d := f.connect(0).waitsFor(home)
		f.run(7 * time.Second)
		if d.carries("loaded") {
			t.Errorf("%d: carries: %v", i, d.log)
			continue
		}
		f.run(3 * time.Second)
		alone := newFluid(t, i, ways, nil)
		a := alone.connect(0)
		alone.run(10 * time.Second)
		if share := f.rate(d, 20*time.Second) / alone.rate(a, 20*time.Second); share < 0.99 {
			t.Errorf("%d: %.3f: %v", i, share, d.log)
		}
		if why := f.why(d, "loaded"); !strings.Contains(why, "stands by: bulk traffic got ") {
			t.Errorf("%d: %s", i, why)
		}
	}
}

// A slow detour soon stands by if the sender stops on the direct path again and again, until the detour has carried a
// burst.
func TestSlowDetourThatPausesOthersStandsBy(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 50))
	var late []string
	for i := range networks(12) {
		direct := randomLink(random, 3+3*random.Float64())
		slow := randomLink(random, 0.1*direct.rate/1e6)
		f := newFluid(t, i, map[string]*way{"": wayOf(randomTrip(random), direct), "slow": wayOf(180*time.Millisecond, slow)}, nil)
		f.offer("slow")
		d := f.connect(0)
		for range 4 {
			f.run(time.Second)
			d.stopped = "slow"
			f.run(500 * time.Millisecond)
			d.stopped = ""
		}
		if d.carries("slow") {
			late = append(late, fmt.Sprintf("%d: %v", i, d.log))
		}
	}
	if uint64(len(late)) > networks(12)/4 { // without the detour, the direct path may lose packets by chance
		t.Errorf("carries after 6 s: %v", late)
	}
}

// A detour that is omitted continues to stand by if the direct path pauses until the detour's queue has drained.
func TestPauseAfterOmissionBegins(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 62))
	var again []string
	for i := range networks(12) {
		direct := randomLink(random, 3+3*random.Float64())
		direct.calm = 100
		slow := &link{rate: 0.1 * direct.rate, buffer: 100 * time.Millisecond, calm: 100}
		f := newFluid(t, i, map[string]*way{"": wayOf(randomTrip(random), direct), "slow": wayOf(180*time.Millisecond, slow)}, nil)
		f.offer("slow")
		d := f.connect(0)
		for d.carries("slow") && f.now.Sub(f.start) < 20*time.Second {
			f.run(time.Second)
			d.stopped = "slow"
			for end := f.now.Add(500 * time.Millisecond); f.now.Before(end) && d.carries("slow"); {
				f.run(50 * time.Millisecond)
			}
			d.stopped = ""
		}
		n := len(d.log)
		d.stopped = "slow"
		f.run(700 * time.Millisecond)
		d.stopped = ""
		f.run(6 * time.Second)
		if d.carries("slow") {
			again = append(again, fmt.Sprintf("%d: %v THEN %v", i, d.log[:n], d.log[n:]))
		}
	}
	if len(again) > 0 {
		t.Errorf("carries: %v", again)
	}
}

// Detours that add much carry nearly all the time.
func TestOmissionsCostLittle(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 22))
	for i := range networks(16) {
		sum := 0.0
		ways := map[string]*way{"": nil, "one": nil, "other": nil}
		for _, name := range []string{"", "one", "other"} {
			k := randomLink(random, 5+20*random.Float64())
			if random.IntN(2) == 0 {
				k.buffer += 250 * time.Millisecond
			}
			ways[name] = wayOf(randomTrip(random), k)
			sum += k.rate
		}
		f := newFluid(t, i, ways, threeSubflows)
		f.offer("one", "other")
		d := f.connect(0)
		f.run(4 * time.Second)
		before := d.bytes
		for _, until := range []time.Duration{20 * time.Second, time.Minute, 5 * time.Minute} {
			most := 0.01
			if until < time.Minute {
				most = 0.0125
			}
			f.run(until - f.now.Sub(f.start))
			lost := sum*(until-4*time.Second).Seconds() - 8*float64(d.bytes-before)
			if share := lost / sum / until.Seconds(); share > most {
				t.Errorf("%d, after %v: %.3f lost: %v", i, until, share, d.log)
			}
		}
		if !d.carries("one") || !d.carries("other") {
			t.Errorf("%d: %v", i, d.log)
		}
	}
}

// If a detour stands by and the direct path becomes worse or dies, the detour carries again.
func TestDetourThatAddsNothingCarriesAgain(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 23))
	for i := range networks(12) {
		for _, left := range []float64{0.5, 0.1, 0} {
			ways, _ := behindHome(random)
			direct := randomLink(random, 1000)
			ways[""].links = append(ways[""].links, direct)
			f := newFluid(t, i, ways, threeSubflows)
			f.offer("near", "loaded")
			d := f.connect(0)
			f.run(15 * time.Second)
			n, aside := len(d.log), !d.carries("near") || !d.carries("loaded")
			if !aside {
				t.Errorf("%d: none stands by: %v", i, d.log)
				continue
			}
			direct.rate = left * ways[""].links[0].rate
			f.run(2500 * time.Millisecond)
			if !strings.Contains(strings.Join(d.log[n:], ";"), "promote") && !d.carries("near") {
				t.Errorf("%d, %.1f of the direct path left: %v THEN %v", i, left, d.log[:n], d.log[n:])
			}
		}
	}
}

// If two detours share a bottleneck, at most one of them stands by.
func TestOneOfTwoThatShareStays(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 24))
	for i := range networks(12) {
		shared, direct := randomLink(random, 2+6*random.Float64()), randomLink(random, 20)
		shared.buffer += 300 * time.Millisecond
		ways := map[string]*way{"": wayOf(randomTrip(random), direct), "one": wayOf(randomTrip(random), shared), "other": wayOf(randomTrip(random), shared)}
		f := newFluid(t, i, ways, threeSubflows)
		f.offer("one", "other")
		d := f.connect(0)
		f.run(40 * time.Second)
		if got := f.rate(d, 2*time.Minute) / (shared.rate + direct.rate); got < 0.99 {
			t.Errorf("%d: %.3f: %v", i, got, d.log)
		}
	}
}

// Nothing is omitted if a program sends less than the paths carry, or sends messages.
func TestProgramsWithLessAreNotJudged(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 25))
	for i := range networks(12) {
		ways, home := behindHome(random)
		ways["loaded"].links = ways["loaded"].links[:1]
		f := newFluid(t, i, ways, threeSubflows)
		f.offer("near", "loaded")
		d := f.connect(0.6 * home.rate)
		f.run(time.Minute)
		if strings.Contains(fmt.Sprint(d.log), "demote") && (!d.carries("near") || !d.carries("loaded")) {
			t.Errorf("%d: %v", i, d.log)
		}
	}
}

// A waypoint that adds much takes the place of a detour that stands by.
func TestPlaceOfOneThatAddsNothingIsGiven(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 26))
	for i := range networks(12) {
		ways, _ := behindHome(random)
		ways["good"] = wayOf(randomTrip(random), randomLink(random, 15))
		f := offeredTo(t, i, ways, "near", "loaded")
		d := f.connect(0)
		f.run(12 * time.Second)
		if d.carries("loaded") {
			t.Errorf("%d: carries: %v", i, d.log)
		}
		f.offer("good")
		f.idle = append(f.idle, "good")
		f.run(40 * time.Second)
		if !d.carries("good") || d.over("near") != nil && d.over("loaded") != nil {
			t.Errorf("%d: %v", i, d.log)
		}
	}
}
