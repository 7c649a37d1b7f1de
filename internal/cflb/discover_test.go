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
	w.seen++
	c, err := w.scheme.EncodeProbe(choices, distance, probeFlow)
	if err != nil {
		return netip.Addr{}, false, err
	}
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
	return addrOf(at), len(w.next[at]) == 0, nil
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

func discoverAll(t *testing.T, w *network) *Network {
	t.Helper()
	found, err := Discover(w.scheme.Radix(), 30, w.probe)
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
	found, err := Discover(4, 30, w.probe)
	if err != nil || len(found.Edges) == 0 {
		t.Errorf("%d edges, %v", len(found.Edges), err)
	}
	w = &network{scheme: newScheme(t, 2, Speck), next: diamond(5)}
	if found, err = Discover(2, 30, w.probe); err != nil || len(found.Edges) == 0 {
		t.Errorf("%d edges, %v", len(found.Edges), err)
	}
}

func TestDiscoverReportsErrors(t *testing.T) {
	broken := errors.New("broken")
	_, err := Discover(2, 30, func([]int, int) (netip.Addr, bool, error) { return netip.Addr{}, false, broken })
	if !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	n := 0
	_, err = Discover(200, 255, func([]int, int) (netip.Addr, bool, error) { n++; return addrOf(n), false, nil })
	if !errors.Is(err, ErrProbes) {
		t.Errorf("a network without end: %v", err)
	}
}
