package path

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Snapshot is the Manager's state for people to read, the oldest first. Times
// are as given to Handle.
type Snapshot struct {
	Conns   []ConnState
	Detours []DetourState
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
	Kind          string // direct, vpn, in-band, mapped, unknown
	Waypoint      string
	State         string // up, backup, joining
	Since         time.Time
}

// DetourState is one detour on offer.
type DetourState struct {
	Detour
	Since time.Time
	// Failures in a row and until when it is left alone, towards the server
	// where that is worst.
	Failures int
	RetryAt  time.Time
	Err      error // the last of them
}

// Snapshot copies the state out.
func (m *Manager) Snapshot(now time.Time) Snapshot {
	var snap Snapshot
	for _, c := range inOrder(m.conns) {
		cs := ConnState{Token: c.token, Local: c.local, Remote: c.remote, Since: c.since, Note: c.note()}
		for _, s := range c.subflows {
			cs.Subflows = append(cs.Subflows, s.state())
		}
		snap.Conns = append(snap.Conns, cs)
	}
	worst := make(map[DetourID]retry)
	for key, r := range m.retries {
		w := worst[key.detour]
		if r.at.After(now) && cmp.Or(cmp.Compare(r.failures, w.failures), r.at.Compare(w.at)) > 0 {
			worst[key.detour] = r
		}
	}
	for id, o := range m.detours {
		w := worst[id]
		snap.Detours = append(snap.Detours, DetourState{o.Detour, o.since, w.failures, w.at, w.err})
	}
	slices.SortFunc(snap.Detours, func(a, b DetourState) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID))
	})
	return snap
}

func (s *subflow) state() SubflowState {
	st := SubflowState{Local: s.local, Remote: s.remote, LocalID: s.id, Kind: "unknown", State: "up", Since: s.since}
	switch {
	case s.direct:
		st.Kind = "direct"
	case s.detour != nil:
		st.Kind, st.Waypoint = s.detour.Kind.String(), s.detour.Waypoint
	}
	switch {
	case !s.up:
		st.State = "joining"
	case s.backup:
		st.State = "backup"
	}
	return st
}

func (c *conn) note() string {
	switch {
	case c.excluded:
		return "destination is excluded from detours"
	case c.refused:
		return "the kernel leaves its paths to nobody else"
	case c.denied():
		return "the server allows no further subflow to its address"
	case c.waits():
		return "detour waits for the server's first data"
	case c.short:
		return "no detour to this server is at hand"
	}
	return ""
}
