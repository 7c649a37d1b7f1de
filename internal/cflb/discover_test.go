package cflb

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"
)

// network is a graph of CFLB routers. Each router has the indexes of its next hops; none: the destination.
type network struct {
	scheme *Scheme
	next   [][]int
	silent map[int]bool
	others map[int]*Scheme // routers with other constants
	alike  map[int]int     // routers that answer with the address of another: a further link to it
	seen   int             // probes
}

func addrOf(i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], 10<<24+uint32(i))
	return netip.AddrFrom4(b)
}

var probeFlow = Flow(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 17)

// probe forwards a probe as routers would, from router 0 on.
func (w *network) probe(choices []int, distance int) (netip.Addr, bool, error) {
	c, err := w.scheme.EncodeProbe(choices, distance, probeFlow)
	if err != nil {
		return netip.Addr{}, false, err
	}
	w.seen++
	at := 0
	for ttl := distance; ttl > 1 && len(w.next[at]) > 0; ttl-- {
		s := w.scheme
		if other := w.others[at]; other != nil {
			s = other
		}
		at = w.next[at][Router{s, uint32(at)}.Next(c, probeFlow, uint8(ttl), len(w.next[at]))]
	}
	if w.silent[at] {
		return netip.Addr{}, false, nil
	}
	last := len(w.next[at]) == 0
	if other, ok := w.alike[at]; ok {
		at = other
	}
	return addrOf(at), last, nil
}

// edges returns the edges that a packet can take.
func (w *network) edges() (all [][2]int) {
	reached := map[int]bool{}
	var visit func(int)
	visit = func(from int) {
		if reached[from] {
			return
		}
		reached[from] = true
		for _, to := range w.next[from] {
			all = append(all, [2]int{from, to})
			visit(to)
		}
	}
	visit(0)
	return all
}

// has reports whether an edge was found.
func (n *Network) has(e [2]int) bool {
	return slices.ContainsFunc(n.Edges, func(x Edge) bool { return x.From == addrOf(e[0]) && x.To == addrOf(e[1]) })
}

// ladder returns the network of figure 5.16: routers in a row, each with so many next hops. One is the next router of
// the row, the others lead to the destination side by side. The last router of the row has routers of its own
// before the destination.
func ladder(routers, width int) [][]int {
	last := 1 + routers*width
	next := make([][]int, last+1)
	next[0] = []int{1} // of the first router, which has one next hop
	node := func(level, column int) int {
		if level == routers {
			return last
		}
		return 1 + level*width + column
	}
	for level := range routers {
		for column := range width {
			next[node(level, column)] = []int{node(level+1, column)}
		}
		for column := 1; column < width; column++ {
			next[node(level, 0)] = append(next[node(level, 0)], node(level+1, column))
		}
	}
	// The last router of the row has next hops of its own before the destination.
	row := node(routers-1, 0)
	next[row] = nil
	for range width {
		next = append(next, []int{last})
		next[row] = append(next[row], len(next)-1)
	}
	return next
}

// diamond is one router with so many next hops that meet again.
func diamond(width int) [][]int {
	next := [][]int{{}}
	for i := range width {
		next[0] = append(next[0], 1+i)
		next = append(next, []int{width + 1})
	}
	return append(next, nil)
}

// row is a row of routers, two of which have two next hops each, before the destination.
func row(routers, first, second int) [][]int {
	next := make([][]int, routers+1)
	for i := range routers {
		next[i] = []int{i + 1}
	}
	for _, i := range []int{first, second} {
		next[i] = append(next[i], len(next))
		next = append(next, []int{i + 2})
	}
	return next
}

func discoverAll(t *testing.T, w *network) *Network {
	t.Helper()
	found, err := Discover(Options{Radix: w.scheme.Radix(), MaxDistance: 30}, w.probe)
	if err != nil {
		t.Fatal(err)
	}
	if found.Probes != w.seen {
		t.Errorf("%d probes are counted, not %d", found.Probes, w.seen)
	}
	for _, e := range w.edges() {
		if w.silent[e[0]] || w.silent[e[1]] {
			continue
		}
		if !found.has(e) {
			t.Errorf("the edge from %d to %d is missing", e[0], e[1])
		}
	}
	return found
}

func TestDiscoverFindsEverything(t *testing.T) {
	for radix := 2; radix <= 16; radix++ {
		for _, graph := range [][][]int{diamond(radix), diamond(2), diamond(1), ladder(1, 2), ladder(4, 2)} {
			for _, c := range []Cipher{Speck, RC5, Skip32} {
				w := &network{scheme: newScheme(t, radix, c), next: graph}
				if found := discoverAll(t, w); len(found.Suspects) > 0 {
					t.Errorf("radix %d: suspects %v", radix, found.Suspects)
				}
			}
		}
	}
}

// TestDiscoverTakesFewProbes: a router with n next hops takes n + 1 probes, and the first hop one.
func TestDiscoverTakesFewProbes(t *testing.T) {
	w := &network{scheme: newScheme(t, 16, Speck), next: diamond(8)}
	if found := discoverAll(t, w); found.Probes != 1+9+8*2 {
		t.Errorf("%d probes, not %d", found.Probes, 1+9+8*2)
	}
}

// TestDiscoverOnThePublishedNetworks: the published implementation took 34 probes for six routers with two next hops
// and 29 for three with four (section 5.6.2), Paris traceroute 1492 and 296.
func TestDiscoverOnThePublishedNetworks(t *testing.T) {
	for _, c := range []struct{ routers, width int }{{6, 2}, {3, 4}} {
		w := &network{scheme: newScheme(t, c.width, Speck), next: ladder(c.routers, c.width)}
		found := discoverAll(t, w)
		t.Logf("%d routers with %d next hops: %d probes", c.routers, c.width, found.Probes)
		if found.Probes > 40 {
			t.Errorf("%d routers with %d next hops: %d probes", c.routers, c.width, found.Probes)
		}
	}
}

// TestDiscoverBehindSilentRouters: a router that never answers does not hide what is behind it.
func TestDiscoverBehindSilentRouters(t *testing.T) {
	next := [][]int{{1}, {2}, {3, 4}, {5}, {5}, nil}
	w := &network{scheme: newScheme(t, 2, Speck), next: next, silent: map[int]bool{1: true}}
	found := discoverAll(t, w)
	if found.Silent == 0 {
		t.Error("no silent probe is counted")
	}
}

func TestDiscoverEndsInLoops(t *testing.T) {
	w := &network{scheme: newScheme(t, 4, Speck), next: [][]int{{1}, {2, 3}, {1}, {4}, nil}}
	found := discoverAll(t, w)
	if !slices.Contains(found.Suspects, Suspect{addrOf(1), ReasonLoop}) {
		t.Errorf("the loop is not reported: %v", found.Suspects)
	}
}

// TestDiscoverEndsWithAWrongRadix: a router of another radix gives results that may lack next hops, but an end.
func TestDiscoverEndsWithAWrongRadix(t *testing.T) {
	w := &network{scheme: newScheme(t, 4, Speck), next: diamond(4)}
	w.others = map[int]*Scheme{0: newScheme(t, 16, Speck)}
	found, err := Discover(Options{Radix: 4, MaxDistance: 30}, w.probe)
	if err != nil || len(found.Edges) == 0 {
		t.Errorf("%d edges, %v", len(found.Edges), err)
	}
	w = &network{scheme: newScheme(t, 2, Speck), next: diamond(5)}
	if found, err = Discover(Options{Radix: 2, MaxDistance: 30}, w.probe); err != nil || len(found.Edges) == 0 {
		t.Errorf("%d edges, %v", len(found.Edges), err)
	}
}

// TestDiscoverOnLongPaths: a row of more routers than the path selector has positions. Only those that choose take one.
func TestDiscoverOnLongPaths(t *testing.T) {
	const routers = 15
	for _, at := range [][2]int{{2, 6}, {1, 12}, {0, 9}} {
		w := &network{scheme: newScheme(t, 16, Speck), next: row(routers, at[0], at[1])}
		if w.scheme.Length() >= routers {
			t.Fatalf("the path selector has %d positions", w.scheme.Length())
		}
		for _, s := range discoverAll(t, w).Suspects {
			if s.Reason != ReasonShared || s.Router == addrOf(at[0]) || s.Router == addrOf(at[1]) {
				t.Errorf("suspect %v", s)
			}
		}
	}
}

// TestDiscoverGoesOnAfterCollisions: of two routers that share a position, the second one's next hops cannot all be chosen.
func TestDiscoverGoesOnAfterCollisions(t *testing.T) {
	w := &network{scheme: newScheme(t, 16, Speck), next: row(15, 2, 10)}
	found, err := Discover(Options{Radix: 16, MaxDistance: 30}, w.probe)
	if err != nil || !slices.Contains(found.Suspects, Suspect{addrOf(10), ReasonShared}) {
		t.Fatalf("suspects %v, %v", found.Suspects, err)
	}
	if !slices.ContainsFunc(found.Edges, func(e Edge) bool { return e.Last }) {
		t.Error("the destination was not found")
	}
}

// TestDiscoverParallelLinks: a router with two links to one that answers with the same address on both has another next hop.
func TestDiscoverParallelLinks(t *testing.T) {
	w := &network{scheme: newScheme(t, 4, Speck), next: [][]int{{1, 2, 3}, {4}, {4}, {4}, nil}, alike: map[int]int{2: 1}}
	found, err := Discover(Options{Radix: 4, MaxDistance: 30, Parallel: true}, w.probe)
	if err != nil || !found.has([2]int{0, 1}) || !found.has([2]int{0, 3}) || !found.has([2]int{3, 4}) || len(found.Suspects) > 0 {
		t.Errorf("edges %v, suspects %v, %v", found.Edges, found.Suspects, err)
	}
}

// TestDiscoverTellsARepeatedAddress: a router that answers with the address of one before it looks like a loop, and is reported.
func TestDiscoverTellsARepeatedAddress(t *testing.T) {
	w := &network{scheme: newScheme(t, 4, Speck), next: [][]int{{1}, {2}, {3}, nil}, alike: map[int]int{2: 1}}
	found, err := Discover(Options{Radix: 4, MaxDistance: 30}, w.probe)
	if err != nil || !slices.Contains(found.Suspects, Suspect{addrOf(1), ReasonLoop}) {
		t.Errorf("suspects %v, %v", found.Suspects, err)
	}
}

// TestDiscoverNotesSilentNextHops: several next hops that do not answer cannot be told from one.
func TestDiscoverNotesSilentNextHops(t *testing.T) {
	w := &network{scheme: newScheme(t, 2, Speck), next: [][]int{{1, 2}, {3}, {4}, {5}, {5}, nil}, silent: map[int]bool{1: true, 2: true}}
	found, err := Discover(Options{Radix: 2, MaxDistance: 30}, w.probe)
	if err != nil || !slices.Contains(found.Suspects, Suspect{addrOf(0), ReasonSilent}) {
		t.Errorf("suspects %v, %v", found.Suspects, err)
	}
}

func TestDiscoverReportsErrors(t *testing.T) {
	broken := errors.New("broken")
	_, err := Discover(Options{Radix: 2, MaxDistance: 30}, func([]int, int) (netip.Addr, bool, error) { return netip.Addr{}, false, broken })
	if !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	n := 0
	_, err = Discover(Options{Radix: 200, MaxDistance: 255}, func([]int, int) (netip.Addr, bool, error) { n++; return addrOf(n), false, nil })
	if !errors.Is(err, ErrProbes) {
		t.Errorf("a network without end: %v", err)
	}
}
