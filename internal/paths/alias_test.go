package paths_test

import (
	"testing"

	"github.com/detour-collective/dcol/internal/paths"
	"github.com/detour-collective/dcol/lab/bench/balanced"
)

// TestAliases: each path gets several flows, all of which take that path.
func TestAliases(t *testing.T) {
	const width, each = 4, 5
	w := &balanced.Hashing{Graph: balanced.Diamond(width), Seed: 3}
	g, err := paths.Explore(t.Context(), w, paths.Options{Ways: width, Bound: 0.001})
	if err != nil {
		t.Fatal(err)
	}
	ways := g.Distinct(width)
	flows, err := paths.Aliases(t.Context(), w, g, ways, each, 400)
	if err != nil || len(ways) != width {
		t.Fatalf("%d paths, %v", len(ways), err)
	}
	seen := map[int]bool{}
	for i, all := range flows {
		if len(all) < each {
			t.Errorf("path %d has the flows %v", i, all)
		}
		for _, f := range all {
			if seen[f] {
				t.Errorf("flow %d is on two paths", f)
			}
			seen[f] = true
			for d, want := range ways[i].Vertices {
				replies, err := w.Probe(t.Context(), []paths.Request{{Flow: f, Distance: d + 1}})
				if err != nil || replies[0].From != want {
					t.Errorf("flow %d of path %d passes %v at distance %d, want %v (%v)", f, i, replies[0].From, d+1, want, err)
				}
			}
		}
	}
	if few, err := paths.Aliases(t.Context(), w, g, ways, 1000, 32); err != nil || len(few) != width {
		t.Errorf("without enough probes: %d paths, %v", len(few), err)
	}
}
