package datacentre

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/racetest"
)

func total(all []float64) (sum float64) {
	for _, x := range all {
		sum += x
	}
	return sum
}

// chainOf returns nodes in a row, with the links' rates between them, and the path from the first to the last.
func chainOf(rates ...float64) (t *Topology, path []int) {
	t = newTopology(len(rates) + 1)
	for i, r := range rates {
		path = append(path, len(t.Links))
		t.join(i, i+1, r)
	}
	return t, path
}

func near(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if got < want*(1-share) || got > want*(1+share) {
		t.Errorf("%s: %.4g, not %.4g within %v %%", what, got, want, 100*share)
	}
}

// TestSimulatedClosedForms: what is known without a simulation.
func TestSimulatedClosedForms(t *testing.T) {
	racetest.Skip(t)
	o := Options{Duration: 5 * time.Second, WarmUp: time.Second}
	for _, control := range []Control{LIA, Cubic} {
		o.Control = control
		link, path := chainOf(Rate)
		near(t, "one flow on one link", total(Simulate(link, [][][]int{{path}}, o).Goodput), Rate, 0.02)
		two := Simulate(link, [][][]int{{path}, {path}}, o).Goodput
		near(t, "two flows on one link, together", total(two), Rate, 0.02)
		near(t, "two flows on one link, the first", two[0], Rate/2, 0.25)
		row, long := chainOf(Rate, Rate/4, Rate)
		near(t, "a bottleneck of a quarter", total(Simulate(row, [][][]int{{long}}, o).Goodput), Rate/4, 0.02)
	}
	// An MPTCP connection with two subflows takes no more of a bottleneck than one with one (RFC 6356, goal 2).
	o.Control, o.Duration = LIA, 20*time.Second
	link, path := chainOf(Rate)
	shared := Simulate(link, [][][]int{{path, path}, {path}}, o).Goodput
	near(t, "two coupled subflows beside one flow", shared[0], Rate/2, 0.3)
	// Two paths of their own are both used.
	separate := newTopology(3)
	separate.join(0, 1, Rate)
	separate.join(0, 1, Rate)
	near(t, "two paths", total(Simulate(separate, [][][]int{{{0}, {2}}}, o).Goodput), 2*Rate, 0.03)
}

// TestSizes has the sizes and paths of the published topologies.
func TestSizes(t *testing.T) {
	fat := FatTree(8)
	if fat.Hosts != 128 || fat.Nodes-fat.Hosts != 80 || len(fat.Links) != 2*3*128 {
		t.Errorf("FatTree: %d hosts, %d switches, %d links", fat.Hosts, fat.Nodes-fat.Hosts, len(fat.Links))
	}
	for to, want := range map[int]int{1: 1, 4: 4, 127: 16} {
		if got := len(fat.Paths(0, to, 1000)); got != want {
			t.Errorf("FatTree: %d paths to %d, not %d", got, to, want)
		}
	}
	cube := BCube(4, 2)
	if got := len(cube.Paths(0, 63, 1000)); cube.Hosts != 64 || cube.Nodes-cube.Hosts != 48 || got != 6 {
		t.Errorf("BCube: %d hosts, %d switches, %d paths", cube.Hosts, cube.Nodes-cube.Hosts, got)
	}
	vl2 := VL2(8, 8, 8)
	if got := len(vl2.Paths(0, 127, 1000)); vl2.Hosts != 128 || got != 16 {
		t.Errorf("VL2: %d hosts, %d paths", vl2.Hosts, got)
	}
}

// TestPermutation: each host sends once and receives once.
func TestPermutation(t *testing.T) {
	received := map[int]bool{}
	for from, p := range Permutation(128, rand.New(rand.NewPCG(1, 2))) {
		if p.From != from || p.To == from || received[p.To] {
			t.Errorf("pair %v", p)
		}
		received[p.To] = true
	}
}

// TestSameSeedSameResult: nothing but the seed decides.
func TestSameSeedSameResult(t *testing.T) {
	run := func(seed uint64) Result {
		random := rand.New(rand.NewPCG(seed, 1))
		fat := FatTree(4)
		placed, _ := fat.Place(Permutation(fat.Hosts, random), 2, ByChance, random)
		return Simulate(fat, placed, Options{Duration: 200 * time.Millisecond})
	}
	if a, b := run(1), run(1); !reflect.DeepEqual(a, b) {
		t.Error("two runs with one seed differ")
	}
	if a, b := run(1), run(2); reflect.DeepEqual(a, b) {
		t.Error("runs with two seeds are the same")
	}
}

// TestSimulatedSchedulerBeatsChance: with few subflows, chosen paths carry more than those of chance.
func TestSimulatedSchedulerBeatsChance(t *testing.T) {
	racetest.Skip(t)
	goodput := func(p Placement) float64 {
		random := rand.New(rand.NewPCG(3, 1))
		fat := FatTree(4)
		placed, _ := fat.Place(Permutation(fat.Hosts, random), 2, p, random)
		r := Simulate(fat, placed, Options{Duration: time.Second, WarmUp: 200 * time.Millisecond})
		return total(r.Goodput) / (Rate * float64(fat.Hosts))
	}
	chance, chosen := goodput(ByChance), goodput(ByScheduler)
	if chosen < chance+0.05 || chosen < 0.85 || chosen > 1 {
		t.Errorf("%.3f of the optimum by chance, %.3f by the scheduler", chance, chosen)
	}
}

// TestSimulatedMovesEvenOut: connections are placed one after the other. If hosts are told of flows that the server moves for new ones, at most
// half as many flows are too many for links with more than the servers' own, and no more when the hosts have asked again. At most
// a quarter of all flows are moved for that, and a third in all.
func TestSimulatedMovesEvenOut(t *testing.T) {
	racetest.Skip(t)
	const demands, subflows = 10, 2
	for _, ports := range []int{4, 6, 8} {
		fat := FatTree(ports)
		tooMany, moved := map[Placement]int{}, map[Placement]int{}
		for _, p := range []Placement{InTurn, Told, Renewed} {
			for seed := range uint64(demands) {
				random := rand.New(rand.NewPCG(seed, 77))
				placed, n := fat.Place(Permutation(fat.Hosts, random), subflows, p, random)
				moved[p] += n
				flows := map[int]int{}
				for _, link := range slices.Concat(slices.Concat(placed...)...) {
					if flows[link]++; flows[link] > subflows {
						tooMany[p]++
					}
				}
			}
		}
		t.Logf("%d ports: flows too many %v, moved %v", ports, tooMany, moved)
		all := demands * fat.Hosts * subflows
		if 2*tooMany[Told] > tooMany[InTurn] || tooMany[Renewed] > tooMany[Told] || 4*moved[Told] > all || 3*moved[Renewed] > all {
			t.Errorf("%d ports: flows too many %v, moved %v", ports, tooMany, moved)
		}
	}
}
