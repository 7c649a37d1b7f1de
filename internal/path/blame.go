package path

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"time"
)

// A waypoint that harms connections is suspended, so that later connections avoid it.
//
// The suspension applies to the server towards which the harm was seen. Data that a waypoint
// changed looks the same as data that the server sent with a wrong checksum, so one server proves
// nothing about the waypoint towards others. Only corruption towards servers in several networks
// suspends the waypoint for all servers. Silence never does: a short outage hits the connections to
// all servers at once and is over soon.
//
// The first suspension is short, because each new attempt costs only a subflow: the checksums that
// detected the corruption protect the data. Each time the harm is seen again, the suspension
// doubles, unless data arrived intact for a while in between.

// fault describes a kind of harm and how to react to it.
type fault struct {
	err           error
	mend          string
	allKinds      bool // suspends all kinds of detours through the waypoint, not only the one that was used
	leave         bool // established subflows through it end, too
	spreads       bool // if seen towards servers in several networks, it counts towards all
	rest, longest time.Duration
}

var (
	errSilent = errors.New("nothing arrived through it while another path worked")

	// corrupts means that data arrived changed. Nothing may be sent through the waypoint any more.
	corrupts = fault{
		err: errCorrupt, mend: "ask its operator whether something there changes TCP's data",
		allKinds: true, leave: true, spreads: true, rest: 10 * time.Minute, longest: 24 * time.Hour,
	}
	// swallows means that nothing arrived, not even answers to probes where those could be sent.
	swallows = fault{
		err: errSilent, mend: "if it happens again, ask its operator whether a firewall there drops TCP",
		rest: time.Minute, longest: 5 * time.Minute,
	}
)

const (
	// spreadsFrom is the number of networks with affected servers from which a fault counts towards
	// all servers.
	spreadsFrom = 3
	// forgivenAfter is the number of complete samples, a second apart, in which data must have
	// arrived by a detour after its suspension before the fault is forgotten.
	forgivenAfter = 60
)

// anyKind in a blamed means all kinds.
const anyKind = nKinds

// blamed identifies suspended detours: one kind, through one waypoint, to one server. A zero server
// means all servers.
type blamed struct {
	waypoint string
	kind     Kind
	server   netip.AddrPort
}

type blame struct {
	fault        *fault
	times        int // consecutive
	well         int // samples since the suspension in which data arrived
	since, until time.Time
}

// over reports whether the blame has expired.
func (b blame) over(now time.Time) bool { return now.Sub(b.until) > b.fault.longest }

// blame records that a subflow over d to server suffered fault f.
func (m *Manager) blame(d *Detour, server netip.AddrPort, f *fault, now time.Time) {
	who := blamed{d.Waypoint, d.Kind, server}
	if f.allKinds {
		who.kind = anyKind
	}
	if now.Before(m.blames[who].until) {
		return // already recorded for another of its subflows
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

// rest starts a suspension, or extends it beyond the previous one.
func (m *Manager) rest(who blamed, f *fault, now time.Time) {
	b := m.blames[who]
	if b.fault == nil || b.over(now) {
		b = blame{fault: f, since: now}
	}
	b.until, b.well = now.Add(min(f.rest<<min(b.times, 10), f.longest)), 0
	b.times++
	m.blames[who] = b
}

// networksWith counts the networks in which who is suspended towards a server, ignoring the server
// in who.
func (m *Manager) networksWith(who blamed, now time.Time) int {
	networks := make(map[netip.Prefix]bool)
	for other, b := range m.blames {
		if other.waypoint == who.waypoint && other.kind == who.kind && other.server.IsValid() && now.Before(b.until) {
			networks[networkOf(other.server.Addr())] = true
		}
	}
	return len(networks)
}

// networkOf returns a block of addresses large enough that few organisations have several.
func networkOf(a netip.Addr) netip.Prefix {
	bits := 16
	if a.Is6() {
		bits = 32
	}
	p, _ := a.Prefix(bits)
	return p
}

// arrivedIntact records that data arrived over d since the last complete sample.
func (m *Manager) arrivedIntact(d *Detour, server netip.AddrPort, now time.Time) {
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

// blamedFor returns the keys under which a suspension of d towards server may be recorded.
func blamedFor(d *Detour, server netip.AddrPort) [4]blamed {
	return [...]blamed{
		{d.Waypoint, anyKind, netip.AddrPort{}}, {d.Waypoint, anyKind, server},
		{d.Waypoint, d.Kind, netip.AddrPort{}}, {d.Waypoint, d.Kind, server},
	}
}

// leaveBlamed ends the subflows that match who as soon as their connections have other paths.
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

// blameOf returns the blame on d towards server that lasts longest. ok is false if there is none.
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

// worstBlame returns the blame on d to show to the operator, and its server. A blame towards all
// servers comes first, then the one that lasts longest.
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

// forgetBlames drops expired blames.
func (m *Manager) forgetBlames(now time.Time) {
	maps.DeleteFunc(m.blames, func(_ blamed, b blame) bool { return b.over(now) })
}

// forgiveSilence drops blames for silence, because another network has another path to the waypoints.
// Blames for corruption stay: the path is seldom their cause.
func (m *Manager) forgiveSilence() {
	maps.DeleteFunc(m.blames, func(_ blamed, b blame) bool { return !b.fault.allKinds })
}
