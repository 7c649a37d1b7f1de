package paths

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/cflb"
)

// Quality is the loss and the round trips that the probes of a path showed.
type Quality struct {
	Sent, Lost          int
	Least, Median, Most time.Duration // round trips to the destination; 0: no probe was answered
}

// Shooter sends probes without repeating them.
type Shooter interface {
	// Once sends each probe once, and returns a reply to each, in their order. The reply to an
	// unanswered probe has no From.
	Once(context.Context, []Request) ([]Reply, error)
}

// roundTime is the shortest time between two probes of one path.
const roundTime = 50 * time.Millisecond

// Measure sends probes to the destination, with the initial time to live ttl: the given number for each flow. The flows
// take turns, so that they are measured at the same time. On an error it returns the measurements so far.
func Measure(ctx context.Context, s Shooter, flows []int, probes int, ttl uint8) ([]Quality, error) {
	all, trips := make([]Quality, len(flows)), make([][]time.Duration, len(flows))
	var requests []Request
	for _, f := range flows {
		requests = append(requests, Request{f, int(ttl)})
	}
	var err error
	for n := 0; n < probes && err == nil && len(flows) > 0; n++ {
		var replies []Reply
		if replies, err = s.Once(ctx, requests); err != nil {
			break
		}
		for i, r := range replies {
			if all[i].Sent++; r.From.IsValid() {
				trips[i] = append(trips[i], r.RTT)
			} else {
				all[i].Lost++
			}
		}
		if n+1 < probes {
			err = wait(ctx, roundTime)
		}
	}
	for i, t := range trips {
		if slices.Sort(t); len(t) > 0 {
			all[i].Least, all[i].Median, all[i].Most = t[0], t[len(t)/2], t[len(t)-1]
		}
	}
	return all, err
}

// Errors of Shared.
var (
	ErrLengths = errors.New("paths to the destination differ in length, so probes of a session's ports might reach it")
	ErrAlone   = errors.New("no other port was found on the session's path")
)

// mostAliases bounds the flows that are tried to find one on a session's path.
const mostAliases = 256

// Shared returns the path of a session, and another flow on the same path. session is the session's flow, which was not
// probed yet. Shared probes it only at distances before the destination, so that no probe reaches the session's other
// end.
func Shared(ctx context.Context, p Prober, g *Graph, session int) (path Path, flow int, err error) {
	path.Flow = session
	g.Flows[session] = map[int]netip.Addr{}
	for _, h := range g.Hops {
		at := h.Vertices[0].Addr
		switch ends := slices.IndexFunc(h.Vertices, func(v Vertex) bool { return v.Last }); {
		case ends >= 0 && len(h.Vertices) > 1:
			return path, 0, ErrLengths
		case ends < 0:
			replies, err := p.Probe(ctx, []Request{{session, h.Distance}})
			if err != nil {
				return path, 0, err
			}
			at = replies[0].From
		}
		g.Flows[session][h.Distance] = at
		path.Vertices = append(path.Vertices, at)
	}
	flows, err := Aliases(ctx, p, g, []Path{path}, 2, mostAliases)
	if err != nil {
		return path, 0, err
	}
	if i := slices.IndexFunc(flows[0], func(f int) bool { return f != session }); i >= 0 {
		return path, flows[0][i], nil
	}
	return path, 0, ErrAlone
}

// RoutedShared is like Shared, but for routers of a CFLB scheme. Those also choose by the time to live, so the
// session's path is computed from its source port instead of probed.
func RoutedShared(w *Wire, s *cflb.Scheme, net *cflb.Network, g *Graph, source uint16, ttl uint8) (path Path, flow int, err error) {
	u := cflb.Flow(w.flow.Source, w.flow.Destination, w.flow.Protocol)
	path.Flow = w.Add(Ports{source, w.flow.Port})
	var choices []cflb.Choice
	var at netip.Addr
	for distance := 1; distance <= len(g.Hops); distance++ {
		next := nextOf(net, at, distance-1)
		i := 0
		if received := ttl - uint8(distance-2); distance > 1 && len(next) > 1 {
			n := s.Decode(cflb.OfPorts(source, w.flow.Port), received, u)
			choices = append(choices, cflb.Choice{TTL: received, Next: n})
			i = slices.IndexFunc(next, func(e cflb.Edge) bool { return e.Next == n })
		}
		if i < 0 || len(next) == 0 {
			return path, 0, fmt.Errorf("the port %d contains no next hop of %v, which then hashes it with its own name", source, at)
		}
		at = next[i].To
		path.Vertices = append(path.Vertices, at)
		if next[i].Last {
			break
		}
	}
	ports, err := s.SourcePorts(choices, u, w.flow.Port, lowPorts, 1<<16-1, 2)
	if err != nil {
		return path, 0, err
	}
	if ports = slices.DeleteFunc(ports, func(p uint16) bool { return p == source }); len(ports) == 0 {
		return path, 0, ErrAlone
	}
	return path, w.Add(Ports{ports[0], w.flow.Port}), nil
}
