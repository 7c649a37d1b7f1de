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
	// reported means that the server says that data arrived changed. It has the same effect towards that
	// server, but no number of servers makes it count towards others: nothing was seen here.
	reported = fault{
		err: errReported, mend: corrupts.mend, allKinds: true, leave: true, rest: corrupts.rest, longest: corrupts.longest,
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

// covers reports whether d is one of the detours.
func (who blamed) covers(d *Detour) bool {
	return d.Waypoint == who.waypoint && (who.kind == anyKind || who.kind == d.Kind)
}

// blames holds what each waypoint is blamed for.
type blames map[blamed]blame

// add records that a subflow over d to server suffered fault f. It returns what is suspended
// because of it and until when. ok is false if it was suspended already, for another of its
// subflows.
func (bs blames) add(d *Detour, server netip.AddrPort, f *fault, now time.Time) (who blamed, until time.Time, ok bool) {
	who = blamed{d.Waypoint, d.Kind, server}
	if f.allKinds {
		who.kind = anyKind
	}
	if now.Before(bs[who].until) {
		return who, until, false
	}
	bs.suspend(who, f, now)
	if f.spreads && bs.networks(who, now) >= spreadsFrom {
		who.server = netip.AddrPort{}
		bs.suspend(who, f, now)
	}
	return who, bs[who].until, true
}

// suspend starts a suspension, or extends it beyond the previous one.
func (bs blames) suspend(who blamed, f *fault, now time.Time) {
	b := bs[who]
	if b.fault == nil || b.over(now) {
		b = blame{fault: f, since: now}
	}
	b.until, b.well = now.Add(min(f.rest<<min(b.times, 10), f.longest)), 0
	b.times++
	bs[who] = b
}

// networks counts the networks in which who is suspended towards a server, ignoring the server in
// who.
func (bs blames) networks(who blamed, now time.Time) int {
	networks := make(map[netip.Prefix]bool)
	for other, b := range bs {
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
func (bs blames) arrivedIntact(d *Detour, server netip.AddrPort, now time.Time) {
	if len(bs) == 0 {
		return
	}
	for _, who := range blamedFor(d, server) {
		b, ok := bs[who]
		if !ok || now.Before(b.until) {
			continue
		}
		if b.well++; b.well >= forgivenAfter {
			delete(bs, who)
			continue
		}
		bs[who] = b
	}
}

// blamedFor returns the keys under which a suspension of d towards server may be recorded.
func blamedFor(d *Detour, server netip.AddrPort) [4]blamed {
	return [...]blamed{
		{d.Waypoint, anyKind, netip.AddrPort{}}, {d.Waypoint, anyKind, server},
		{d.Waypoint, d.Kind, netip.AddrPort{}}, {d.Waypoint, d.Kind, server},
	}
}

// on returns the blame on d towards server that lasts longest. ok is false if there is none.
func (bs blames) on(d *Detour, server netip.AddrPort, now time.Time) (worst blame, ok bool) {
	if len(bs) == 0 {
		return worst, false
	}
	for _, who := range blamedFor(d, server) {
		if b := bs[who]; now.Before(b.until) && (!ok || b.until.After(worst.until)) {
			worst, ok = b, true
		}
	}
	return worst, ok
}

// worst returns the blame on d to show to the operator, and its server. A blame towards all servers
// comes first, then the one that lasts longest.
func (bs blames) worst(d *Detour, now time.Time) (worst blame, server netip.AddrPort, ok bool) {
	for who, b := range bs {
		if !who.covers(d) || !now.Before(b.until) {
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

// forget drops expired blames.
func (bs blames) forget(now time.Time) {
	maps.DeleteFunc(bs, func(_ blamed, b blame) bool { return b.over(now) })
}

// forgiveSilence drops blames for silence, because another network has another path to the waypoints.
// Blames for corruption stay: the path is seldom their cause.
func (bs blames) forgiveSilence() {
	maps.DeleteFunc(bs, func(_ blamed, b blame) bool { return !b.fault.allKinds })
}
