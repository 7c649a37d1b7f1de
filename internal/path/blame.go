package path

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"time"
)

// A waypoint that does harm rests, so that later connections do not take it again.
//
// It rests towards the server where that was seen. Data that a waypoint changed looks like
// data of which the server sent a wrong checksum, so one server shows nothing about the
// waypoint towards others. Only corruption towards servers in several networks makes it
// rest towards all. Silence never does: a short outage hits the connections to all servers
// at once, and is over soon.
//
// A rest is short at first, because each new attempt costs no more than a subflow: the
// checksums that found out the corruption protect the data. It is twice as long each time
// the harm is seen again, until data came well for a while in between.

// fault is a kind of harm.
type fault struct {
	err           error
	mend          string
	allKinds      bool // of detours through the waypoint; else the one that was taken
	leave         bool // subflows that are up through it end, too
	spreads       bool // towards servers in several networks, it counts towards all
	rest, longest time.Duration
}

var (
	errSilent = errors.New("nothing came through it any more while another path worked")

	// corrupts: data arrived changed. Nothing must go through it any more.
	corrupts = fault{
		err: errCorrupt, mend: "ask its operator whether something there changes TCP's data",
		allKinds: true, leave: true, spreads: true, rest: 10 * time.Minute, longest: 24 * time.Hour,
	}
	// swallows: nothing arrived, not even answers to probes where they could be sent.
	swallows = fault{
		err: errSilent, mend: "if it happens again, ask its operator whether a firewall there drops TCP",
		rest: time.Minute, longest: 5 * time.Minute,
	}
)

const (
	// spreadsFrom is in how many networks servers saw a fault before it counts towards all.
	spreadsFrom = 3
	// forgivenAfter is in how many complete samples, a second apart, data must have come by a
	// detour after its rest before the fault is forgotten.
	forgivenAfter = 60
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
	well         int // samples since the rest in which data came
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
	if now.Before(m.blames[who].until) {
		return // by another of its subflows
	}
	m.rest(who, f, now)
	if f.spreads && m.networksWith(who, now) >= spreadsFrom {
		who.server = netip.AddrPort{}
		m.rest(who, f, now)
	}
	m.do(Blame{Waypoint: d.Waypoint, Kind: d.Kind, AllKinds: f.allKinds, Server: who.server, Err: f.err, Mend: f.mend, Until: m.blames[who].until})
	if f.leave {
		m.leaveBlamed(who)
	}
}

// rest begins a rest, or a longer one than the last.
func (m *Manager) rest(who blamed, f *fault, now time.Time) {
	b := m.blames[who]
	if b.fault == nil || b.over(now) {
		b = blame{fault: f, since: now}
	}
	b.until, b.well = now.Add(min(f.rest<<min(b.times, 10), f.longest)), 0
	b.times++
	m.blames[who] = b
}

// networksWith counts the networks with servers towards which who rests, whichever server
// who names.
func (m *Manager) networksWith(who blamed, now time.Time) int {
	networks := make(map[netip.Prefix]bool)
	for other, b := range m.blames {
		if other.waypoint == who.waypoint && other.kind == who.kind && other.server.IsValid() && now.Before(b.until) {
			networks[networkOf(other.server.Addr())] = true
		}
	}
	return len(networks)
}

// networkOf is a block of addresses of which few have several.
func networkOf(a netip.Addr) netip.Prefix {
	bits := 16
	if a.Is6() {
		bits = 32
	}
	p, _ := a.Prefix(bits)
	return p
}

// cameWell notes that data came over d since the last complete sample.
func (m *Manager) cameWell(d *Detour, server netip.AddrPort, now time.Time) {
	if len(m.blames) == 0 {
		return
	}
	for _, who := range blamedFor(d, server) {
		b, ok := m.blames[who]
		if !ok || now.Before(b.until) {
			continue
		}
		if b.well++; b.well >= forgivenAfter {
			delete(m.blames, who)
			continue
		}
		m.blames[who] = b
	}
}

// blamedFor are those whose rest keeps connections to server from d.
func blamedFor(d *Detour, server netip.AddrPort) [4]blamed {
	return [...]blamed{
		{d.Waypoint, anyKind, netip.AddrPort{}}, {d.Waypoint, anyKind, server},
		{d.Waypoint, d.Kind, netip.AddrPort{}}, {d.Waypoint, d.Kind, server},
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
	for _, who := range blamedFor(d, server) {
		if b := m.blames[who]; now.Before(b.until) && (!ok || b.until.After(worst.until)) {
			worst, ok = b, true
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
