package client

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/agent/client/policies"
	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/path"
)

// Status returns the client role's part of the status, and its problems.
func (c *Client) Status(ctx context.Context) (*api.Using, []string, error) {
	u, err := c.describe(ctx)
	if err != nil {
		return nil, nil, err
	}
	problems := slices.Concat(c.host.problems, c.tunnels.problems())
	more, err := call(ctx, c.inbox, func(time.Time) ([]string, error) {
		list := slices.Concat(budgetProblems(c.manager.Budgets()), c.policer.problems())
		if c.gateway.problem != "" {
			list = append(list, c.gateway.problem)
		}
		return list, nil
	})
	if err != nil {
		return nil, nil, err
	}
	problems = append(problems, more...)
	if err := c.host.pathManager(); err != nil {
		problems = append(problems, pathManagerProblem(err))
	}
	return u, problems, nil
}

func (c *Client) describe(ctx context.Context) (*api.Using, error) {
	var names map[netip.AddrPort]string
	u, err := call(ctx, c.inbox, func(now time.Time) (*api.Using, error) {
		names = maps.Clone(c.converters.names)
		snap := c.manager.Snapshot(now)
		plain, err := c.host.plainConnections()
		if err != nil {
			return nil, err
		}
		u := &api.Using{Counters: c.counters, Connections: make([]api.Connection, 0, len(snap.Conns)), Plain: remotes(plain), Converting: c.converters.describe(now, c.manager.Excludes, c.config.Relay.Standing()), Budgets: describeBudgets(c.manager.Budgets())}
		u.Counters.SubflowsRefused += snap.RefusedByServers
		describeTally(&u.Counters, &snap)
		if d := snap.Direct; d.Word != path.DirectUnknown {
			u.Direct = &api.DirectPath{State: api.DirectWord(d.Word), Since: d.Since, Connections: d.Conns}
		}
		u.Exploring = api.Exploring{
			Tries: snap.Exploring.Tries, MostTries: path.MostTries, Bytes: snap.Exploring.Bytes, MostBytes: path.MostExplored, Renews: snap.Exploring.Renews,
		}
		if is := snap.Sampling; is.Measured < is.Active {
			u.Sampling = &api.Sampling{Active: is.Active, Measured: is.Measured}
		}
		subflows := make(map[detour.Via]int)
		for _, conn := range snap.Conns {
			u.Connections = append(u.Connections, describeConn(conn))
			for _, s := range conn.Subflows {
				subflows[detour.Via{Waypoint: s.Waypoint, Addr: s.At}]++
			}
		}
		if err := c.host.addFigures(u.Connections); err != nil {
			return nil, err
		}
		u.Waypoints = c.describeWaypoints(subflows, snap.Detours)
		u.Steering = c.describeSteering(u.Waypoints)
		slices.SortFunc(u.Connections, func(a, b api.Connection) int {
			return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Token, b.Token))
		})
		return u, nil
	})
	if err != nil {
		return nil, err
	}
	all := make([]*api.Connection, len(u.Connections))
	for i := range u.Connections {
		all[i] = &u.Connections[i]
	}
	c.nameServers(names, all)
	return u, nil
}

// mostBusy bounds the connections of Activity.
const mostBusy = 256

// Activity returns the counters, the busiest connections, and those that ended last. Unlike Status, it stays cheap with many
// connections.
func (c *Client) Activity(ctx context.Context) (*api.Using, error) {
	return call(ctx, c.inbox, func(now time.Time) (*api.Using, error) {
		snap := c.manager.Busiest(mostBusy, now)
		u := &api.Using{Counters: c.counters, Ended: c.ended.list()}
		describeTally(&u.Counters, &snap)
		for _, conn := range snap.Conns {
			out := describeConn(conn)
			for i := range out.Subflows {
				s := &out.Subflows[i]
				if found, err := c.host.kernel.Subflow(s.Local, s.Remote); err == nil {
					setFigures(s, &found)
				}
			}
			u.Connections = append(u.Connections, out)
		}
		return u, nil
	})
}

func describeTally(out *api.Counters, snap *path.Snapshot) {
	out.Carried = []api.Carried{}
	for _, c := range snap.Carried {
		out.Carried = append(out.Carried, api.Carried(c))
	}
	out.Lifetimes = api.Histogram{Bounds: []float64{}, Counts: snap.Lifetimes.Counts, Sum: snap.Lifetimes.Sum.Seconds()}
	for _, b := range path.LifetimeBounds {
		out.Lifetimes.Bounds = append(out.Lifetimes.Bounds, b.Seconds())
	}
}

// byStanding finds each detour by its waypoint's address and kind. A tunnel is two detours, one for IPv4
// servers and one for IPv6 servers. If one of them has a problem, that one is returned.
func byStanding(list []path.DetourState) map[standingKey]path.DetourState {
	detours := make(map[standingKey]path.DetourState)
	for _, d := range list {
		at := d.Remote.Addr()
		if d.Endpoint.IsValid() { // a tunnel's: its subflows go to the server itself
			at = d.Endpoint
		}
		key := standingKey{detour.Via{Waypoint: d.Waypoint, Addr: at}, d.Kind}
		if detours[key].Why == "" {
			detours[key] = d
		}
	}
	return detours
}

// describeConn describes a connection. Its subflows have no figures of the kernel yet.
func describeConn(conn path.ConnState) api.Connection {
	out := api.Connection{
		Token: tokenText(conn.Token), Local: conn.Local, Remote: conn.Remote,
		Since: conn.Since, Policy: conn.Rule, Traffic: conn.Traffic, Note: conn.Note.Text, NoteReason: describeNote(&conn.Note), Subflows: make([]api.Subflow, 0, len(conn.Subflows)),
	}
	for _, r := range conn.Tried {
		out.Tried = append(out.Tried, api.Tried{
			Waypoint: r.Waypoint, At: r.At, Verdict: r.Verdict.String(), Why: r.Words(), Goodput: r.Goodput, Instead: r.Instead, With: r.Sum, Before: r.Before,
		})
	}
	for i := range conn.Left {
		d := &conn.Left[i]
		out.Left = append(out.Left, api.Left{
			Kind: d.Kind, Waypoint: d.Waypoint, At: d.At, Ended: d.Ended, Why: d.Why(), Reason: describeSubflowReason(&d.Reason),
		})
	}
	for _, s := range conn.Subflows {
		out.Subflows = append(out.Subflows, api.Subflow{
			Kind: s.Kind, Waypoint: s.Waypoint, State: api.SubflowState(s.State), Why: s.Why, Reason: describeUse(&s.Reason), Since: s.Since,
			Local: s.Local, Remote: s.Remote, SendRate: s.SendRate, ReceiveRate: s.ReceiveRate,
		})
	}
	slices.SortStableFunc(out.Subflows, func(a, b api.Subflow) int { // the direct path first
		return cmp.Compare(a.Waypoint, b.Waypoint)
	})
	return out
}

// setFigures sets a subflow's figures to the kernel's.
func setFigures(to *api.Subflow, s *mptcp.Subflow) {
	m := &s.Metrics
	rtt, age := m.LatestRTT()
	to.RTT, to.RTTAge = milliseconds(rtt), age.Seconds()
	to.MinRTT, to.ReceiverRTT, to.Heard = milliseconds(m.MinRTT), milliseconds(m.ReceiverRTT), milliseconds(m.LastDataRecv)
	to.BytesSent, to.BytesReceived = m.BytesAcked, m.BytesReceived
	to.Segments, to.Retransmitted, to.CongWindow = uint64(m.DataSegsOut), uint64(m.TotalRetrans), m.SndCwnd
	to.Queued = uint64(m.Unacked)*uint64(m.SndMSS) + uint64(m.NotSent)
}

// describeWaypoints describes each address of the waypoints in use. subflows counts those through each.
func (c *Client) describeWaypoints(subflows map[detour.Via]int, detours []path.DetourState) []api.Waypoint {
	list, standings := []api.Waypoint{}, byStanding(detours)
	for v, w := range c.roster.sessions {
		list = append(list, c.describeWaypoint(v, w, subflows[v], standings))
	}
	slices.SortFunc(list, func(a, b api.Waypoint) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), a.Addr.Compare(b.Addr))
	})
	return list
}

func (c *Client) describeWaypoint(v detour.Via, w waypoint, subflows int, detours map[standingKey]path.DetourState) api.Waypoint {
	d := w.Describe()
	state := c.book.State(v)
	d.Mappings, d.Subflows, d.Kinds = state.Mappings, subflows, []api.WaypointKind{}
	if d.Why == "" {
		d.Why = state.Refused
	}
	for _, k := range policies.Kinds(c.config.Settings.Client.Kinds) {
		if d.State == api.WaypointClosed {
			d.Kinds = append(d.Kinds, api.WaypointKind{Kind: k.String(), State: api.KindClosed})
			continue
		}
		d.Kinds = append(d.Kinds, c.describeKind(v, k, state, detours))
	}
	return d
}

// describeKind describes one kind of detour at an address of a waypoint.
func (c *Client) describeKind(v detour.Via, k path.Kind, state detour.State, detours map[standingKey]path.DetourState) api.WaypointKind {
	out := api.WaypointKind{Kind: k.String(), State: api.KindReady}
	key := standingKey{v, k}
	stands := c.tunnels.standings[key]
	out.Remote = stands.Remote
	switch d := detours[key]; {
	case k == path.Mapped:
		// Most refusals concern one server, so they are shown with the waypoint. The same applies to
		// failures.
		switch {
		case !state.Up:
			out.State = api.KindDown
		case !d.RetryAt.IsZero():
			out.Why = d.Why
			if !d.Towards.IsValid() {
				out.State = api.KindResting
			}
		}
	case k == path.InBand && !v.Addr.Is4():
		out.State, out.Why = api.KindUnusable, "in-band detours need an IPv4 address of the waypoint, and this one is IPv6"
	case k == path.InBand && c.tunnels.noSyns != nil:
		out.State, out.Why = api.KindUnusable, inBandProblem(c.tunnels.noSyns)
	case len(stands.Tunnels) == 0:
		out.State, out.Why = api.KindDown, stands.Why
	case d.Why != "":
		out.Why = d.Why
		if !d.RetryAt.IsZero() && !d.Towards.IsValid() {
			out.State = api.KindResting
		}
	}
	if state.Up && (out.State == api.KindDown || k == path.Mapped) && !slices.Contains(c.tunnels.offers[v], k) {
		out.State, out.Why = api.KindNotOffered, c.tunnels.whyNotOffered(key)
	}
	return out
}

// Map asks for a mapping for a person (`dcol map`).
func (c *Client) Map(ctx context.Context, r api.MapRequest) (api.MapAnswer, error) {
	type choice struct {
		waypoint
		addr netip.Addr
	}
	choices, err := call(ctx, c.inbox, func(time.Time) (fit []choice, _ error) {
		for v, w := range c.roster.sessions {
			if v.Waypoint == r.Waypoint && v.Addr.Is4() == r.Server.Addr().Is4() {
				fit = append(fit, choice{w, v.Addr})
			}
		}
		return fit, nil
	})
	if err != nil {
		return api.MapAnswer{}, err
	}
	var lastErr error
	for _, w := range choices {
		asked, cancel := context.WithTimeout(ctx, mapTimeout)
		grant, err := w.Map(asked, r.Server, true) // sole: the user has named this waypoint
		cancel()
		if err == nil {
			return api.MapAnswer{Address: netip.AddrPortFrom(w.addr, grant.Port), LeaseSeconds: grant.Lease.Seconds()}, nil
		}
		lastErr = err
	}
	if lastErr == nil {
		lastErr = fmt.Errorf("no waypoint %q with an address of %v's family is configured; `dcol status` lists them", r.Waypoint, r.Server.Addr())
	}
	return api.MapAnswer{}, lastErr
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
