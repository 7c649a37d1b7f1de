package client

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/claim"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// Why explains which paths connections to a server take, and why.
func (c *Client) Why(ctx context.Context, r api.WhyRequest) (api.Why, error) {
	open, closed, err := c.converted(ctx, r.Server)
	if err != nil {
		return api.Why{}, err
	}
	return call(ctx, c.inbox, func(now time.Time) (api.Why, error) {
		server := r.Server
		x := c.manager.Explain(server, c.host.sourceFor(server.Addr()), now)
		if server.Port() == 0 && len(x.Conns)+len(x.Closed) == 0 && len(open)+len(closed) > 0 {
			server = newestServer(open, closed)
			x = c.manager.Explain(server, c.host.sourceFor(server.Addr()), now)
		}
		out := api.Why{
			Schema: api.WhySchema, Server: x.Server, Connections: []api.Connection{}, Closed: []api.ClosedConnection{},
			Direct: api.Outlook{Measured: describeKnown(x.Direct.Known), Wait: milliseconds(x.Direct.Wait), Expected: expected(&x.Direct)}, Candidates: []api.Candidate{}, Note: x.Note.Text, NoteReason: describeNote(&x.Note), Converter: c.converters.why(x.Server.Addr(), now),
		}
		for _, conn := range x.Conns {
			out.Connections = append(out.Connections, describeConn(conn))
		}
		out.Connections = append(out.Connections, open...)
		slices.SortStableFunc(out.Connections, func(a, b api.Connection) int { return a.Since.Compare(b.Since) })
		if err := c.host.addFigures(out.Connections); err != nil {
			return api.Why{}, err
		}
		for _, conn := range x.Closed {
			out.Closed = append(out.Closed, api.ClosedConnection{Connection: describeConn(conn.ConnState), Ended: conn.Ended})
		}
		out.Closed = append(out.Closed, closed...)
		slices.SortStableFunc(out.Closed, func(a, b api.ClosedConnection) int { return b.Ended.Compare(a.Ended) })
		for i := range x.Candidates {
			d := &x.Candidates[i]
			candidate := api.Candidate{
				Waypoint: d.Waypoint, Addr: endOf(&d.Detour), Kind: d.Kind.String(), Taken: d.Taken, Untried: !tried(&x, d), Measured: describeKnown(d.Known),
				Wait: milliseconds(d.Wait), Guessed: guessed(d), AtLeast: atLeast(&x, d), Expected: expected(&d.Outlook),
				Why: d.Why(), Change: d.Change(), Reason: describeReason(&d.Reason), Until: d.Until,
				Claimed: describeClaimed(d.Claimed), Bottlenecks: describeBottlenecks(d.Bottlenecks),
			}
			// A tunnel is a detour for servers of each family. One of the two may rest while the other
			// does not.
			same := func(o api.Candidate) bool {
				return !candidate.Taken && o.Waypoint == candidate.Waypoint && o.Kind == candidate.Kind && o.Why == candidate.Why && o.Until.Equal(candidate.Until)
			}
			if !slices.ContainsFunc(out.Candidates, same) {
				out.Candidates = append(out.Candidates, candidate)
			}
		}
		out.Unavailable = c.unavailable(&x, now)
		out.Fixes = fixesOf(&out, &c.steering)
		return out, nil
	})
}

// endOf returns the waypoint's address to which a detour leads; the zero value without a waypoint.
func endOf(d *path.Detour) netip.Addr {
	switch {
	case d.Waypoint == "":
		return netip.Addr{}
	case d.Endpoint.IsValid():
		return d.Endpoint
	}
	return d.Remote.Addr()
}

// newestServer returns the server of the newest converted connection, or of the one that ended last.
func newestServer(open []api.Connection, closed []api.ClosedConnection) netip.AddrPort {
	if len(open) > 0 {
		return slices.MaxFunc(open, func(a, b api.Connection) int { return a.Since.Compare(b.Since) }).Server
	}
	return slices.MaxFunc(closed, func(a, b api.ClosedConnection) int { return a.Ended.Compare(b.Ended) }).Server
}

// tried reports whether a connection to the server has taken a detour lately.
func tried(x *path.Explanation, d *path.Candidate) bool {
	took := func(c *path.ConnState) bool {
		return c.Remote == x.Server && (slices.ContainsFunc(c.Subflows, func(s path.SubflowState) bool {
			return s.Waypoint == d.Waypoint && s.Kind == d.Kind.String() && s.State != string(api.SubflowJoining)
		}) || slices.ContainsFunc(c.Left, func(l path.Departure) bool { return l.Waypoint == d.Waypoint && l.Kind == d.Kind.String() }))
	}
	return slices.ContainsFunc(x.Conns, func(c path.ConnState) bool { return took(&c) }) ||
		slices.ContainsFunc(x.Closed, func(c path.ClosedConn) bool { return took(&c.ConnState) })
}

// unavailable returns the waypoints in use that have no candidate, as far as it is known why.
func (c *Client) unavailable(x *path.Explanation, now time.Time) (list []api.Unavailable) {
	if c.manager.Excludes(x.Server.Addr()) {
		return nil
	}
	detours := byStanding(c.manager.Snapshot(now).Detours)
	for _, name := range slices.Sorted(maps.Keys(c.roster.using)) {
		if slices.ContainsFunc(x.Candidates, func(d path.Candidate) bool { return d.Waypoint == name }) {
			continue
		}
		for _, v := range c.roster.using[name].vias {
			w := c.describeWaypoint(v, c.roster.sessions[v], 0, detours)
			if why := c.unavailableWhy(v, &w, x.Server, now); why != "" {
				list = append(list, api.Unavailable{Waypoint: name, State: w.State, Why: why})
				break
			}
		}
	}
	return list
}

// unavailableWhy returns why no detour through an address of a waypoint leads to a server; empty if that is not known.
func (c *Client) unavailableWhy(v detour.Via, w *api.Waypoint, server netip.AddrPort, now time.Time) string {
	if will := c.steering.will(); !will.Allows(v.Waypoint) {
		return policy.Rest{Cause: policy.RestsUnwanted}.Words(path.InBand)
	}
	if refused := c.book.Refusal(v, server, now); refused != "" || w.State != api.WaypointUp {
		return cmp.Or(refused, w.Why, string(w.State))
	}
	var whys []string
	for _, k := range w.Kinds {
		switch {
		case k.State != api.KindReady && k.Why != "":
			whys = append(whys, k.Kind+" is "+string(k.State)+": "+k.Why)
		case k.State == api.KindReady && k.Kind == path.Mapped.String() && v.Addr.Is4() == server.Addr().Is4():
			whys = append(whys, "a mapped detour is requested when a connection begins")
		}
	}
	return strings.Join(whys, "; ")
}

// guessed reports whether the wait of messages was estimated from round trips of other paths.
func guessed(d *path.Candidate) bool { return d.Wait > 0 && !d.Measured }

// atLeast reports whether the wait of messages has only the way to the waypoint.
func atLeast(x *path.Explanation, d *path.Candidate) bool {
	return guessed(d) && x.Direct.Known.MinRTT == 0
}

// expected returns the rate that one more bulk connection may expect of a path, or nil if it is not known.
func expected(o *path.Outlook) *float64 {
	if !o.ExpectedKnown {
		return nil
	}
	return &o.Expected
}

func describeReason(r *policy.CandidateReason) api.Reason {
	out := api.Reason{Code: r.Code(), Loss: r.Loss, Failures: r.Failures, Compared: describeCompared(r.Compared())}
	if spent, ok := errors.AsType[path.SpentError](r.Rest.Err); ok {
		out.Budget = spent.Scope.String()
	}
	return out
}

// describeNote describes for programs why a connection has no detour, or what it waits for. It returns nil for no note.
func describeNote(n *path.Note) *api.Reason {
	if n.Code == "" {
		return nil
	}
	out := api.Reason{Code: string(n.Code)}
	if n.Code == path.NoteBudget {
		out.Budget = n.Budget.String()
	}
	return &out
}

// describeUse describes why a subflow is used as it is. It returns nil if nothing was decided.
func describeUse(r *path.SubflowReason) *api.Reason {
	if r.Cause == path.CauseNone {
		return nil
	}
	reason := describeSubflowReason(r)
	return &reason
}

// describeSubflowReason describes why a subflow is used as it is, or why its path was left.
func describeSubflowReason(r *path.SubflowReason) (out api.Reason) {
	out.Code, out.Compared = r.Cause.Code(), describeCompared(r.Compared())
	if r.Cause == path.CauseBudget {
		out.Budget = r.Budget.String()
	}
	if n := r.Numbers; n != nil {
		out.Loss, out.Goodput, out.Before, out.With, out.Without, out.Limit = n.Loss, n.Goodput, n.Before, n.With, n.Without, n.Limit
		out.Missed, out.Held, out.Carried = n.Missed, n.Held, n.Carried
		out.Silent, out.Unanswered = milliseconds(n.Silent), n.Unanswered
	}
	return out
}

func describeCompared(all []policy.Comparison) (list []api.Compared) {
	for _, x := range all {
		list = append(list, api.Compared{
			With: x.Waypoint, Goodput: x.Goodput, OtherGoodput: x.OtherGoodput, Wait: milliseconds(x.Wait), OtherWait: milliseconds(x.OtherWait),
			Loss: x.Loss, OtherLoss: x.OtherLoss,
		})
	}
	return list
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
