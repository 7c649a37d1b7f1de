package path

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Snapshot is a copy of the Manager's state for display, the oldest first. Times are those given to
// Handle.
type Snapshot struct {
	Conns   []ConnState
	Detours []DetourState
	// RefusedByServers counts the subflows that servers closed because they accept no more.
	RefusedByServers uint64
}

// ConnState describes one connection.
type ConnState struct {
	Token         Token
	Local, Remote netip.AddrPort
	Since         time.Time
	// Note says why it has no detour, or what it waits for. It may be empty.
	Note     string
	Subflows []SubflowState
}

// SubflowState describes one subflow.
type SubflowState struct {
	Local, Remote netip.AddrPort
	LocalID       uint8
	Kind          string // "direct", the name of a Kind, or "unknown"
	Waypoint      string
	At            netip.Addr // the waypoint's address in use
	State         string     // "up", "backup" or "joining"
	Since         time.Time
	// Why is the reason for choosing this detour. It is empty if the path manager did not choose
	// it.
	Why string
}

// DetourState describes one detour on offer.
type DetourState struct {
	Detour
	Since time.Time
	// Failures counts consecutive failures, and RestsUntil is when the detour is used again. They
	// refer to every server, or to the one with the most failures.
	Failures int
	RetryAt  time.Time
	Err      error // the last failure
	// Towards is the only server for which it rests. If zero, it rests for every server.
	Towards netip.AddrPort
	// Why says what keeps it from being used, or what is not known of it. It may be empty.
	Why string
}

// Snapshot returns a copy of the state.
func (m *Manager) Snapshot(now time.Time) Snapshot {
	snap := Snapshot{RefusedByServers: m.refusedByServers}
	for _, c := range inOrder(m.conns) {
		cs := ConnState{Token: c.token, Local: c.local, Remote: c.remote, Since: c.since, Note: m.note(c, now)}
		for _, s := range c.subflows {
			cs.Subflows = append(cs.Subflows, s.state())
		}
		snap.Conns = append(snap.Conns, cs)
	}
	worst := make(map[DetourID]route)
	for key, r := range m.retries {
		old, ok := worst[key.detour]
		w := m.retries[old]
		if r.at.After(now) && (!ok || cmp.Or(cmp.Compare(r.failures, w.failures), r.at.Compare(w.at), key.server.Compare(old.server)) > 0) {
			worst[key.detour] = key
		}
	}
	for id, o := range m.detours {
		snap.Detours = append(snap.Detours, m.describe(o, worst[id].server, now))
	}
	slices.SortFunc(snap.Detours, func(a, b DetourState) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID))
	})
	return snap
}

// describe returns the state of a detour that failed most towards server.
func (m *Manager) describe(o *offered, server netip.AddrPort, now time.Time) DetourState {
	d := DetourState{Detour: o.Detour, Since: o.since}
	r := m.retries[route{o.ID, server}]
	b, to, isBlamed := m.worstBlame(&o.Detour, now)
	switch t := o.trial; {
	case isBlamed:
		d.Failures, d.RetryAt, d.Err, d.Towards = b.times, b.until, b.fault.err, to
		d.Why = fmt.Sprintf("is not used%s since %s: %s", towards(to), b.since.Format("15:04"), failureWords(b.fault.err))
	case t != nil && now.Before(t.until):
		d.Failures, d.RetryAt, d.Err = t.rests, t.until, t.err
		d.Why = Rest{Cause: RestsBlocked, Since: t.since, Err: t.err}.of(o.Kind)
	case o.Local.IsValid() && !m.owns(o.Local):
		d.Why = Rest{Cause: RestsNoAddress}.of(o.Kind)
	case server.IsValid():
		d.Failures, d.RetryAt, d.Err, d.Towards = r.failures, r.at, r.err, server
		d.Why = fmt.Sprintf("rests towards %v: %s", server, failureWords(r.err))
	case t != nil && !t.proven:
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
	switch {
	case s.direct:
		st.Kind = "direct"
	case s.detour != nil:
		st.Kind, st.Waypoint, st.At = s.detour.Kind.String(), s.detour.Waypoint, s.detour.Remote.Addr()
		if s.detour.Endpoint.IsValid() {
			st.At = s.detour.Endpoint
		}
		switch {
		case s.suspicion.demoted:
			st.Why = "a backup for now: nothing comes through it while others are busy"
		case s.chosen:
			st.Why = s.why.of(s.detour)
		}
	}
	switch {
	case !s.up:
		st.State = "joining"
	case s.backup:
		st.State = "backup"
	}
	return st
}

func (m *Manager) note(c *conn, now time.Time) string {
	switch {
	case c.excluded:
		return "destination is excluded from detours"
	case c.refused:
		return "the kernel manages its paths itself"
	case c.denied():
		return "the server allows no further subflow to its address"
	case c.waits():
		return "detour waits for the server's first data"
	case now.Before(c.room.at):
		return "the server takes no further subflow now"
	case c.capped:
		return m.placesNote(c, now)
	case c.short:
		return "no detour to this server is at hand"
	}
	return ""
}
