package paths

import (
	"context"
	"net/netip"
	"slices"
)

// perVertex is the number of flows through each vertex with which the light variant tests for meshing.
const perVertex = 2

// lightHop finds the vertices at distance d as if one router chose among all of them. That is sound if all routers at
// the distance before have equally many next hops and share none. It reports whether the answers agree with that.
func (e *explorer) lightHop(ctx context.Context, d int) (sound bool, err error) {
	for {
		probed := 0
		for _, flows := range e.hops[d].flows {
			probed += len(flows)
		}
		need := e.stops.after(max(1, len(e.hops[d].vertices))) - probed
		if need <= 0 {
			break
		}
		if err := e.probe(ctx, d, e.going(d, need)); err != nil {
			return true, err
		}
	}
	if d == 1 {
		return true, nil
	}
	if err := e.joinUp(ctx, d); err != nil {
		return true, err
	}
	return e.soundBetween(ctx, d)
}

// going returns n flows that were not probed at distance d. It prefers flows whose vertex at the distance before is
// known.
func (e *explorer) going(d, n int) (all []int) {
	for f := 0; f < e.flows && len(all) < n; f++ {
		_, known := e.at(f, d)
		_, before := e.at(f, d-1)
		if !known && before && !e.over(f, d) {
			all = append(all, f)
		}
	}
	return append(all, e.newFlows(n-len(all))...)
}

// joinUp probes until each vertex at distance d has a known edge to the distance before, and each vertex there has one
// to distance d.
func (e *explorer) joinUp(ctx context.Context, d int) error {
	for _, v := range e.hops[d].vertices {
		if before, _ := e.neighbours(d, v, d-1); len(before) == 0 {
			if err := e.probe(ctx, d-1, e.hops[d].flows[v][:1]); err != nil {
				return err
			}
		}
	}
	for _, v := range e.hops[d-1].vertices {
		if e.hops[d-1].last[v] {
			continue
		}
		if after, _ := e.neighbours(d-1, v, d); len(after) == 0 {
			if err := e.probe(ctx, d, e.hops[d-1].flows[v][:1]); err != nil {
				return err
			}
		}
	}
	return nil
}

// neighbours returns the vertices at distance other that flows through v pass, and the number of these flows. v is a
// vertex at distance d.
func (e *explorer) neighbours(d int, v netip.Addr, other int) (all []netip.Addr, flows int) {
	for _, f := range e.hops[d].flows[v] {
		to, known := e.at(f, other)
		if !known {
			continue
		}
		if flows++; !slices.Contains(all, to) {
			all = append(all, to)
		}
	}
	return all, flows
}

// soundBetween reports whether the edges between distance d and the one before are uniform and not meshed: each vertex
// of the wider side has one neighbour, and all vertices of the narrower side have equally many.
func (e *explorer) soundBetween(ctx context.Context, d int) (bool, error) {
	wide, narrow := d, d-1
	if len(e.onward(d-1)) > len(e.hops[d].vertices) {
		wide, narrow = d-1, d
	}
	if len(e.onward(narrow)) < 2 {
		return true, nil
	}
	if err := e.testEach(ctx, wide, narrow); err != nil {
		return true, err
	}
	count := map[netip.Addr]int{}
	for _, v := range e.onward(wide) {
		others, _ := e.neighbours(wide, v, narrow)
		if len(others) > 1 {
			return false, nil
		}
		for _, o := range others {
			count[o]++
		}
	}
	first := -1
	for _, v := range e.onward(narrow) {
		if narrow < d && e.hops[narrow].last[v] {
			continue
		}
		if first < 0 {
			first = count[v]
		}
		if count[v] != first {
			return false, nil
		}
	}
	return true, nil
}

// testEach probes flows through each vertex at distance d also at distance other, so that perVertex flows are known
// there.
func (e *explorer) testEach(ctx context.Context, d, other int) error {
	for _, v := range e.onward(d) {
		_, known := e.neighbours(d, v, other)
		for _, f := range e.hops[d].flows[v] {
			if known >= perVertex {
				break
			}
			if _, done := e.at(f, other); done || e.over(f, other) {
				continue
			}
			if err := e.probe(ctx, other, []int{f}); err != nil {
				return err
			}
			known++
		}
	}
	return nil
}

// onward returns the vertices at distance d. It leaves out the destination unless that is the only one.
func (e *explorer) onward(d int) []netip.Addr {
	h := e.hops[d]
	var all []netip.Addr
	for _, v := range h.vertices {
		if !h.last[v] {
			all = append(all, v)
		}
	}
	if len(all) == 0 {
		return h.vertices
	}
	return all
}
