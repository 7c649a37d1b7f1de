package path

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/path/policy"
	"github.com/detour-collective/dcol/internal/path/words"
)

// Snapshot is a copy of the Manager's state for display. Connections and detours are sorted by age, the oldest first.
// Times are those given to Handle.
type Snapshot struct {
	Conns   []ConnState
	Detours []DetourState
	Direct  DirectState
	// RefusedByServers counts the subflows that servers closed because they accept no more.
	RefusedByServers uint64
	Carried          []Carried
	Lifetimes        Lifetimes
	Exploring        Exploring
	Sampling         Sampling
}

// ConnState describes one connection.
type ConnState struct {
	Token         Token
	Local, Remote netip.AddrPort
	Since         time.Time
	Traffic       string // the kind of traffic: short, messages or bulk
	// Rule is the name of the rule that chose its policy. It is empty if none did.
	Rule     string
	Note     Note
	Subflows []SubflowState
	// Tried lists the waypoints that the connection tried out, with the results, the earliest first.
	Tried []Tryout
	// Left lists the last paths that the connection left, the earliest first.
	Left []Departure
}

const directWord = "direct"

// SubflowState describes one subflow.
type SubflowState struct {
	Local, Remote netip.AddrPort
	LocalID       uint8
	Kind          string // "direct", the name of a Kind, or "unknown"
	Waypoint      string
	At            netip.Addr // the waypoint's address to which the subflow goes
	State         string     // "up", "backup", "joining" or, for a mute direct path that is no backup, "silent"
	Since         time.Time
	// SendRate and ReceiveRate are in bits of payload a second, between the last two complete samples.
	SendRate, ReceiveRate float64
	// Why is the reason for choosing this detour or for setting it aside. It may be empty. Reason is the same for
	// programs.
	Why    string
	Reason SubflowReason
}

// DetourState describes one detour on offer.
type DetourState struct {
	Detour
	Since time.Time
	// Failures counts consecutive failures. RetryAt is the time at which the detour is used again. Both refer to all
	// servers, or else to the server with the most failures.
	Failures int
	RetryAt  time.Time
	Err      error // the last failure
	// Towards is the server for which the detour rests. If zero, the detour rests for every server.
	Towards netip.AddrPort
	// Why says why the detour is not used, or that it is unproven. It may be empty.
	Why string
}

// Snapshot returns a copy of the state.
func (m *Manager) Snapshot(now time.Time) Snapshot {
	snap := m.snapshot(m.conns.all(), now)
	snap.Detours, snap.Direct = m.detours.states(&m.host, now), m.directState(now)
	return snap
}

// Busiest returns a copy of the state without detours and with at most that many connections. It takes those on which
// data moved in the last busyFor, bulk traffic first, then messages.
func (m *Manager) Busiest(most int, now time.Time) Snapshot {
	busy := m.conns.where(func(c *conn) bool { return now.Sub(c.moved) < busyFor })
	slices.SortStableFunc(busy, func(a, b *conn) int { return cmp.Compare(b.kind, a.kind) })
	return m.snapshot(busy[:min(most, len(busy))], now)
}

// busyFor is the time for which a connection counts as busy after data moved on it.
const busyFor = 30 * time.Second

func (m *Manager) snapshot(conns []*conn, now time.Time) Snapshot {
	snap := Snapshot{
		RefusedByServers: m.places.refused, Carried: m.tally.list(), Exploring: m.detours.exploration.state(now), Sampling: m.conns.state(),
		Lifetimes: Lifetimes{Counts: slices.Clone(m.tally.lifetimes.Counts), Sum: m.tally.lifetimes.Sum},
	}
	snap.Conns = make([]ConnState, 0, len(conns))
	for _, c := range conns {
		snap.Conns = append(snap.Conns, m.connState(c, now))
	}
	return snap
}

func (m *Manager) connState(c *conn, now time.Time) ConnState {
	cs := ConnState{Token: c.token, Local: c.local, Remote: c.remote, Since: c.since, Rule: c.rule.Name, Traffic: c.kind.String(), Note: m.note(m.turn(c, now)), Subflows: make([]SubflowState, 0, len(c.subflows)), Left: c.leftPaths()}
	for _, s := range c.subflows {
		st := s.state()
		if _, mesh := c.rule.Policy.(policy.Mesh); mesh && s.direct && s.local.Addr() != c.local.Addr() && m.detours.uplinkOf(s) != "" {
			st.Kind, st.Waypoint = Uplink.String(), m.detours.uplinkOf(s) // the direct path moved to it
		}
		if limit := m.detours.spending.limitOf(c.rule, m.detours.pathName(s), now); limit.On {
			st.Why = strings.TrimPrefix(st.Why+"; limited to "+words.Mbit(limit.Rate)+" by its policy", "; ")
			st.Reason.limitedTo(limit.Rate)
		}
		cs.Subflows = append(cs.Subflows, st)
	}
	if c.tryouts != nil {
		cs.Tried = slices.Clone(c.tryouts.results)
	}
	return cs
}

// states describes the detours on offer.
func (k *detours) states(host *hostAddrs, now time.Time) (list []DetourState) {
	worst := k.failures.worst(now)
	for id, o := range k.byID {
		if o.Kind == Port {
			continue // it is always on offer
		}
		list = append(list, k.describe(o, worst[id], host, now))
	}
	slices.SortFunc(list, func(a, b DetourState) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// describe returns the state of a detour. server is the server towards which the detour failed most, or zero.
func (k *detours) describe(o *offered, server netip.AddrPort, host *hostAddrs, now time.Time) DetourState {
	d := DetourState{Detour: o.Detour, Since: o.since}
	r := k.failures.of(o.ID, server)
	b, to, isBlamed := k.suspensions.worst(&o.Detour, now)
	switch t := o.trial; {
	case !o.Kind.Own() && !k.steering.Allows(o.Waypoint):
		d.Why = policy.Rest{Cause: policy.RestsUnwanted}.Words(o.Kind)
	case isBlamed:
		d.Failures, d.RetryAt, d.Err, d.Towards = b.times, b.until, b.fault.err, to
		d.Why = fmt.Sprintf("is not used%s since %s: %s", towards(to), b.since.Format("15:04"), words.Failure(b.fault.err))
	case t != nil && now.Before(t.until):
		d.Failures, d.RetryAt, d.Err = t.rests, t.until, t.err
		d.Why = policy.Rest{Cause: policy.RestsBlocked, Since: t.since, Err: t.err}.Words(o.Kind)
	case o.Local.IsValid() && !host.has(o.Local):
		d.Why = policy.Rest{Cause: policy.RestsNoAddress}.Words(o.Kind)
	case server.IsValid():
		d.Failures, d.RetryAt, d.Err, d.Towards = r.failures, r.at, r.err, server
		d.Why = fmt.Sprintf("rests towards %v: %s", server, words.Failure(r.err))
	case o.unproven() && !o.trial.tried():
		d.Why = "not tried yet"
	case o.unproven():
		d.Why = "no subflow came up on this path yet"
	}
	return d
}

func towards(server netip.AddrPort) string {
	if !server.IsValid() {
		return ""
	}
	return fmt.Sprintf(" towards %v", server)
}

func (s *subflow) state() SubflowState {
	st := SubflowState{Local: s.local, Remote: s.remote, LocalID: s.id, Kind: "unknown", State: "up", Since: s.since}
	st.SendRate, st.ReceiveRate = float64(s.flow.out), float64(s.flow.in)
	switch {
	case s.direct && s.standby:
		st.Kind, st.Why, st.Reason.Cause = directWord, "a backup: another path comes first", CauseStandby
	case s.direct:
		st.Kind = directWord
	case s.detour != nil:
		st.Kind, st.Waypoint, st.At = s.detour.Kind.String(), s.detour.Waypoint, s.detour.Remote.Addr()
		if s.detour.Endpoint.IsValid() {
			st.At = s.detour.Endpoint
		}
		switch {
		case s.doubts().demoted:
			st.Why, st.Reason.Cause = "a backup for now: nothing comes through it while others are busy", CauseDoubted
		case s.setAside():
		case s.standby:
			st.Why, st.Reason.Cause = "a backup: another path comes first", CauseStandby
		case s.why != nil:
			st.Why, st.Reason = s.why.text(s.detour), SubflowReason{Cause: CauseChosen, chosen: s.why}
		}
	}
	if s.setAside() {
		st.Why, st.Reason = s.aside.text(), s.aside.reason()
	}
	if s.habits != nil && s.habits.bound > 0 {
		st.Why = strings.TrimPrefix(st.Why+"; bounded to "+words.Mbit(s.habits.bound)+", because messages wait in its queue", "; ")
		st.Reason.limitedTo(s.habits.bound)
	}
	if s.isMute() {
		st.Why = "nothing has come over it since " + s.suspicion.mute.Format(time.TimeOnly) + ", though other paths are busy; it does not answer probes"
		st.Reason = SubflowReason{Cause: CauseSilent, Numbers: &Numbers{Silent: s.at.Sub(s.suspicion.mute)}}
	}
	switch {
	case !s.up:
		st.State = "joining"
	case s.backup:
		st.State = "backup"
	case s.isMute():
		st.State = "silent"
	}
	return st
}
