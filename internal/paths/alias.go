package paths

import (
	"context"
	"maps"
	"net/netip"
	"slices"
)

// aliasBatch is the number of flows that are probed together.
const aliasBatch = 16

// Aliases returns flows on each of several paths of a graph. It looks for at least each flows on every path, because
// connections to one server cannot share a port. It probes at most most further flows, at all distances. On an error it
// returns the flows found so far.
func Aliases(ctx context.Context, p Prober, g *Graph, ways []Path, each, most int) (flows [][]int, err error) {
	flows = make([][]int, len(ways))
	sort := func(flow int, vertices []netip.Addr) {
		i := slices.IndexFunc(ways, func(w Path) bool { return slices.Equal(w.Vertices, vertices) })
		if i >= 0 && !slices.Contains(flows[i], flow) {
			flows[i] = append(flows[i], flow)
		}
	}
	for _, c := range g.complete() {
		sort(c.Flow, c.Vertices)
	}
	next := 0
	for f := range g.Flows {
		next = max(next, f+1)
	}
	enough := func() bool { return !slices.ContainsFunc(flows, func(f []int) bool { return len(f) < each }) }
	for probed := 0; probed < most && !enough(); probed += aliasBatch {
		passed := map[int][]netip.Addr{}
		var open []int
		for range aliasBatch {
			open = append(open, next)
			next++
		}
		for d := 1; d <= len(g.Hops) && len(open) > 0; d++ {
			var requests []Request
			for _, f := range open {
				requests = append(requests, Request{f, d})
			}
			replies, err := p.Probe(ctx, requests)
			if err != nil {
				return flows, err
			}
			var left []int
			for i, f := range open {
				passed[f] = append(passed[f], replies[i].From)
				if !replies[i].Last {
					left = append(left, f)
				}
			}
			open = left
		}
		for _, f := range slices.Sorted(maps.Keys(passed)) {
			sort(f, passed[f])
		}
	}
	return flows, nil
}
