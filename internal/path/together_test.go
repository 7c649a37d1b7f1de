package path_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// randomLink returns a link of about this many Mbit/s, with a random queue and random losses.
func randomLink(random *rand.Rand, rate float64) *link {
	return &link{
		rate: rate * 1e6, buffer: time.Duration(5+random.IntN(150)) * time.Millisecond, calm: 0.5 + 1.5*random.Float64(),
	}
}

func randomTrip(random *rand.Rand) time.Duration {
	return time.Duration(10+random.IntN(120)) * time.Millisecond
}

// lossFor returns the loss at which TCP gets twice this many Mbit/s.
func lossFor(rate float64, trip time.Duration) float64 {
	x := 1.2 * 11200 / trip.Seconds() / (2e6 * rate)
	return x * x
}

// overBob lets carol show what she gives one bulk connection, and then begins others over bob whose servers send this
// much.
func overBob(t *testing.T, seed uint64, ways map[string]*way, demands ...float64) (f *fluid, transfers []*transfer) {
	t.Helper()
	f = newFluid(t, seed, ways, nil)
	f.offer("carol")
	first := f.connect(0)
	f.run(20 * time.Second)
	f.close(first)
	f.withdraw("carol")
	f.offer("bob")
	for _, demand := range demands {
		transfers = append(transfers, f.connect(demand))
	}
	f.run(5 * time.Second)
	f.offer("carol")
	return f, transfers
}

// If a server's program sends less than the paths carry, however much less, that is no reason to leave a detour.
func TestLimitedSourceKeepsItsDetour(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 1))
	left := 0
	for i := range networks(20) {
		bob, carol := 10+30*random.Float64(), 10+30*random.Float64()
		ways := map[string]*way{
			"":      wayOf(randomTrip(random), randomLink(random, 3+10*random.Float64())),
			"bob":   wayOf(randomTrip(random), randomLink(random, bob)),
			"carol": wayOf(randomTrip(random), randomLink(random, carol)),
		}
		if i%3 == 0 {
			ways["bob"].loss = lossFor(min(bob, carol), ways["bob"].trip) * random.Float64()
		}
		demand := 1e6 * (2 + (min(bob, carol)-3)*random.Float64())
		f, transfers := overBob(t, i, ways, demand)
		f.run(5 * time.Minute)
		if d := transfers[0]; d.over("bob") == nil {
			left++
			t.Logf("%.1f of %.1f Mbit/s (%v, loss %.2f %%), through carol %.1f: %v", demand/1e6, bob, ways["bob"].trip, 100*ways["bob"].loss, carol, d.log)
		}
	}
	if left > 1 { // losses and a fall of the program's rate may coincide
		t.Errorf("%d of 20 leave", left)
	}
}

// Connections that share a detour leave it only for one that gives each of them more, and one at a time.
func TestTogetherOverOneDetour(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 2))
	for i := range networks(20) {
		n := 2 + random.IntN(3)
		bob := 10 + 30*random.Float64()
		carol := bob * (0.3 + random.Float64())
		ways := map[string]*way{
			"":      wayOf(randomTrip(random), randomLink(random, 4)),
			"bob":   wayOf(randomTrip(random), randomLink(random, bob)),
			"carol": wayOf(randomTrip(random), randomLink(random, carol)),
		}
		f, transfers := overBob(t, i, ways, make([]float64, n)...)
		f.run(5 * time.Minute)
		left := 0
		for _, d := range transfers {
			if d.over("bob") == nil {
				left++
			}
			changes := slices.DeleteFunc(slices.Clone(d.log), func(line string) bool { return strings.HasSuffix(line, " direct") })
			if len(changes) > 9 {
				t.Errorf("%d over bob's %.1f, carol %.1f: %v", n, bob, carol, d.log)
			}
		}
		// The last connection that left gained by it, and so would the next one have.
		share := func(rate float64, n int) float64 { return rate / float64(max(n, 1)) }
		if left > 0 && share(carol, left) < 1.2*share(bob, n-left+1) {
			t.Errorf("%d of %d left bob's %.1f for carol's %.1f", left, n, bob, carol)
		}
		if share(carol, left+1) > 2*share(bob, n-left) {
			t.Errorf("only %d of %d left bob's %.1f for carol's %.1f", left, n, bob, carol)
		}
	}
}

// A detour that the network makes poor is exchanged, even if several connections share it.
func TestPoorDetourIsLeft(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	stayed := 0
	for i := range networks(20) {
		bob := 1 + 5*random.Float64()
		ways := map[string]*way{
			"":      wayOf(randomTrip(random), randomLink(random, 4)),
			"bob":   wayOf(randomTrip(random), randomLink(random, bob)),
			"carol": wayOf(randomTrip(random), randomLink(random, 3*bob)),
		}
		f, transfers := overBob(t, i, ways, 0)
		f.run(2 * time.Minute)
		if transfers[0].over("carol") == nil {
			stayed++
			t.Logf("bob %.1f: %v", bob, transfers[0].log)
		}
	}
	if stayed > 1 {
		t.Errorf("%d of 20 stay", stayed)
	}
}
