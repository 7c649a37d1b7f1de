package path

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/budget"
	"github.com/detour-collective/dcol/internal/path/claim"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// Explanation describes the connections to one server, the detours that lead there, and the reasons.
type Explanation struct {
	// Server is the server that Candidates refers to.
	Server netip.AddrPort
	// Conns lists the living connections to the server, the oldest first.
	Conns []ConnState
	// Closed lists connections to it that ended recently, the latest first.
	Closed []ClosedConn
	// Direct describes the direct path to it.
	Direct Outlook
	// Candidates lists the detours that lead to Server. Those that a new connection would take come first, in the
	// order in which it would take them.
	Candidates []Candidate
	// Note is the reason why a new connection would take no detour. It is the zero value if it would take one.
	Note Note
}

// ClosedConn describes the last state of an ended connection.
type ClosedConn struct {
	ConnState
	Ended time.Time
}

// Known has the measurements of a path to a network of servers.
type Known struct {
	At       time.Time     // when it was last measured; zero: never
	MinRTT   time.Duration // zero: unknown
	Loss     float64       // share of packets lost
	Packets  uint64        // number of packets that Loss was measured over, at most EnoughPackets
	Goodput  float64       // of bulk traffic in bits of payload a second; zero: unknown
	Failures int           // recent failures of subflows to the server
}

// Outlook describes what a new connection may expect of a path.
type Outlook struct {
	Known Known
	// Wait estimates how long a message over the path waits for its answer. Zero: unknown. Measured is set if Wait
	// was measured, not guessed from the round trip of the waypoint's session.
	Wait     time.Duration
	Measured bool
	// Expected is the rate that one more bulk connection may expect of the path beside those that run now, in bits of
	// payload a second. It is zero if a detour adds nothing to the direct path. ExpectedKnown is set if it is known.
	Expected      float64
	ExpectedKnown bool
}

// Candidate is a detour that a new connection might take.
type Candidate struct {
	Detour
	Outlook
	// Taken is set if a new connection would take the detour now.
	Taken bool
	// Bottlenecks lists whether the waypoint shares its bottleneck with the direct path, and with other waypoints that
	// it was compared with.
	Bottlenecks []Bottleneck
	// Claimed summarises what other members measured through the waypoint.
	Claimed claim.Hint
	// Reason tells why the detour is taken or not. Why returns it in words.
	Reason policy.CandidateReason
	// Until is the time at which that reason ends by itself, or zero if it is not known.
	Until time.Time
}

// Why returns in words why the detour is taken or not.
func (c *Candidate) Why() string { return c.Reason.Words(&c.Detour) }

// Change returns in words what would change the reason. It is empty if only time does.
func (c *Candidate) Change() string { return c.Reason.Change(&c.Detour) }

// Explain returns the connections to a server, and the detours that a new one would take. If the port is 0, it lists
// the connections to all ports of the address, and the candidates for that of the newest one, or of the one that ended
// last, or for 443. from is the address from which a new one would start, or zero if it is not known.
func (m *Manager) Explain(server netip.AddrPort, from netip.Addr, now time.Time) Explanation {
	is := func(c *conn) bool {
		return c.remote.Addr() == server.Addr() && (server.Port() == 0 || c.remote.Port() == server.Port())
	}
	var x Explanation
	for _, c := range m.conns.where(is) {
		x.Conns = append(x.Conns, m.connState(c, now))
	}
	for _, e := range slices.Backward(m.lately.conns) {
		if is(e.conn) {
			x.Closed = append(x.Closed, ClosedConn{m.connState(e.conn, now), e.at})
		}
	}
	x.Server = server
	if server.Port() == 0 {
		port := uint16(443)
		switch {
		case len(x.Conns) > 0:
			port = x.Conns[len(x.Conns)-1].Remote.Port()
		case len(x.Closed) > 0:
			port = x.Closed[0].Remote.Port()
		}
		x.Server = netip.AddrPortFrom(server.Addr(), port)
	}
	m.candidates(&x, from, now)
	return x
}

// candidates fills in the detours that the policy would choose for a new connection to the server.
func (m *Manager) candidates(x *Explanation, from netip.Addr, now time.Time) {
	local := netip.AddrPortFrom(from, 0)
	c := m.newConn(0, local, x.Server, "", now)
	c.subflows = []*subflow{{direct: true, up: true, local: local, remote: x.Server, since: now}}
	c.short, c.moved = now.Add(-offersCome), now // as if it had waited for offers, and moved data
	t := m.turn(c, now)
	x.Direct = m.detours.directOutlook(x.Server, now)
	switch _, ok := m.host.source(c); {
	case c.isExcluded():
		x.Note = m.exclusionNote(c.excluded, x.Server.Addr())
		return
	case !ok:
		x.Note = Note{Code: NoteNoAddress, Text: "this host has no address of the server's family"}
		return
	}
	view := m.views.of(t, &m.detours)
	plan := m.plan(t, view)
	for _, choice := range plan.Open {
		i := slices.IndexFunc(view.Usable, func(u policy.Usable) bool { return u.Detour == choice.Detour })
		x.Candidates = append(x.Candidates, m.detours.candidate(&view.Usable[i], x.Server, true, policy.CandidateReason{Chosen: choice.Why}, now))
	}
	taken := len(x.Candidates)
	for i := range view.Usable {
		u := &view.Usable[i]
		if slices.ContainsFunc(plan.Open, func(c policy.Choice) bool { return c.Detour == u.Detour }) {
			continue
		}
		spare := m.detours.candidate(u, x.Server, false, u.SpareReason(plan.Capped, lastOf(plan.Open, view.Usable)), now)
		switch spare.Reason.Cause {
		case policy.CandidateLossy:
			spare.Until = u.Shunned
		case policy.CandidateLoaded:
			spare.Until = u.Loaded
		case policy.CandidateFailed:
			spare.Until = m.detours.failuresUntil(u.Waypoint, x.Server, now)
		default:
		}
		x.Candidates = append(x.Candidates, spare)
	}
	slices.SortStableFunc(x.Candidates[taken:], func(a, b Candidate) int {
		return cmp.Or(compareKnown(a.Wait, b.Wait), cmp.Compare(a.Waypoint, b.Waypoint), cmp.Compare(a.Kind, b.Kind))
	})
	for o := range m.detours.leading(x.Server) {
		if until, why := m.detours.rests(t, o); (now.Before(until) || why.Lasts()) && !m.detours.allowsLastResort(t, why) {
			u := policy.Usable{Detour: &o.Detour, Prospect: m.views.prospect(t, &m.detours, o)}
			rests := m.detours.candidate(&u, x.Server, false, policy.CandidateReason{Cause: policy.CandidateRests, Rest: why}, now)
			rests.Until = until
			x.Candidates = append(x.Candidates, rests)
		}
	}
	switch all := m.detours.budgetOf(t, &Detour{}); {
	case len(x.Candidates) > 0:
	case all.Level() == budget.Spent:
		x.Note = Note{Code: NoteBudget, Text: SpentWords(all), Budget: all.Scope}
	default:
		x.Note = Note{Code: NoteNoDetour, Text: "no detour leads there now"}
		if plan.Ask {
			x.Note.Text += "; waypoints are asked for one when a connection begins"
		}
	}
}

// compareKnown compares two times. An unknown one, 0, comes last.
func compareKnown(a, b time.Duration) int {
	if (a == 0) != (b == 0) {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}

// lastOf returns the detour that was chosen last, or nil if none was.
func lastOf(open []policy.Choice, usable []policy.Usable) *policy.Usable {
	if len(open) == 0 {
		return nil
	}
	i := slices.IndexFunc(usable, func(u policy.Usable) bool { return u.Detour == open[len(open)-1].Detour })
	return &usable[i]
}

func (k *detours) candidate(u *policy.Usable, server netip.AddrPort, taken bool, why policy.CandidateReason, now time.Time) Candidate {
	r, _ := k.history.of(u.Waypoint, server)
	known := r.known()
	known.Failures = u.Failures
	expected, isKnown := k.expectedGoodput(u.Waypoint, server, now)
	return Candidate{
		Detour: *u.Detour, Outlook: Outlook{known, u.Wait, u.Measured, expected, isKnown}, Taken: taken, Claimed: k.claims.Hint(u.Waypoint, now),
		Reason: why, Bottlenecks: k.sharings.bottlenecks(u.Waypoint, server),
	}
}

// directOutlook returns what a new connection may expect of the direct path. Its loss is the one that decisions count: part of
// what was measured, and less the longer ago that was.
func (k *detours) directOutlook(server netip.AddrPort, now time.Time) Outlook {
	r, _ := k.history.of("", server)
	r = r.aged(now)
	x := Outlook{Known: r.known()}
	x.Known.Loss = r.surelyLost()
	if r.hasTrip(now) {
		x.Wait, x.Measured = waits(r.trip, x.Known.Loss)+k.together.queue("", server, now), true
	}
	x.Expected, x.ExpectedKnown = k.expectedGoodput("", server, now)
	return x
}

// known returns the measurements for display.
func (r *record) known() Known {
	return Known{At: r.at, MinRTT: r.trip, Loss: r.loss, Packets: r.packets, Goodput: r.goodput}
}

// lately keeps the connections that ended last, the oldest first.
type lately struct{ conns []endedConn }

type endedConn struct {
	*conn
	at time.Time
}

// mostLately bounds the number of ended connections that are kept.
const mostLately = 64

func (l *lately) add(c *conn, now time.Time) {
	if len(l.conns) == mostLately {
		l.conns = slices.Delete(l.conns, 0, 1)
	}
	for _, e := range c.ended { // subflows end a moment before their connection
		c.subflows = append(c.subflows, e.subflow)
	}
	c.ended, c.attention = nil, nil
	if c.departures != nil {
		c.departures.planned = nil
	}
	l.conns = append(l.conns, endedConn{c, now})
}
