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
// The suspension applies to the server towards which the harm was seen. Data that a waypoint changed looks like data
// that the server sent with a wrong checksum, so one server proves nothing about the waypoint towards others. Corruption
// or silence towards servers in several networks suspends the waypoint for all servers. Silence must also last for some
// time (blackhole.go), because a short outage affects the connections to all servers at once and is over soon.
//
// The first suspension is short, because a new attempt costs only a subflow: the checksums that detected the
// corruption protect the data. The suspension doubles each time the harm is seen again, unless data arrived intact
// for a while in between.
//
// A suspension for silence ends as soon as a later attempt gets data through. Attempts are made one at a time: by the
// first connection after the suspension, or earlier by one without another detour (a last resort). As long as the
// waypoint stays silent, the waits between attempts double, too, unless the connection has no other path that works.

// fault describes a kind of harm and the reaction to it.
type fault struct {
	err              error
	fix              string
	allKinds         bool // suspends all kinds of detours through the waypoint, not only the one that was used
	leave            bool // ends established subflows through it, too
	spreads          bool // if seen towards servers in several networks, it counts towards all
	initial, longest time.Duration
	lastResort       time.Duration // first wait until connections without another detour try it again; 0: they do not
}

var (
	errSilent    = errors.New("nothing arrived through it while another path worked")
	errBlackHole = errors.New("nothing arrived through it from servers in several networks while other paths worked")

	// corrupts means that data arrived changed. Nothing may be sent through the waypoint any more.
	corrupts = fault{
		err: errCorrupt, fix: "ask its operator whether something there changes TCP's data",
		allKinds: true, leave: true, spreads: true, initial: 10 * time.Minute, longest: 24 * time.Hour,
	}
	// reported means that the server reports that data arrived changed. It has the same effect towards that server.
	// However many servers report it, it does not count towards others, because this host saw nothing.
	reported = fault{
		err: errReported, fix: corrupts.fix, allKinds: true, leave: true, initial: corrupts.initial, longest: corrupts.longest,
	}
	// swallows means that nothing arrived, not even the answers to probes if those could be sent.
	swallows = fault{
		err: errSilent, fix: "if it happens again, ask its operator whether a firewall there drops TCP",
		initial: time.Minute, longest: time.Hour, lastResort: 5 * time.Second,
	}
	// silentOwn means that nothing arrived over a path of this host's own, such as an uplink. A radio link is often silent
	// for long and then works again.
	silentOwn = fault{
		err: errSilent, fix: "check the uplink", initial: time.Minute, longest: 5 * time.Minute, lastResort: swallows.lastResort,
	}
	// blackHole means that nothing arrives from any server.
	blackHole = fault{
		err: errBlackHole, fix: "ask its operator whether it still forwards TCP", initial: swallows.initial, longest: swallows.longest,
		lastResort: swallows.lastResort,
	}
)

const (
	// spreadsFrom is the number of networks with affected servers from which a fault counts towards all servers.
	spreadsFrom = 3
	// forgivenAfter is the number of complete samples after a suspension, a second apart, in which data must have
	// arrived over a detour before the fault is forgotten.
	forgivenAfter = 60
	// urgentWait is the longest wait before a last resort of a connection without a path that works.
	urgentWait = 30 * time.Second
	// attemptFor is the time for which one attempt after a silence keeps other connections from making one. An idle
	// detour that is silent is found out in about eleven seconds.
	attemptFor = 12 * time.Second
	// mostSuspensions bounds the suspensions that are remembered.
	mostSuspensions = 1024
)

// anyKind in a suspended means all kinds. No detour of this kind passes a waypoint.
const anyKind = Uplink

// suspended names suspended detours: one kind, through one waypoint, to one server. A zero server means all servers.
type suspended struct {
	waypoint string
	kind     Kind
	server   netip.AddrPort
}

type suspension struct {
	fault        *fault
	times        int       // suspensions in a row
	since        time.Time // start of the first one
	began, until time.Time // start and end of the last one
	attempts     int       // since then, without a result
	tried        time.Time // start of the last of these; zero: none
	works        bool      // data got through since then
	well         int       // complete samples since then in which data arrived
}

// lastResort returns the time from which a connection without another detour may try the waypoint again, or zero if
// none may before the suspension's end. An outage is often over after seconds, and another try costs only a subflow.
// The wait doubles each time. If urgent is set, because the connection has no path that works, it stays short.
func (b suspension) lastResort(urgent bool) time.Time {
	if b.fault.lastResort == 0 {
		return time.Time{}
	}
	wait := doubled(b.fault.lastResort, b.times-1+b.attempts, b.fault.longest)
	if urgent {
		return b.began.Add(min(wait, urgentWait))
	}
	return later(later(b.began, b.tried).Add(wait), b.attemptedUntil())
}

// attemptedUntil returns the time until which the last attempt keeps others from making one. It may be in the past.
func (b suspension) attemptedUntil() time.Time {
	if b.tried.IsZero() {
		return time.Time{}
	}
	return b.tried.Add(attemptFor)
}

// over reports whether the suspension is forgotten.
func (b suspension) over(now time.Time) bool { return now.Sub(b.until) > b.fault.longest }

// covers reports whether d is one of the suspended detours.
func (who suspended) covers(d *Detour) bool {
	return d.Waypoint == who.waypoint && (who.kind == anyKind || who.kind == d.Kind)
}

// suspensions holds the present and recent suspensions.
type suspensions map[suspended]suspension

// add records that a subflow over d to server, begun at began, suffered fault f. A zero server means all servers. add
// returns what is suspended because of it, and until when. ok is false if that is suspended already. A subflow that began
// during the suspension extends it, unless f forbids all use.
func (x suspensions) add(d *Detour, server netip.AddrPort, f *fault, began, now time.Time) (who suspended, until time.Time, ok bool) {
	who = suspended{d.Waypoint, d.Kind, server}
	if f.allKinds {
		who.kind = anyKind
	}
	if b := x[who]; now.Before(b.until) && (f.leave || !began.After(b.began)) {
		return who, until, false
	}
	x.suspend(who, f, now)
	if f.spreads && x.networks(who, now) >= spreadsFrom {
		who.server = netip.AddrPort{}
		x.suspend(who, f, now)
	}
	return who, x[who].until, true
}

// suspend starts a suspension, or extends one.
func (x suspensions) suspend(who suspended, f *fault, now time.Time) {
	b, known := x[who]
	if !known && len(x) >= mostSuspensions {
		dropOldest(x, func(b suspension) time.Time { return b.until }, suspended.compare)
	}
	if !known || b.over(now) {
		b = suspension{fault: f, since: now}
	}
	x[who] = suspension{
		fault: f, times: b.times + 1, since: b.since, began: now, until: now.Add(doubled(f.initial, b.times, f.longest)),
	}
}

func (who suspended) compare(x suspended) int {
	return cmp.Or(cmp.Compare(who.waypoint, x.waypoint), cmp.Compare(who.kind, x.kind), who.server.Compare(x.server))
}

// networks counts the networks with a server towards which who is suspended. It ignores who.server.
func (x suspensions) networks(who suspended, now time.Time) int {
	networks := make(map[netip.Prefix]bool)
	for other, b := range x {
		if other.waypoint == who.waypoint && other.kind == who.kind && other.server.IsValid() && now.Before(b.until) {
			networks[networkOf(other.server.Addr())] = true
		}
	}
	return len(networks)
}

// networkOf returns a block of addresses so large that few organisations have several.
func networkOf(a netip.Addr) netip.Prefix {
	return blockOf(a, 16, 32)
}

// gotThrough records that data got through d to or from server since the last sample, over a subflow that began at
// began. intact is set if data arrived and the sample is a complete one. gotThrough reports whether other connections may
// use the detour now.
func (x suspensions) gotThrough(d *Detour, server netip.AddrPort, intact bool, began, now time.Time) (wake bool) {
	if len(x) == 0 {
		return false
	}
	for _, who := range suspendedFor(d, server) {
		b, ok := x[who]
		switch {
		case !ok || b.fault.leave && (!intact || now.Before(b.until)):
			continue
		case now.Before(b.until) && who.server.IsValid() && !began.After(b.began):
			continue // another subflow to the same server is silent
		case now.Before(b.until):
			b.until, wake = now, true
		}
		wake = wake || b.attempts > 0
		b.attempts, b.tried = 0, time.Time{}
		if intact {
			b.well++
		}
		if b.well >= forgivenAfter {
			delete(x, who)
			continue
		}
		b.works = true
		x[who] = b
	}
	return wake
}

// attempt records that a connection to server takes d.
func (x suspensions) attempt(d *Detour, server netip.AddrPort, now time.Time) {
	if len(x) == 0 {
		return
	}
	for _, who := range suspendedFor(d, server) {
		if b, ok := x[who]; ok && !b.fault.leave && !b.works {
			b.attempts, b.tried = b.attempts+1, now
			x[who] = b
		}
	}
}

// attemptedUntil returns the time until which an attempt by another connection keeps others from taking d. It may be in
// the past. works is as for on.
func (x suspensions) attemptedUntil(d *Detour, server netip.AddrPort, works bool) (until time.Time) {
	for _, who := range suspendedFor(d, server) {
		if b := x[who]; !works || b.fault != &blackHole {
			until = later(until, b.attemptedUntil())
		}
	}
	return until
}

// suspendedFor returns the keys under which a suspension of d towards server may be recorded.
func suspendedFor(d *Detour, server netip.AddrPort) [4]suspended {
	return [...]suspended{
		{d.Waypoint, anyKind, netip.AddrPort{}}, {d.Waypoint, anyKind, server},
		{d.Waypoint, d.Kind, netip.AddrPort{}}, {d.Waypoint, d.Kind, server},
	}
}

// on returns the longest suspension of d towards server. ok is false if there is none. If works is set, the waypoint
// lately got data through from that network, so suspensions as a black hole do not count.
func (x suspensions) on(d *Detour, server netip.AddrPort, works bool, now time.Time) (worst suspension, ok bool) {
	for _, who := range suspendedFor(d, server) {
		if b := x[who]; now.Before(b.until) && (!works || b.fault != &blackHole) && (!ok || b.until.After(worst.until)) {
			worst, ok = b, true
		}
	}
	return worst, ok
}

// worst returns the suspension of d to show to the operator, and its server. A suspension for all servers comes
// first, then the one that lasts longest.
func (x suspensions) worst(d *Detour, now time.Time) (worst suspension, server netip.AddrPort, ok bool) {
	for who, b := range x {
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

// forget drops expired suspensions.
func (x suspensions) forget(now time.Time) {
	maps.DeleteFunc(x, func(_ suspended, b suspension) bool { return b.over(now) })
}

// forgiveSilence drops suspensions for silence, because another network has another path to the waypoints.
// Suspensions for corruption stay, because the path is seldom its cause.
func (x suspensions) forgiveSilence() {
	maps.DeleteFunc(x, func(_ suspended, b suspension) bool { return !b.fault.allKinds })
}
