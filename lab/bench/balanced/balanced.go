// Package balanced simulates networks of routers that balance load, for the benchmark of paths by ports. It forwards
// probes without time, and is pure.
package balanced

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"

	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/paths"
)

// Graph has each router's next hops, by index. A node without any is the destination. Node 0 is the first router.
type Graph [][]int

// Diamond returns a router with so many next hops, which lead to one router before the destination.
func Diamond(width int) Graph {
	g := Graph{nil}
	for i := range width {
		g[0] = append(g[0], 1+i)
		g = append(g, []int{width + 1})
	}
	return append(g, []int{width + 2}, nil)
}

// Ladder returns routers in a row, each with so many next hops: one is the next router of the row, the others lead to
// the destination side by side. The last router of the row has routers of its own before the destination. It follows
// figure 5.16 in G. Detal's thesis, with a first router that does not balance load.
func Ladder(routers, width int) Graph {
	destination := 1 + routers*width
	g := make(Graph, destination+1)
	node := func(level, column int) int {
		if level == routers {
			return destination
		}
		if column == 0 {
			return 1 + level
		}
		return 1 + routers + level*(width-1) + column - 1
	}
	g[0] = []int{1}
	for level := range routers {
		for column := range width {
			g[node(level, column)] = []int{node(level+1, column)}
			if column > 0 && level+1 < routers {
				g[node(level, 0)] = append(g[node(level, 0)], node(level+1, column))
			}
		}
	}
	last := node(routers-1, 0)
	g[last] = nil
	for range width {
		g[last] = append(g[last], len(g))
		g = append(g, []int{destination})
	}
	return g.reachable()
}

// reachable returns the graph without the nodes that no packet reaches.
func (g Graph) reachable() Graph {
	number, order := map[int]int{0: 0}, []int{0}
	for i := 0; i < len(order); i++ { // it grows
		for _, to := range g[order[i]] {
			if _, known := number[to]; !known {
				number[to] = len(order)
				order = append(order, to)
			}
		}
	}
	small := make(Graph, len(order))
	for i, old := range order {
		for _, to := range g[old] {
			small[i] = append(small[i], number[to])
		}
	}
	return small
}

// Edges returns the number of edges between routers, and to the destination.
func (g Graph) Edges() (n int) {
	for _, next := range g {
		n += len(next)
	}
	return n
}

// addr returns a node's address.
func addr(node int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], 10<<24+uint32(node))
	return netip.AddrFrom4(b)
}

// Hashing is a network whose routers choose by chance, once for each flow. It is a paths.Prober.
type Hashing struct {
	Graph Graph
	Seed  uint64
	sent  int
}

// Sent returns the number of probes.
func (h *Hashing) Sent() int { return h.sent }

// Probe answers probes.
func (h *Hashing) Probe(_ context.Context, requests []paths.Request) (replies []paths.Reply, err error) {
	for _, r := range requests {
		h.sent++
		at := 0
		for d := 1; d < r.Distance && len(h.Graph[at]) > 0; d++ {
			random := rand.New(rand.NewPCG(h.Seed, uint64(r.Flow)<<32|uint64(at)))
			at = h.Graph[at][random.IntN(len(h.Graph[at]))]
		}
		replies = append(replies, paths.Reply{From: addr(at), Last: len(h.Graph[at]) == 0, Reached: len(h.Graph[at]) == 0})
	}
	return replies, nil
}

// Missing returns how many edges of the graph an exploration has not found.
func (g Graph) Missing(found *paths.Graph) (n int) {
	reached := map[[2]int]bool{}
	var visit func(from, distance int)
	visit = func(from, distance int) {
		if reached[[2]int{from, distance}] {
			return
		}
		reached[[2]int{from, distance}] = true
		for _, to := range g[from] {
			if !hasEdge(found.Vertex(distance+1, addr(to)), addr(from)) {
				n++
			}
			visit(to, distance+1)
		}
	}
	visit(0, 1)
	return n
}

func hasEdge(v *paths.Vertex, from netip.Addr) bool {
	if v == nil {
		return false
	}
	for _, b := range v.Before {
		if b == from {
			return true
		}
	}
	return false
}

// Flow is the flow of all probes, but for its ports.
var Flow = cflb.Flow(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 6)

// Steered returns the probes' answers in a network of CFLB routers.
func (g Graph) Steered(s *cflb.Scheme) cflb.ProbeFunc {
	return func(choices []int, distance int) (netip.Addr, bool, error) {
		c, err := s.EncodeProbe(choices, distance, Flow)
		if err != nil {
			return netip.Addr{}, false, err
		}
		at := 0
		for ttl := distance; ttl > 1 && len(g[at]) > 0; ttl-- {
			at = g[at][cflb.Router{Scheme: s, ID: uint32(at)}.Next(c, Flow, uint8(ttl), len(g[at]))]
		}
		return addr(at), len(g[at]) == 0, nil
	}
}
