package paths

import (
	"context"
	"slices"
)

// triesPerWay is the number of flows that are probed at all distances for each wanted path.
const triesPerWay = 4

// complete probes flows at all distances, until flows on ways distinct paths are known. The search before has probed
// most flows at a few distances only.
func (e *explorer) complete(ctx context.Context, ways int) error {
	for range triesPerWay * ways {
		g := e.graph()
		done := g.Distinct(ways)
		if len(done) >= min(ways, g.Paths()) {
			return nil
		}
		flow, ok := e.promising(g, done)
		if !ok {
			return nil
		}
		for d := 1; d <= len(g.Hops); d++ {
			if err := e.probe(ctx, d, []int{flow}); err != nil {
				return err
			}
			if e.paths[Request{flow, d}].Last {
				break
			}
		}
	}
	return nil
}

// promising returns the incomplete flow with the most known vertices that no complete flow passes.
func (e *explorer) promising(g *Graph, done []Path) (flow int, ok bool) {
	passed := func(r Request, reply Reply) bool {
		return slices.ContainsFunc(done, func(p Path) bool {
			return r.Distance <= len(p.Vertices) && p.Vertices[r.Distance-1] == reply.From
		})
	}
	complete := map[int]bool{}
	for _, p := range g.complete() {
		complete[p.Flow] = true
	}
	others := map[int]int{}
	for r, reply := range e.paths {
		if !complete[r.Flow] && !passed(r, reply) {
			others[r.Flow]++
		}
	}
	for f := range e.flows {
		if !complete[f] && (!ok || others[f] > others[flow]) {
			flow, ok = f, true
		}
	}
	return flow, ok
}
