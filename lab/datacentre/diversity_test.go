package datacentre

import "testing"

// TestDiversity has the next hops and paths of the topologies as their publications derive them.
func TestDiversity(t *testing.T) {
	for _, tc := range []struct {
		name             string
		topology         *Topology
		radix, hops      int
		paths            map[int]int // pairs of servers by number of paths
		routers, several int         // pairs of a router and a destination, and those with several next hops
	}{
		// Of 16 servers one is behind the same edge switch, two are in the same pod (2 paths), twelve elsewhere (4).
		{"FatTree of 4 ports", FatTree(4), 2, 6, map[int]int{1: 16, 2: 16 * 2, 4: 16 * 12}, 16 * 20, 16 * (7 + 6)},
		// Two aggregation switches and two intermediate ones: 2·2·2 paths to other racks without a common switch.
		{"VL2 of 4 ports", VL2(4, 4, 2), 2, 6, map[int]int{1: 8, 2: 8 * 2, 8: 8 * 4}, 8 * 10, 8 * 7},
		// Servers that differ in both digits have two paths, the others one. Of the routers, nine servers have two next hops.
		{"BCube of 16 servers", BCube(4, 1), 2, 4, map[int]int{1: 16 * 6, 2: 16 * 9}, 16 * (15 + 8), 16 * 9},
	} {
		n, servers := tc.topology.Graph()
		c := n.Calibrate(32, servers)
		if c.Radix != tc.radix || c.Hops != tc.hops {
			t.Errorf("%s: radix %d, %d hops", tc.name, c.Radix, c.Hops)
		}
		for paths, want := range tc.paths {
			if c.Paths[paths] != want {
				t.Errorf("%s: %d pairs with %d paths, want %d", tc.name, c.Paths[paths], paths, want)
			}
		}
		several := 0
		for next, count := range c.NextHops {
			if next > 1 {
				several += count
			}
		}
		if all := several + c.NextHops[1]; all != tc.routers || several != tc.several {
			t.Errorf("%s: several next hops for %d of %d, want %d of %d", tc.name, several, all, tc.several, tc.routers)
		}
	}
}
