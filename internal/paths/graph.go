package paths

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Graph holds the paths to a destination, by distance.
type Graph struct {
	Hops []Hop // from distance 1 on
	// Flows has the vertices of each flow, by the flow's number and by distance. Distances at which a flow was not
	// probed are missing.
	Flows     map[int]map[int]netip.Addr
	Reached   bool // the destination has answered
	Probes    int  // packets sent
	Light     bool // found by the light variant
	Bound     float64
	PerRouter bool
}

// Hop has the vertices at a distance.
type Hop struct {
	Distance int
	Vertices []Vertex
}

// Vertex is a router, or the destination, at one distance. All routers at a distance that do not answer are one vertex
// with an invalid address.
type Vertex struct {
	Addr       netip.Addr
	Before     []netip.Addr // its neighbours at the distance before; none at distance 1
	Last       bool
	Translated bool // a NAT changed the source address or port of probes that arrive here
	Renumbered bool // a NAT changed their source port
	RTT        time.Duration
	Probes     int // number of flows seen here
}

// graph returns the findings so far as a Graph.
func (e *explorer) graph() *Graph {
	g := &Graph{Flows: map[int]map[int]netip.Addr{}}
	for d := 1; d < len(e.hops); d++ {
		h := Hop{Distance: d}
		for _, addr := range e.hops[d].vertices {
			v := Vertex{Addr: addr, Last: e.hops[d].last[addr], Probes: len(e.hops[d].flows[addr])}
			if d > 1 {
				v.Before, _ = e.neighbours(d, addr, d-1)
				v.Before = slices.DeleteFunc(v.Before, func(b netip.Addr) bool { return e.hops[d-1].last[b] })
			}
			for _, f := range e.hops[d].flows[addr] {
				r := e.paths[Request{f, d}]
				if v.RTT == 0 || r.RTT > 0 && r.RTT < v.RTT {
					v.RTT = r.RTT
				}
				v.Translated, v.Renumbered = v.Translated || r.Translated, v.Renumbered || r.Renumbered
			}
			g.Reached = g.Reached || v.Last
			h.Vertices = append(h.Vertices, v)
		}
		if len(h.Vertices) > 0 {
			g.Hops = append(g.Hops, h)
		}
	}
	for r, reply := range e.paths {
		if g.Flows[r.Flow] == nil {
			g.Flows[r.Flow] = map[int]netip.Addr{}
		}
		g.Flows[r.Flow][r.Distance] = reply.From
	}
	g.trim()
	return g
}

// trim removes distances at the end at which nothing answers.
func (g *Graph) trim() {
	for n := len(g.Hops); n > 0 && len(g.Hops[n-1].Vertices) == 1 && !g.Hops[n-1].Vertices[0].Addr.IsValid(); n-- {
		g.Hops = g.Hops[:n-1]
	}
}

// Vertex returns the vertex with an address at a distance.
func (g *Graph) Vertex(distance int, addr netip.Addr) *Vertex {
	if distance < 1 || distance > len(g.Hops) {
		return nil
	}
	all := g.Hops[distance-1].Vertices
	if i := slices.IndexFunc(all, func(v Vertex) bool { return v.Addr == addr }); i >= 0 {
		return &all[i]
	}
	return nil
}

// next returns the number of next hops of a vertex.
func (g *Graph) next(distance int, addr netip.Addr) (n int) {
	if distance >= len(g.Hops) {
		return 0
	}
	for _, v := range g.Hops[distance].Vertices {
		if distance == 0 || slices.Contains(v.Before, addr) {
			n++
		}
	}
	return n
}

// Renumbered reports whether a NAT on the way changes source ports. This host's ports then choose no path.
func (g *Graph) Renumbered() bool {
	return slices.ContainsFunc(g.Hops, func(h Hop) bool {
		return slices.ContainsFunc(h.Vertices, func(v Vertex) bool { return v.Renumbered })
	})
}

// Branching returns the number of vertices with several next hops.
func (g *Graph) Branching() (n int) {
	if g.next(0, netip.Addr{}) > 1 {
		n++
	}
	for _, h := range g.Hops {
		for _, v := range h.Vertices {
			if g.next(h.Distance, v.Addr) > 1 {
				n++
			}
		}
	}
	return n
}

// mostPaths bounds the count of paths, because the numbers of paths of successive diamonds multiply.
const mostPaths = 1 << 40

// Paths returns the number of paths through the graph.
func (g *Graph) Paths() int {
	if len(g.Hops) == 0 {
		return 0
	}
	total := 0
	before := map[netip.Addr]int{}
	for _, h := range g.Hops {
		now := map[netip.Addr]int{}
		for _, v := range h.Vertices {
			n := 0
			if h.Distance == 1 {
				n = 1
			}
			for _, b := range v.Before {
				n += before[b]
			}
			n = min(n, mostPaths)
			if v.Last || h.Distance == len(g.Hops) {
				total += n
			} else {
				now[v.Addr] = n
			}
		}
		before = now
	}
	return min(total, mostPaths)
}

// Path is a flow with the vertices that it passes, from distance 1 on.
type Path struct {
	Flow     int
	Vertices []netip.Addr
}

// complete returns the flows that were probed at every distance, in the order of their numbers.
func (g *Graph) complete() (all []Path) {
	for flow, at := range g.Flows {
		p := Path{Flow: flow}
		for d := 1; d <= len(g.Hops); d++ {
			addr, known := at[d]
			if !known {
				break
			}
			p.Vertices = append(p.Vertices, addr)
			if v := g.Vertex(d, addr); v != nil && v.Last {
				break
			}
		}
		end := len(p.Vertices)
		if v := g.Vertex(end, last(p.Vertices)); end == len(g.Hops) || v != nil && v.Last {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b Path) int { return cmp.Compare(a.Flow, b.Flow) })
	return all
}

func last(all []netip.Addr) (a netip.Addr) {
	if len(all) > 0 {
		a = all[len(all)-1]
	}
	return a
}

// Distinct returns up to n flows on different paths. Each path shares as few routers as possible with the ones chosen
// before.
func (g *Graph) Distinct(n int) (chosen []Path) {
	left := g.complete()
	type place struct {
		distance int
		addr     netip.Addr
	}
	taken := map[place]int{}
	for len(chosen) < n {
		best, bestCost := -1, 0
		for i, p := range left {
			cost, same := 0, true
			for d, a := range p.Vertices {
				cost += taken[place{d + 1, a}]
				same = same && taken[place{d + 1, a}] > 0
			}
			if same && slices.ContainsFunc(chosen, func(c Path) bool { return slices.Equal(c.Vertices, p.Vertices) }) {
				continue
			}
			if best < 0 || cost < bestCost {
				best, bestCost = i, cost
			}
		}
		if best < 0 {
			break
		}
		for d, a := range left[best].Vertices {
			taken[place{d + 1, a}]++
		}
		chosen = append(chosen, left[best])
	}
	return chosen
}
