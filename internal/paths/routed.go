package paths

import (
	"context"
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/cflb"
)

// Routed holds what was found through routers that balance load by a CFLB scheme.
type Routed struct {
	Graph   *Graph
	Paths   []Path // each with a flow on it
	Network *cflb.Network
	Unled   int // number of paths to which no source port leads
}

// DiscoverRouted finds the paths through routers that balance load by a CFLB scheme with known constants. Each path's
// port is computed for packets whose initial time to live is ttl. On an error, it also returns the findings so far.
func DiscoverRouted(ctx context.Context, w *Wire, s *cflb.Scheme, o cflb.Options, ttl uint8) (*Routed, error) {
	o.Radix = s.Radix()
	u := cflb.Flow(w.flow.Source, w.flow.Destination, w.flow.Protocol)
	rtt := map[netip.Addr]Reply{}
	net, err := cflb.Discover(o, func(choices []int, distance int) (netip.Addr, bool, error) {
		c, err := s.EncodeProbe(choices, distance, u)
		if err != nil {
			return netip.Addr{}, false, err
		}
		source, destination := cflb.Ports(c)
		if source == 0 {
			source = 1 // the scheme gives source port 0 to one probe in 65536, which may take any path
		}
		replies, err := w.Probe(ctx, []Request{{w.Add(Ports{source, destination}), distance}})
		if err != nil {
			return netip.Addr{}, false, err
		}
		rtt[replies[0].From] = replies[0]
		return replies[0].From, replies[0].Last, nil
	})
	r := &Routed{Network: net, Graph: graphOf(net, rtt, w.flow.Destination)}
	r.Graph.Probes = w.Sent()
	r.follow(w, s, u, ttl)
	return r, err
}

// nextOf returns the edges from a router at a distance, or from the source at distance 0. A router at several distances
// was probed at one of them only.
func nextOf(net *cflb.Network, at netip.Addr, distance int) (next []cflb.Edge) {
	for _, e := range net.Edges {
		if e.From == at && (at.IsValid() && distance > 0 || e.Distance == distance+1) {
			next = append(next, e)
		}
	}
	return next
}

// graphOf turns the edges that were found into a Graph.
func graphOf(net *cflb.Network, replies map[netip.Addr]Reply, destination netip.Addr) *Graph {
	g := &Graph{Flows: map[int]map[int]netip.Addr{}}
	at := []netip.Addr{{}}
	for distance := 1; len(at) > 0 && distance <= mostDistance; distance++ {
		g.Hops = append(g.Hops, Hop{Distance: distance})
		var reached []netip.Addr
		for _, from := range at {
			for _, e := range nextOf(net, from, distance-1) {
				if g.routed(e, distance, replies[e.To], destination) && !e.Last {
					reached = append(reached, e.To)
				}
			}
		}
		at = reached
	}
	for n := len(g.Hops); n > 0 && len(g.Hops[n-1].Vertices) == 0; n-- {
		g.Hops = g.Hops[:n-1]
	}
	g.trim()
	return g
}

// mostDistance bounds walks over the edges, which may form loops.
const mostDistance = 64

// routed adds an edge to the graph, at a distance. It reports whether its end is a new vertex there.
func (g *Graph) routed(e cflb.Edge, distance int, r Reply, destination netip.Addr) bool {
	v := g.Vertex(distance, e.To)
	added := v == nil
	if added {
		h := &g.Hops[distance-1]
		h.Vertices = append(h.Vertices, Vertex{Addr: e.To, RTT: r.RTT, Last: e.Last, Translated: r.Translated})
		v = &h.Vertices[len(h.Vertices)-1]
		g.Reached = g.Reached || e.Last && e.To == destination
	}
	v.Probes++
	if distance > 1 && !slices.Contains(v.Before, e.From) {
		v.Before = append(v.Before, e.From)
	}
	return added
}

// mostRouted bounds the paths whose ports are computed.
const mostRouted = 64

// follow finds the paths through the network, each with a flow that takes it.
func (r *Routed) follow(w *Wire, s *cflb.Scheme, u cflb.Uncontrolled, ttl uint8) {
	var walk func(at netip.Addr, passed []netip.Addr, choices []int)
	walk = func(at netip.Addr, passed []netip.Addr, choices []int) {
		if len(passed) > len(r.Graph.Hops) {
			return
		}
		next := nextOf(r.Network, at, len(passed))
		for _, e := range next {
			if len(r.Paths)+r.Unled == mostRouted || slices.Contains(passed, e.To) && e.To.IsValid() {
				continue
			}
			way, chosen := append(slices.Clone(passed), e.To), slices.Clone(choices)
			switch {
			case len(passed) == 0: // the source has one next hop
			case len(next) == 1:
				chosen = append(chosen, cflb.Any)
			default:
				chosen = append(chosen, e.Next)
			}
			if !e.Last {
				walk(e.To, way, chosen)
			} else if port, ok := portOf(s, cflb.EncodeFlow(chosen, ttl), u, w.flow.Port); ok {
				r.Paths = append(r.Paths, Path{w.Add(Ports{port, w.flow.Port}), way})
			} else {
				r.Unled++
			}
		}
	}
	walk(netip.Addr{}, nil, nil)
}

// portOf returns a source port that leads along a path. It prefers ports that Linux does not assign to connections of
// its own.
func portOf(s *cflb.Scheme, path []cflb.Choice, u cflb.Uncontrolled, destination uint16) (port uint16, ok bool) {
	for _, area := range [][2]int{{highPorts, 1<<16 - 1}, {lowPorts, lowEnd - 1}, {lowEnd, highPorts - 1}} {
		ports, err := s.SourcePorts(path, u, destination, uint16(area[0]), uint16(area[1]), 1)
		if err == nil && len(ports) > 0 {
			return ports[0], true
		}
	}
	return 0, false
}
