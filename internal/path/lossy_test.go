package path_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// lossyDirect returns ways of which the direct one loses 4 % of packets and has this round trip. The detours lose none.
func lossyDirect(random *rand.Rand, trip time.Duration) (ways map[string]*way, names []string, sum float64) {
	ways, names = map[string]*way{"": wayOf(trip, randomLink(random, 20))}, []string{"one", "other"}
	ways[""].loss = 0.04
	for _, name := range names {
		ways[name] = wayOf(randomTrip(random), randomLink(random, 2+2*random.Float64()))
		sum += ways[name].links[0].rate
	}
	return ways, names, sum
}

// A direct path that loses packets, for example because many share it, is set aside. It carries again if bulk traffic
// misses it.
func TestLossyDirectIsMissed(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 42))
	for i := range networks(12) {
		ways, names, sum := lossyDirect(random, 30*time.Millisecond)
		f := offeredTo(t, i, ways, names...)
		d := f.connect(0)
		f.run(30 * time.Second)
		gets := f.rate(d, 3*time.Minute)
		direct := 1.2 * 11200 / 0.03 / 0.2
		if share := gets / (sum + direct); share < 0.85 { // 0.74 if it stands by for a minute, and then for longer and longer
			t.Errorf("%d: %.3f of what all paths give: %v", i, share, d.log)
		}
	}
}

// It stays a backup if the other subflows wait for its data.
func TestLossyDirectIsNotMissed(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 43))
	for i := range networks(12) {
		ways, names, sum := lossyDirect(random, 400*time.Millisecond)
		f := offeredTo(t, i, ways, names...)
		d := f.connect(0)
		d.window = 0.4 * 0.7 * sum
		for !slices.ContainsFunc(d.log, func(line string) bool { return strings.HasSuffix(line, "demote direct") }) {
			f.step()
		}
		f.run(10 * time.Second)
		if share := f.rate(d, 30*time.Second) / sum; share < 0.97 {
			t.Errorf("%d: %.3f of what the detours give: %v", i, share, d.log)
		}
	}
}

// A detour that loses packets is set aside in a download, also if its join met a queue. This host sends nothing that would
// show the round trip without the queue.
func TestLossyDetourThatJoinedInAQueue(t *testing.T) {
	const trip = 40 * time.Millisecond
	for _, loss := range []float64{0.03, 0.05} {
		for _, joined := range []time.Duration{trip, trip * 7 / 2} {
			t.Run(fmt.Sprint(loss, " ", joined), func(t *testing.T) {
				random := rand.New(rand.NewPCG(18, 44))
				for i := range networks(12) {
					detour := wayOf(trip, randomLink(random, 50))
					detour.joined, detour.loss = joined, loss
					f := newFluid(t, i, map[string]*way{"": wayOf(30*time.Millisecond, randomLink(random, 10)), "bob": detour}, nil)
					f.offer("bob")
					d := f.connect(0)
					f.run(time.Minute)
					if why := f.why(d, "bob"); !strings.Contains(why, "of the packets") {
						t.Errorf("%d: %s: %v", i, why, d.log)
					}
				}
			})
		}
	}
}
