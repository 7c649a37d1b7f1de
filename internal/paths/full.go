package paths

import (
	"context"
	"net/netip"
	"slices"
)

// fullHop finds the next hops of each vertex at distance d-1. For each vertex, it uses flows that are known to pass it.
// This is the multipath detection algorithm with node control.
func (e *explorer) fullHop(ctx context.Context, d int) error {
	for i := 0; ; i++ {
		before := e.hops[d-1]
		if i == len(before.vertices) { // the search for flows may have found more vertices
			return nil
		}
		v := before.vertices[i]
		if d > 1 && before.last[v] {
			continue
		}
		if err := e.successors(ctx, d, v); err != nil {
			return err
		}
	}
}

// successors probes until all next hops of v, a vertex at distance d-1, are known, within the bound.
func (e *explorer) successors(ctx context.Context, d int, v netip.Addr) error {
	searched := 0
	for {
		probed, found, ready := e.through(d, v)
		need := e.stops.after(max(1, found)) - probed
		if reached := e.reached(d); reached > 0 && e.delivers(d, v) {
			need = e.stops.after(1) - reached
			if probed == 0 {
				need = 1
			}
		}
		if need <= 0 {
			return nil
		}
		if len(ready) > 0 {
			if err := e.probe(ctx, d, ready[:min(need, len(ready))]); err != nil {
				return err
			}
			continue
		}
		fresh := e.newFlows(need)
		if _, alone := e.alone(d - 1); alone {
			if err := e.probe(ctx, d, fresh); err != nil {
				return err
			}
			continue
		}
		// A vertex that one flow passed by chance may be hard to reach with another flow.
		if searched += need; searched > searchFactor*need*max(1, len(e.hops[d-1].vertices))+searchLeast {
			return nil
		}
		if err := e.probe(ctx, d-1, fresh); err != nil {
			return err
		}
	}
}

// reached returns the number of flows that are known to reach the destination at distance d.
func (e *explorer) reached(d int) (n int) {
	for _, flows := range e.hops[d].flows {
		for _, f := range flows {
			if e.paths[Request{f, d}].Reached {
				n++
			}
		}
	}
	return n
}

// delivers reports whether all flows through v that were probed at distance d reached the destination there. A router
// on the destination's subnet has no other next hop. Such routers are assumed to be alike, so the probes through all of
// them count together, and one probe through each is enough.
func (e *explorer) delivers(d int, v netip.Addr) bool {
	for _, f := range e.passing(d, v) {
		if reply, known := e.paths[Request{f, d}]; known && !reply.Reached {
			return false
		}
	}
	return true
}

// searchFactor and searchLeast bound the number of flows that are tried to find some that pass a vertex.
const (
	searchFactor = 8
	searchLeast  = 64
)

// alone returns the vertex at distance d if it is the only one. All flows pass it then, and need not be probed there.
// It returns false in the light variant, and if a shorter path leads to the destination.
func (e *explorer) alone(d int) (v netip.Addr, ok bool) {
	if !e.full || len(e.hops[d].vertices) != 1 {
		return v, false
	}
	for _, h := range e.hops[:d+1] {
		if slices.ContainsFunc(h.vertices, func(v netip.Addr) bool { return h.last[v] }) {
			return v, false
		}
	}
	return e.hops[d].vertices[0], true
}

// through looks at the flows that pass v, a vertex at distance d-1. It returns how many of them were probed at distance
// d, how many next hops these show, and the flows that were not probed there yet.
func (e *explorer) through(d int, v netip.Addr) (probed, found int, ready []int) {
	var next []netip.Addr
	for _, f := range e.passing(d, v) {
		reply, known := e.paths[Request{f, d}]
		if !known {
			ready = append(ready, f)
			continue
		}
		probed++
		if !slices.Contains(next, reply.From) {
			next = append(next, reply.From)
		}
	}
	return probed, len(next), ready
}

// passing returns the flows that are known to pass v, a vertex at distance d-1.
func (e *explorer) passing(d int, v netip.Addr) []int {
	if _, alone := e.alone(d - 1); !alone {
		return e.hops[d-1].flows[v]
	}
	flows := make([]int, e.flows)
	for f := range flows {
		flows[f] = f
	}
	return flows
}
