package path

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Snapshot is the Manager's state for people to read, the oldest first. Times
// are as given to Handle.
type Snapshot struct {
	Conns   []ConnState
	Detours []DetourState
	// RefusedByServers counts the subflows that servers closed as one too many.
	RefusedByServers uint64
}

// ConnState is one connection.
type ConnState struct {
	Token         Token
	Local, Remote netip.AddrPort
	Since         time.Time
	// Note says why it has no detour, or what it waits for; empty: nothing to say.
	Note     string
	Subflows []SubflowState
}

// SubflowState is one subflow.
type SubflowState struct {
	Local, Remote netip.AddrPort
	LocalID       uint8
	Kind          string // direct, a Kind's word, unknown
	Waypoint      string
	At            netip.Addr // of the waypoint's, the one that the detour is by
	State         string     // up, backup, joining
	Since         time.Time
	// Why says why this detour was chosen when it was; empty: it was not for us to.
	Why string
}

// DetourState is one detour on offer.
type DetourState struct {
	Detour
	Since time.Time
	// Failures in a row and until when it is left alone, towards every server or
	// towards the one where that is worst.
	Failures int
	RetryAt  time.Time
	Err      error // the last of them
	// Towards is the only server that it rests towards; zero: every one.
	Towards netip.AddrPort
	// Why says what keeps it from being used, or what is not known of it; empty:
	// nothing.
	Why string
}

// Snapshot copies the state out.
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

// describe says how a detour stands that failed most towards server.
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
		return "the kernel leaves its paths to nobody else"
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
