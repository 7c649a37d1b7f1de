package topology

import (
	"github.com/detour-collective/dcol/internal/cflb"
)

// Calibration holds the CFLB constants that fit a network, and its path diversity.
type Calibration struct {
	Nodes, Links int
	Pairs        int // pairs of a source and a destination with a path between them
	Radix        int // largest number of next hops, at least 2
	Hops         int // routers that choose on the longest of all shortest paths, including the source
	Bits         int // bits in the controlled fields, as given
	Length       int // choices that a path selector in these bits can hold
	Needed       int // bits for a path selector that fits the longest path; 0: more than there can be
	// Uncontrolled counts the pairs with a path on which two balancing routers use the same position of the selector.
	Uncontrolled int
	// NextHops[n] counts pairs of a router and a destination with n next hops, and Paths[n] pairs with n paths between
	// them. The last elements also count all pairs with more.
	NextHops, Paths []int
	MostPaths       int
}

// histogram is the number of elements of NextHops and Paths.
const histogram = 65

// Calibrate computes the constants for controlled fields with the given number of bits. If hosts is nil, all nodes are
// sources and destinations; otherwise only those in hosts are. Nodes that forward packets count as routers.
func (n *Network) Calibrate(bits int, hosts []int) Calibration {
	c := Calibration{
		Nodes: len(n.Names), Links: n.Links(), Bits: bits, Radix: 2,
		NextHops: make([]int, histogram), Paths: make([]int, histogram),
	}
	isHost := map[int]bool{}
	for _, h := range hosts {
		isHost[h] = true
	}
	all := make([]*Towards, 0, len(n.Names))
	for d := range n.Names {
		if hosts != nil && !isHost[d] {
			continue
		}
		t := n.To(d)
		all = append(all, t)
		for _, v := range t.order[1:] {
			c.Radix = max(c.Radix, len(t.Next[v]))
			if !n.leafs[v] {
				c.NextHops[min(len(t.Next[v]), histogram-1)]++
			}
		}
	}
	c.Length = cflb.Length(c.Radix, bits)
	for _, t := range all {
		paths, longest := t.count()
		impacted := t.collisions(c.Length, longest)
		for _, v := range t.order[1:] {
			if hosts != nil && !isHost[v] {
				continue
			}
			c.Pairs++
			c.Hops = max(c.Hops, longest[v])
			c.Paths[min(paths[v], histogram-1)]++
			c.MostPaths = max(c.MostPaths, paths[v])
			if impacted[v] {
				c.Uncontrolled++
			}
		}
	}
	c.Needed = cflb.BitsFor(c.Radix, c.Hops)
	return c
}

// Several returns the share of pairs with more than one next hop or path, from 0 to 1.
func Several(counts []int) float64 {
	several, all := 0, 0
	for n, count := range counts {
		all += count
		if n > 1 {
			several += count
		}
	}
	if all == 0 {
		return 0
	}
	return float64(several) / float64(all)
}

const mostPaths = 1 << 40

// count returns, for each node, the number of paths to the destination and the number of hops of the longest one.
func (t *Towards) count() (paths, longest []int) {
	paths, longest = make([]int, len(t.Next)), make([]int, len(t.Next))
	paths[t.order[0]] = 1
	for _, v := range t.order[1:] {
		for _, next := range t.Next[v] {
			paths[v] = min(mostPaths, paths[v]+paths[next])
			longest[v] = max(longest[v], 1+longest[next])
		}
	}
	return paths, longest
}

// collisions reports, for each node, whether some path from it to the destination has two nodes with several next hops
// whose distance is a multiple of length.
func (t *Towards) collisions(length int, longest []int) []bool {
	impacted := make([]bool, len(t.Next))
	for _, v := range t.order[1:] {
		if len(t.Next[v]) > 1 && longest[v] > length {
			impacted[v] = t.meets(v, length)
		}
		for _, next := range t.Next[v] {
			impacted[v] = impacted[v] || impacted[next]
		}
	}
	return impacted
}

// meets reports whether a node with several next hops is a multiple of length hops after v.
func (t *Towards) meets(v, length int) bool {
	level := map[int]bool{v: true}
	for hops := 1; len(level) > 0; hops++ {
		behind := map[int]bool{}
		for u := range level {
			for _, next := range t.Next[u] {
				behind[next] = true
				if hops%length == 0 && len(t.Next[next]) > 1 {
					return true
				}
			}
		}
		level = behind
	}
	return false
}
