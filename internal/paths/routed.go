package paths

import (
	"context"
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/cflb"
)

// DiscoverRouted finds the paths through routers that balance load by a CFLB scheme, whose constants are known. Each
// path's ports are computed for packets with an initial time to live, from a range of source ports.
func DiscoverRouted(ctx context.Context, w *Wire, s *cflb.Scheme, maxHops int, ttl uint8) (*Graph, []Path, *cflb.Network, error) {
	u := cflb.Flow(w.flow.Source, w.flow.Destination, w.flow.Protocol)
	rtt := map[netip.Addr]Reply{}
	net, err := cflb.Discover(s.Radix(), maxHops, func(choices []int, distance int) (netip.Addr, bool, error) {
		c, err := s.EncodeProbe(choices, distance, u)
		if err != nil {
			return netip.Addr{}, false, err
		}
		source, destination := cflb.Ports(c)
		if source == 0 {
			source = 1 // the scheme gives that to a probe in 65536: it takes any path
		}
		replies, err := w.Probe(ctx, []Request{{w.Add(Ports{source, destination}), distance}})
		if err != nil {
			return netip.Addr{}, false, err
		}
		rtt[replies[0].From] = replies[0]
		return replies[0].From, replies[0].Last, nil
	})
	g := graphOf(net, rtt, w.flow.Destination)
	g.Probes = w.Sent()
	if err != nil {
		return g, nil, net, err
	}
	return g, routedPaths(w, s, u, net, g, ttl), net, nil
}

// graphOf makes a graph of the edges that were found.
func graphOf(net *cflb.Network, replies map[netip.Addr]Reply, destination netip.Addr) *Graph {
	g := &Graph{Flows: map[int]map[int]netip.Addr{}}
	for _, e := range net.Edges {
		for len(g.Hops) < e.Distance {
			g.Hops = append(g.Hops, Hop{Distance: len(g.Hops) + 1})
		}
		v := g.Vertex(e.Distance, e.To)
		if v == nil {
			h := &g.Hops[e.Distance-1]
			r := replies[e.To]
			h.Vertices = append(h.Vertices, Vertex{Addr: e.To, RTT: r.RTT, Last: r.Last, Translated: r.Translated})
			v = &h.Vertices[len(h.Vertices)-1]
			g.Reached = g.Reached || r.Last && e.To == destination
		}
		v.Probes++
		if e.Distance > 1 && !slices.Contains(v.Before, e.From) {
			v.Before = append(v.Before, e.From)
		}
	}
	g.trim()
	return g
}

// mostRouted bounds the paths whose ports are computed.
const mostRouted = 64

// routedPaths returns the paths of a graph, each with a flow that takes it.
func routedPaths(w *Wire, s *cflb.Scheme, u cflb.Uncontrolled, net *cflb.Network, g *Graph, ttl uint8) (all []Path) {
	var follow func(at netip.Addr, passed []netip.Addr, choices []int)
	follow = func(at netip.Addr, passed []netip.Addr, choices []int) {
		v := g.Vertex(len(passed), at)
		if len(all) == mostRouted || len(passed) > len(g.Hops) {
			return
		}
		if v != nil && v.Last {
			ports, err := s.SourcePorts(cflb.EncodeFlow(choices, ttl), u, w.flow.Port, lowEnd, highPorts-1, 1)
			if err == nil && len(ports) > 0 {
				all = append(all, Path{w.Add(Ports{ports[0], w.flow.Port}), passed})
			}
			return
		}
		for _, e := range net.Edges {
			if e.From != at || len(passed) == 0 && e.Distance != 1 || len(passed) > 0 && e.Distance == 1 {
				continue
			}
			next := choices
			if len(passed) > 0 {
				next = append(slices.Clone(choices), e.Next)
			}
			follow(e.To, append(slices.Clone(passed), e.To), next)
		}
	}
	follow(netip.Addr{}, nil, nil)
	return all
}
