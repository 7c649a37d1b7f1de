package path

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"time"
)

// A waypoint that does harm is remembered, so that later connections do not take it
// again. It is blamed towards the server where that was seen. Only data that it changed
// towards a second server makes it rest towards all: one server alone, which may lie,
// cannot take a waypoint away from the others. Silence never does: a short outage hits
// the connections to all servers at once, and is over soon.

// fault is a kind of harm.
type fault struct {
	err           error
	allKinds      bool // of detours through the waypoint; else the one that was taken
	leave         bool // subflows that are up through it end, too
	spreads       bool // towards a second server, it counts towards all
	rest, longest time.Duration
}

var (
	errSilent = errors.New("nothing came through it while the connection waited for it")

	// corrupts: data arrived changed. Nothing must go through it any more.
	corrupts = fault{err: errCorrupt, allKinds: true, leave: true, spreads: true, rest: time.Hour, longest: 24 * time.Hour}
	// swallows: nothing arrived, and probes had no answer.
	swallows = fault{err: errSilent, rest: time.Minute, longest: 5 * time.Minute}
)

// anyKind stands for all kinds in a blamed.
const anyKind = nKinds

// blamed is what rests: detours of a kind through a waypoint to a server. A zero
// server stands for all.
type blamed struct {
	waypoint string
	kind     Kind
	server   netip.AddrPort
}

type blame struct {
	fault        *fault
	times        int // in a row
	since, until time.Time
}

// over reports whether the blame is forgotten.
func (b blame) over(now time.Time) bool { return now.Sub(b.until) > b.fault.longest }

// blame notes that a subflow over d to server did harm.
func (m *Manager) blame(d *Detour, server netip.AddrPort, f *fault, now time.Time) {
	who := blamed{d.Waypoint, d.Kind, server}
	if f.allKinds {
		who.kind = anyKind
	}
	for other, b := range m.blames {
		if f.spreads && other.waypoint == who.waypoint && other.kind == who.kind && other.server.Addr() != server.Addr() && now.Before(b.until) {
			who.server = netip.AddrPort{}
		}
	}
	b := m.blames[who]
	if now.Before(b.until) {
		return // by another of its subflows
	}
	if b.fault == nil || b.over(now) {
		b = blame{fault: f, since: now}
	}
	b.until = now.Add(min(f.rest<<min(b.times, 10), f.longest))
	b.times++
	m.blames[who] = b
	m.do(Blame{Waypoint: d.Waypoint, Kind: d.Kind, AllKinds: f.allKinds, Server: who.server, Err: f.err, Until: b.until})
	if f.leave {
		m.leaveBlamed(who)
	}
}

// leaveBlamed ends what goes through who, as soon as its connections have other paths.
func (m *Manager) leaveBlamed(who blamed) {
	conns := m.conns
	if who.server.IsValid() {
		conns = m.byServer[who.server]
	}
	for _, c := range inOrder(conns) {
		found := false
		for _, s := range c.subflows {
			if s.detour != nil && s.detour.Waypoint == who.waypoint && (who.kind == anyKind || s.detour.Kind == who.kind) {
				s.leaving, found = true, true
			}
		}
		if found {
			m.again = append(m.again, c.token)
		}
	}
}

// blameOf is the blame on d towards server that lasts longest; false: there is none.
func (m *Manager) blameOf(d *Detour, server netip.AddrPort, now time.Time) (worst blame, ok bool) {
	if len(m.blames) == 0 {
		return worst, false
	}
	for _, kind := range [...]Kind{anyKind, d.Kind} {
		for _, to := range [...]netip.AddrPort{{}, server} {
			if b := m.blames[blamed{d.Waypoint, kind, to}]; now.Before(b.until) && (!ok || b.until.After(worst.until)) {
				worst, ok = b, true
			}
		}
	}
	return worst, ok
}

// worstBlame is the blame on d for people to read: one towards all servers, else the one
// that lasts longest, and towards whom it is.
func (m *Manager) worstBlame(d *Detour, now time.Time) (worst blame, server netip.AddrPort, ok bool) {
	for who, b := range m.blames {
		if who.waypoint != d.Waypoint || who.kind != anyKind && who.kind != d.Kind || !now.Before(b.until) {
			continue
		}
		if !ok || cmp.Or(
			-cmp.Compare(valid(who.server), valid(server)),
			b.until.Compare(worst.until), who.server.Compare(server)) > 0 {
			worst, server, ok = b, who.server, true
		}
	}
	return worst, server, ok
}

func valid(a netip.AddrPort) int {
	if a.IsValid() {
		return 1
	}
	return 0
}

// forgetBlames drops what is over.
func (m *Manager) forgetBlames(now time.Time) {
	maps.DeleteFunc(m.blames, func(_ blamed, b blame) bool { return b.over(now) })
}

// forgiveHoles: on another network another path leads to the waypoints. What changes
// data is not forgiven: that is seldom the path.
func (m *Manager) forgiveHoles() {
	maps.DeleteFunc(m.blames, func(_ blamed, b blame) bool { return !b.fault.allKinds })
}
