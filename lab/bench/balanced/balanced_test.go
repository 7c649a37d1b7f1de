package balanced

import (
	"testing"

	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/cflb/cflbtest"
	"github.com/detour-collective/dcol/internal/paths"
)

func TestGraphs(t *testing.T) {
	for _, c := range []struct {
		g            Graph
		nodes, edges int
	}{{Diamond(4), 7, 9}, {Ladder(1, 2), 5, 5}, {Ladder(2, 2), 7, 8}, {Ladder(3, 4), 15, 23}} {
		if len(c.g) != c.nodes || c.g.Edges() != c.edges {
			t.Errorf("%v: %d nodes and %d edges, not %d and %d", c.g, len(c.g), c.g.Edges(), c.nodes, c.edges)
		}
	}
}

// TestFoundAlike: both discoveries find the whole graph.
func TestFoundAlike(t *testing.T) {
	g := Ladder(4, 2)
	found, err := paths.Explore(t.Context(), &Hashing{Graph: g, Seed: 1}, paths.Options{Bound: 0.0001})
	if err != nil || g.Missing(found) > 0 {
		t.Errorf("%d edges are missing, %v", g.Missing(found), err)
	}
	net, err := cflb.Discover(cflb.Options{Radix: 2, MaxDistance: 30}, g.Steered(cflbtest.Scheme(t, cflb.Speck, 2)))
	if err != nil || len(net.Edges) != g.Edges()+1 { // and that from the source
		t.Errorf("%d edges, not %d, %v", len(net.Edges), g.Edges()+1, err)
	}
}
