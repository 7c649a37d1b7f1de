package client

import (
	"context"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/claim"
)

// Why explains which paths connections to a server take, and why.
func (c *Client) Why(ctx context.Context, r api.WhyRequest) (api.Why, error) {
	return call(ctx, c, func(now time.Time) (api.Why, error) {
		kernel, err := c.host.figures()
		if err != nil {
			return api.Why{}, err
		}
		x := c.manager.Explain(r.Server, now)
		out := api.Why{
			Schema: api.WhySchema, Server: x.Server, Connections: []api.Connection{}, Closed: []api.ClosedConnection{},
			Direct: describeKnown(x.Direct), Candidates: []api.Candidate{}, Note: x.Note,
		}
		for _, conn := range x.Conns {
			out.Connections = append(out.Connections, describeConn(conn, kernel))
		}
		for _, conn := range x.Closed {
			out.Closed = append(out.Closed, api.ClosedConnection{Connection: describeConn(conn.ConnState, nil), Ended: conn.Ended})
		}
		for i := range x.Candidates {
			d := &x.Candidates[i]
			out.Candidates = append(out.Candidates, api.Candidate{
				Waypoint: d.Waypoint, Kind: d.Kind.String(), Taken: d.Taken, Measured: describeKnown(d.Known),
				Wait: milliseconds(d.Wait), Guessed: d.Wait > 0 && !d.Measured, Why: d.Why(), Reason: describeReason(&d.Reason), Until: d.Until,
				Claimed: describeClaimed(d.Claimed), Bottlenecks: describeBottlenecks(d.Bottlenecks),
			})
		}
		out.Mends = mendsOf(&out)
		return out, nil
	})
}

func describeReason(r *path.CandidateReason) api.Reason {
	out := api.Reason{Code: r.Code(), Loss: r.Loss, Failures: r.Failures}
	for _, x := range r.Compared() {
		out.Compared = append(out.Compared, api.Compared{
			With: x.Waypoint, Goodput: x.Goodput, OtherGoodput: x.OtherGoodput, Wait: milliseconds(x.Wait), OtherWait: milliseconds(x.OtherWait),
		})
	}
	return out
}

// describeClaimed returns what other members measured of a waypoint; nil: nothing.
func describeClaimed(h claim.Hint) *api.Claimed {
	if h.Members+h.Wrong == 0 {
		return nil
	}
	return &api.Claimed{Members: h.Members, Wrong: h.Wrong, Proven: h.Proven, Loss: h.Loss.String(), Goodput: h.Goodput.String()}
}

func describeBottlenecks(all []path.Bottleneck) (list []api.Bottleneck) {
	for _, b := range all {
		list = append(list, api.Bottleneck{
			With: b.With, Relation: b.Relation.String(), Pairs: b.Pairs, Lost: b.Lost, Least: b.Least, Most: b.Most,
		})
	}
	return list
}

func describeKnown(k path.Known) api.Measured {
	return api.Measured{At: k.At, MinRTT: milliseconds(k.MinRTT), Loss: k.Loss, Packets: k.Packets, Goodput: k.Goodput, Failures: k.Failures}
}
