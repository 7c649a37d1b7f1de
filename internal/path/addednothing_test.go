package path_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// addedNothing returns a host on which the only detour has just added nothing to a connection that has ended. While the
// detour carries a burst, the sender stops on the direct path.
func addedNothing(t *testing.T, random *rand.Rand, seed uint64) (f *fluid, direct *link) {
	direct = randomLink(random, 3+3*random.Float64())
	slow := &link{rate: 0.1 * direct.rate, buffer: 100 * time.Millisecond, calm: 100}
	f = newFluid(t, seed, map[string]*way{"": wayOf(randomTrip(random), direct), "slow": wayOf(180*time.Millisecond, slow)}, nil)
	f.offer("slow")
	for range 5 { // without the detour, the direct path may lose packets by chance
		d := f.connect(0)
		f.runStopping(d, 10*time.Second)
		f.close(d)
		if !d.carries("slow") {
			return f, direct
		}
	}
	t.Errorf("%d: carries", seed)
	return f, direct
}

// runStopping lets the connections receive for this time. The sender of one stops again and again while the slow
// detour carries a burst.
func (f *fluid) runStopping(d *transfer, long time.Duration) {
	for end := f.now.Add(long); f.now.Before(end); {
		f.run(time.Second)
		d.stopped = "slow"
		f.run(500 * time.Millisecond)
		d.stopped = ""
	}
}

// Later connections begin without a detour that has added nothing. They try it again at intervals that double.
func TestConnectionsBeginWithoutDetourThatAddedNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 60))
	for i := range networks(12) {
		f, _ := addedNothing(t, random, i)
		tried := 0
		var last time.Time
		for f.now.Sub(f.start) < 10*time.Minute {
			d := f.connect(0)
			f.run(100 * time.Millisecond)
			begins := !d.carries("slow")
			if begins && tried == 0 {
				if why := f.why(d, "slow"); !strings.Contains(why, "stands by: bulk traffic lately got ") {
					t.Errorf("%d: %s", i, why)
				}
			}
			f.runStopping(d, 14*time.Second)
			if log := strings.Join(d.log, ";"); !begins || strings.Contains(log, "promote slow") {
				tried++
				last = f.now
			}
			f.close(d)
			f.run(time.Second)
		}
		// after about 1, 2 and 4 minutes; again in the next connection if the comparison had no result
		if tried < 2 || tried > 8 || f.now.Sub(last) < 45*time.Second {
			t.Errorf("%d: tried %d times, last %v before the end", i, tried, f.now.Sub(last))
		}
	}
}

// If the direct path gets less than earlier connections, or nothing, the detour soon carries.
func TestDetourThatAddedNothingIsNeeded(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 61))
	for i := range networks(12) {
		for _, left := range []float64{0.5, 0.1, 0} {
			f, direct := addedNothing(t, random, i)
			before := direct.rate
			direct.rate = max(left, 0.1) * before
			d := f.connect(0)
			f.run(3 * time.Second)
			direct.rate = left * before
			f.run(5 * time.Second)
			if !strings.Contains(strings.Join(d.log, ";"), "promote slow") && !d.carries("slow") {
				t.Errorf("%d, %.1f of the direct path left: %v", i, left, d.log)
			}
		}
	}
}

// A detour that begins to add something carries again, and so do those of later connections.
func TestDetourThatAddedNothingAddsMuch(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 62))
	for i := range networks(12) {
		f, _ := addedNothing(t, random, i)
		f.ways["slow"].links = []*link{randomLink(random, 40)}
		for range 6 {
			d := f.connect(0)
			f.run(20 * time.Second)
			f.close(d)
		}
		d := f.connect(0)
		f.run(time.Second)
		if !d.carries("slow") {
			t.Errorf("%d: %v", i, d.log)
		}
	}
}

// Connections that turn out to have messages use the detour.
func TestMessagesOverDetourThatAddedNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 63))
	for i := range networks(12) {
		f, _ := addedNothing(t, random, i)
		f.ways[""].trip = time.Second
		d := f.connect(20e3)
		f.run(20 * time.Second)
		if !d.carries("slow") {
			t.Errorf("%d: %v", i, d.log)
		}
	}
}
