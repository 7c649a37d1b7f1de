package paths

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// network is a graph of routers that balance load by flow. next has each router's next hops. The destination has none.
type network struct {
	next   [][]int
	silent map[int]bool
	// answers returns the router whose address a router uses to answer a probe that comes from another router. If it is
	// nil, each uses its own.
	answers func(router, from int) int
	seed    uint64
	sent    int
}

func addrOf(i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], 10<<24+uint32(i))
	return netip.AddrFrom4(b)
}

// at returns the node at which a flow's probe ends.
func (w *network) at(flow, distance int) int {
	at := 0
	for d := 1; d < distance && len(w.next[at]) > 0; d++ {
		random := rand.New(rand.NewPCG(w.seed, uint64(flow)<<32|uint64(at)))
		at = w.next[at][random.IntN(len(w.next[at]))]
	}
	return at
}

func (w *network) Sent() int { return w.sent }

func (w *network) Probe(_ context.Context, all []Request) (replies []Reply, err error) {
	for _, r := range all {
		w.sent++
		at := w.at(r.Flow, r.Distance)
		if w.silent[at] {
			replies = append(replies, Reply{})
			continue
		}
		name := at
		if w.answers != nil {
			name = w.answers(at, w.at(r.Flow, r.Distance-1))
		}
		replies = append(replies, Reply{From: addrOf(name), RTT: time.Duration(at) * time.Millisecond, Last: len(w.next[at]) == 0, Reached: len(w.next[at]) == 0})
	}
	return replies, nil
}

// missing returns how many edges the graph lacks, plus how many it has too many.
func (w *network) missing(g *Graph) (n int) {
	reached := map[[2]int]bool{}
	var visit func(from, distance int)
	visit = func(from, distance int) {
		if reached[[2]int{from, distance}] {
			return
		}
		reached[[2]int{from, distance}] = true
		for _, to := range w.next[from] {
			v := g.Vertex(distance+1, addrOf(to))
			found := false
			if v != nil {
				for _, b := range v.Before {
					found = found || b == addrOf(from)
				}
			}
			if !found {
				n++
			}
			visit(to, distance+1)
		}
	}
	visit(0, 1)
	return n
}

// Networks of the tests.
var (
	line    = [][]int{{1}, {2}, {3}, nil}
	diamond = [][]int{{1, 2, 3, 4}, {5}, {5}, {5}, {5}, {6}, nil}
	// symmetric becomes wider twice, and its routers at a distance are alike.
	symmetric = [][]int{{1, 2}, {3, 4}, {5, 6}, {7}, {7}, {7}, {7}, nil}
	// lopsided has routers with different numbers of next hops.
	lopsided = [][]int{{1, 2}, {3}, {4, 5, 6}, {7}, {7}, {7}, {7}, nil}
	// meshed has routers that share next hops.
	// row has routers that few flows reach, and others that many reach.
	row    = [][]int{{1, 2}, {3, 4}, {4}, {5, 6}, {6}, {7}, {7}, nil}
	meshed = [][]int{{1, 2}, {3, 4}, {3, 4}, {5}, {5}, nil}
	// unequal has paths of different lengths.
	unequal = [][]int{{1, 2}, {3}, {4}, {4}, nil}
)

func explore(t *testing.T, w *network, o Options) *Graph {
	t.Helper()
	g, err := Explore(t.Context(), w, o)
	if err != nil {
		t.Fatal(err)
	}
	if g.Probes != w.sent {
		t.Errorf("%d probes are counted, not %d", g.Probes, w.sent)
	}
	return g
}

func TestGraphsAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		next  [][]int
		paths int
		light bool
	}{
		"line": {line, 1, true}, "diamond": {diamond, 4, true}, "symmetric": {symmetric, 4, true},
		"lopsided": {lopsided, 4, false}, "meshed": {meshed, 4, false},
	} {
		for _, full := range []bool{false, true} {
			w := &network{next: c.next, seed: 7}
			g := explore(t, w, Options{Bound: 0.0001, Light: !full})
			if n := w.missing(g); n > 0 || g.Paths() != c.paths || !g.Reached {
				t.Errorf("%s, full %v: %d edges are missing, %d paths", name, full, n, g.Paths())
			}
			if want := c.light && !full; g.Light != want {
				t.Errorf("%s, full %v: light %v", name, full, g.Light)
			}
		}
	}
}

// TestMissesKeepToTheBound: of 400 runs, the share that misses something does not exceed the bound significantly.
func TestMissesKeepToTheBound(t *testing.T) {
	const runs = 400
	for name, next := range map[string][][]int{"diamond": diamond, "symmetric": symmetric, "lopsided": lopsided, "meshed": meshed, "row": row} {
		for _, bound := range []float64{0.05, 0.01} {
			missed := 0
			for run := range runs {
				w := &network{next: next, seed: uint64(run)}
				if g := explore(t, w, Options{Bound: bound}); w.missing(g) > 0 {
					missed++
				}
			}
			t.Logf("%s, bound %v: %d of %d runs missed something", name, bound, missed, runs)
			const deviations = 3
			most := bound * runs
			if float64(missed) > most+deviations*sqrt(most) {
				t.Errorf("%s, bound %v: %d of %d runs missed something", name, bound, missed, runs)
			}
		}
	}
}

// TestDestinationTakesFewProbes: the routers before the destination are assumed to be alike. So six probes reach it
// through the first of them, and one through each other. A router that also leads elsewhere is explored in full.
func TestDestinationTakesFewProbes(t *testing.T) {
	w := &network{next: [][]int{{1, 2, 3, 4}, {5}, {5}, {5}, {5}, nil}, seed: 1}
	g := explore(t, w, Options{PerRouter: true})
	if n := w.missing(g); n > 0 {
		t.Errorf("%d edges are missing", n)
	}
	if n := g.Vertex(3, addrOf(5)).Probes; n != 9 {
		t.Errorf("%d probes reached the destination, not 9", n)
	}
	w = &network{next: [][]int{{1}, {2}, {3, 4}, {5}, {5}, nil}, seed: 1}
	w.next[2] = []int{5, 3} // to the destination or to another router
	g = explore(t, w, Options{Bound: 0.001})
	if n := w.missing(g); n > 0 {
		t.Errorf("%d edges are missing behind a router that also leads elsewhere", n)
	}
}

func sqrt(x float64) float64 {
	y := x
	for range 40 {
		y = (y + x/y) / 2
	}
	return y
}

// TestStops checks the stopping points for 95 %. The usual table has 38 and 44 for seven and eight next hops, because
// it ignores that the search may have stopped at an earlier point.
func TestStops(t *testing.T) {
	s := newStops(0.05)
	for k, want := range []int{1, 6, 11, 16, 21, 27, 33, 39, 45, 51, 57} {
		if got := s.after(k); got != want {
			t.Errorf("%d next hops: %d probes, not %d", k, got, want)
		}
	}
}

// TestLightTakesFewer: the light variant needs fewer probes where it is sound.
func TestLightTakesFewer(t *testing.T) {
	full, light := &network{next: symmetric, seed: 1}, &network{next: symmetric, seed: 1}
	explore(t, full, Options{})
	explore(t, light, Options{Light: true})
	if light.sent >= full.sent {
		t.Errorf("%d probes, in full %d", light.sent, full.sent)
	}
}

// TestSilentRouters: routers and the destination are found although routers before them do not answer.
func TestSilentRouters(t *testing.T) {
	w := &network{next: [][]int{{1}, {2, 3}, {4}, {4}, nil}, silent: map[int]bool{1: true}, seed: 1}
	if g := explore(t, w, Options{}); !g.Reached || g.Paths() != 2 {
		t.Errorf("reached %v, %d paths", g.Reached, g.Paths())
	}
	w = &network{next: diamond, silent: map[int]bool{5: true, 6: true}, seed: 1}
	g := explore(t, w, Options{})
	if g.Reached || len(g.Hops) != 2 {
		t.Errorf("reached %v by %d hops, not false by 2", g.Reached, len(g.Hops))
	}
}

func TestUnequalLengths(t *testing.T) {
	w := &network{next: [][]int{{1, 2}, {3}, {4}, {4}, {}}, seed: 3}
	w.next[1] = []int{4} // one path is one hop shorter
	if g := explore(t, w, Options{Bound: 0.001}); g.Paths() != 2 || !g.Reached {
		t.Errorf("%d paths, not 2", g.Paths())
	}
	w = &network{next: unequal, seed: 3}
	if g := explore(t, w, Options{Bound: 0.001}); g.Paths() != 2 {
		t.Errorf("%d paths, not 2", g.Paths())
	}
}

// TestLoopsEnd: the exploration of a loop ends at the limit of hops.
func TestLoopsEnd(t *testing.T) {
	w := &network{next: [][]int{{1}, {0}}, seed: 1}
	if g := explore(t, w, Options{MaxHops: 9}); len(g.Hops) != 9 || g.Reached {
		t.Errorf("%d hops", len(g.Hops))
	}
}

// TestRoutersWithOtherAddresses: routers may answer with one address on two links, with one address for each link, or
// with another router's address. Next hops and the destination are found nevertheless.
func TestRoutersWithOtherAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		next    [][]int
		answers func(router, from int) int
		widths  []int // number of vertices at each distance
	}{
		"one address on two links": {
			[][]int{{1, 2, 3}, {4}, {4}, {4}, nil},
			func(router, _ int) int { return map[int]int{0: 0, 1: 1, 2: 1, 3: 3, 4: 4}[router] },
			[]int{1, 2, 1},
		},
		"an address for each link": {
			[][]int{{1, 2}, {3}, {3}, {4}, nil},
			func(router, from int) int {
				if router == 3 {
					return 10 + from
				}
				return router
			},
			[]int{1, 2, 2, 1},
		},
		"the address of another": {
			[][]int{{1}, {2}, {3}, nil},
			func(router, _ int) int { return map[int]int{0: 0, 1: 1, 2: 1, 3: 3}[router] },
			[]int{1, 1, 1, 1},
		},
	} {
		for _, light := range []bool{false, true} {
			g := explore(t, &network{next: c.next, answers: c.answers, seed: 1}, Options{Bound: 0.001, Light: light, Ways: 2})
			var widths []int
			for _, h := range g.Hops {
				widths = append(widths, len(h.Vertices))
			}
			if !g.Reached || !slices.Equal(widths, c.widths) {
				t.Errorf("%s, light %v: reached %v, %d vertices, want %d", name, light, g.Reached, widths, c.widths)
			}
		}
	}
}

func TestLimitOfProbes(t *testing.T) {
	w := &network{next: diamond, seed: 1}
	g, err := Explore(t.Context(), w, Options{MaxProbes: 20})
	if !errors.Is(err, ErrProbes) || g == nil || len(g.Hops) == 0 {
		t.Errorf("%v", err)
	}
	for _, o := range []Options{{Bound: 0.6}, {Bound: -1}, {MaxHops: 256}} {
		if _, err := Explore(t.Context(), w, o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

// TestDistinctFlows: each further flow is on a path that shares the fewest routers with the earlier ones.
func TestDistinctFlows(t *testing.T) {
	g := explore(t, &network{next: diamond, seed: 1}, Options{Bound: 0.001, Ways: 10})
	chosen := g.Distinct(10)
	if len(chosen) != 4 {
		t.Fatalf("%d flows on 4 paths", len(chosen))
	}
	seen := map[netip.Addr]bool{}
	for _, p := range chosen {
		if len(p.Vertices) != 4 {
			t.Errorf("path %v has not 4 hops", p.Vertices)
		}
		seen[p.Vertices[1]] = true
	}
	if len(seen) != 4 {
		t.Errorf("they share routers: %v", chosen)
	}
	if two := g.Distinct(2); len(two) != 2 || two[0].Flow != chosen[0].Flow {
		t.Errorf("the first two are %v", two)
	}
}
