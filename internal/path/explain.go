package path

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/budget"
	"github.com/detour-collective/dcol/internal/path/claim"
)

// Explanation describes the connections to one server, the detours that lead there, and the reasons.
type Explanation struct {
	// Server is the server that Candidates concerns.
	Server netip.AddrPort
	// Conns lists the living connections to the server, the oldest first.
	Conns []ConnState
	// Closed lists connections to it that ended lately, the last first.
	Closed []ClosedConn
	// Direct has the measurements of the direct path.
	Direct Known
	// Candidates lists the detours that lead there: first those that a new connection would take, in its order.
	Candidates []Candidate
	// Note is the reason why a new connection would take no detour. It may be empty.
	Note string
}

// ClosedConn describes a connection as it was before it ended.
type ClosedConn struct {
	ConnState
	Ended time.Time
}

// Known has the measurements of a path to a network of servers.
type Known struct {
	At       time.Time     // when it was last measured; zero: never
	MinRTT   time.Duration // zero: unknown
	Loss     float64       // share of packets
	Packets  uint64        // in which that was seen, up to EnoughPackets
	Goodput  float64       // of bulk traffic in bits of payload a second; zero: unknown
	Failures int           // recent failures of subflows
}

// Candidate is a detour that a new connection might take.
type Candidate struct {
	Detour
	// Taken is set if it would be taken now.
	Taken bool
	Known Known
	// Wait is about how long a message over it waits for its answer, as far as it is known. Measured is not set
	// if it is guessed from the round trip of the waypoint's session.
	Wait     time.Duration
	Measured bool
	// Bottlenecks lists whether its waypoint shares its bottleneck with the direct path, and with the waypoints with which that
	// was compared.
	Bottlenecks []Bottleneck
	// Claimed is what other members measured of its waypoint.
	Claimed claim.Hint
	// Why is the reason for taking it or not.
	Why string
	// Until is the time at which that reason ends by itself. It is zero if that is not known.
	Until time.Time
}

// Explain returns the connections to a server, and what a new one would take. Its connections and those to the same address at other
// ports are listed if the port is 0. The candidates are then those of port 443.
func (m *Manager) Explain(server netip.AddrPort, now time.Time) Explanation {
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
		x.Server = netip.AddrPortFrom(server.Addr(), 443)
	}
	m.candidates(&x, now)
	return x
}

// candidates asks the policy what a new connection to the server would take.
func (m *Manager) candidates(x *Explanation, now time.Time) {
	c := m.newConn(0, netip.AddrPort{}, x.Server, "", now)
	c.subflows = []*subflow{{direct: true, up: true, remote: x.Server, since: now}}
	c.short = now.Add(-offersCome) // it has waited for offers
	t := m.turn(c, now)
	x.Direct = m.detours.known("", x.Server)
	switch _, ok := m.host.source(c); {
	case c.excluded:
		x.Note = "destination is excluded from detours"
		return
	case !ok:
		x.Note = "this host has no address of the server's family"
		return
	}
	view := m.views.of(t, &m.detours)
	plan := m.plan(t, view)
	for _, choice := range plan.Open {
		i := slices.IndexFunc(view.Usable, func(u Usable) bool { return u.Detour == choice.Detour })
		x.Candidates = append(x.Candidates, m.detours.candidate(&view.Usable[i], x.Server, true, choice.Why.of(choice.Detour), now))
	}
	taken := len(x.Candidates)
	for i := range view.Usable {
		u := &view.Usable[i]
		if slices.ContainsFunc(plan.Open, func(c Choice) bool { return c.Detour == u.Detour }) {
			continue
		}
		spare := m.detours.candidate(u, x.Server, false, u.spareWords(plan.Capped, lastOf(plan.Open, view.Usable)), now)
		switch {
		case now.Before(u.Shunned):
			spare.Until = u.Shunned
		case !u.LastResort:
			spare.Until = u.Loaded
		}
		x.Candidates = append(x.Candidates, spare)
	}
	slices.SortStableFunc(x.Candidates[taken:], func(a, b Candidate) int {
		return cmp.Or(compareKnown(a.Wait, b.Wait), cmp.Compare(a.Waypoint, b.Waypoint), cmp.Compare(a.Kind, b.Kind))
	})
	for o := range m.detours.leading(x.Server) {
		if until, why := m.detours.rests(t, o); (now.Before(until) || why.lasts()) && !t.takesLastResort(why) {
			u := Usable{Detour: &o.Detour, Prospect: m.views.prospect(t, &m.detours, o)}
			rests := m.detours.candidate(&u, x.Server, false, why.of(o.Kind), now)
			rests.Until = until
			x.Candidates = append(x.Candidates, rests)
		}
	}
	switch all := m.detours.budgetOf(t, &Detour{}); {
	case len(x.Candidates) > 0:
	case all.Level() == budget.Spent:
		x.Note = SpentWords(all)
	default:
		x.Note = "no detour leads there now"
		if plan.Ask {
			x.Note += "; waypoints are asked for one when a connection begins"
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

// lastOf returns the detour that is taken last of those that are taken, or nil if none is.
func lastOf(open []Choice, usable []Usable) *Usable {
	if len(open) == 0 {
		return nil
	}
	i := slices.IndexFunc(usable, func(u Usable) bool { return u.Detour == open[len(open)-1].Detour })
	return &usable[i]
}

// spareWords returns why a usable detour is not taken. taken is the one that comes before it; nil: none does.
func (u *Usable) spareWords(capped bool, taken *Usable) string {
	switch {
	case u.LastResort:
		return "nothing arrived through it lately, so it is taken only if there is no other"
	case !u.Loaded.IsZero():
		return "its waypoint says that it is loaded, so it is taken only if there is no other"
	case !u.Shunned.IsZero():
		return fmt.Sprintf("it lost %.1f %% of the packets lately, so it is taken only if there is no other", 100*u.Loss)
	case capped:
		return "the server accepts no more subflows"
	case u.Sparing:
		return "a spare: this month's budget for its waypoint is nearly used up (client.budget.waypoint)"
	case u.Failures > 0:
		return fmt.Sprintf("a spare: others come first; its waypoint's recent failures towards this server: %d", u.Failures)
	case taken == nil || taken.Waypoint == u.Waypoint || byWill(u, taken) != 0:
		return "a spare: others come first"
	default:
		return "a spare: " + u.besides(taken)
	}
}

// besides compares a spare with the detour that is taken, and says what would change the choice.
func (u *Usable) besides(taken *Usable) string {
	switch goodput, other := classOf(u.Goodput), classOf(taken.Goodput); {
	case goodput < other && u.Gave:
		return fmt.Sprintf("bulk traffic may expect %s of it, %s of %s; at more than that it comes first", inMbit(u.Goodput), inMbit(taken.Goodput), taken.Waypoint)
	case goodput < other:
		return fmt.Sprintf("bulk traffic may expect %s of %s, and it was not measured yet: one connection in %d tries what was not", inMbit(taken.Goodput), taken.Waypoint, exploreEvery)
	case goodput > other:
		return "others come first"
	}
	switch {
	case u.Wait == 0 && taken.Wait == 0:
		return "others come first"
	case u.Wait == 0:
		return fmt.Sprintf("messages take %v through %s, and it was not measured yet: one connection in %d tries what was not", inMS(taken.Wait), taken.Waypoint, exploreEvery)
	case u.class() > taken.class():
		return fmt.Sprintf("messages take %v over it, %v through %s; at less than that it comes first", inMS(u.Wait), inMS(taken.Wait), taken.Waypoint)
	default:
		return fmt.Sprintf("about as good as %s, which was drawn by lot", taken.Waypoint)
	}
}

func (k *detours) candidate(u *Usable, server netip.AddrPort, taken bool, why string, now time.Time) Candidate {
	known := k.known(u.Waypoint, server)
	known.Failures = u.Failures
	return Candidate{
		Detour: *u.Detour, Taken: taken, Known: known, Wait: u.Wait, Measured: u.Measured, Claimed: k.claims.Hint(u.Waypoint, now), Why: why,
		Bottlenecks: k.sharings.bottlenecks(u.Waypoint, server),
	}
}

// known returns what the history has of a waypoint, or of the direct path if it is empty.
func (k *detours) known(waypoint string, server netip.AddrPort) Known {
	r, _ := k.history.of(waypoint, server)
	return Known{At: r.at, MinRTT: r.trip, Loss: r.loss, Packets: r.packets, Goodput: r.goodput}
}

// lately keeps the last connections that ended, the oldest first.
type lately struct{ conns []endedConn }

type endedConn struct {
	*conn
	at time.Time
}

// mostLately bounds the memory of lately.
const mostLately = 64

func (l *lately) add(c *conn, now time.Time) {
	if len(l.conns) == mostLately {
		l.conns = slices.Delete(l.conns, 0, 1)
	}
	for _, e := range c.ended { // its subflows end a moment before itself
		c.subflows = append(c.subflows, e.subflow)
	}
	c.ended, c.attention = nil, nil
	l.conns = append(l.conns, endedConn{c, now})
}
