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
// that the server sent with a wrong checksum, so one server proves nothing about the waypoint towards others. Only
// corruption towards servers in several networks suspends the waypoint for all servers. Silence never does, because a
// short outage affects the connections to all servers at once and is over soon.
//
// The first suspension is short, because a new attempt costs only a subflow: the checksums that detected the
// corruption protect the data. The suspension doubles each time the harm is seen again, unless data arrived intact
// for a while in between.

// fault describes a kind of harm and the reaction to it.
type fault struct {
	err              error
	fix              string
	allKinds         bool // suspends all kinds of detours through the waypoint, not only the one that was used
	leave            bool // ends established subflows through it, too
	spreads          bool // if seen towards servers in several networks, it counts towards all
	initial, longest time.Duration
	lastResort       time.Duration // time after which connections without another detour try it again; 0: they do not
}

var (
	errSilent = errors.New("nothing arrived through it while another path worked")

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
		initial: time.Minute, longest: 5 * time.Minute, lastResort: 5 * time.Second,
	}
)

const (
	// spreadsFrom is the number of networks with affected servers from which a fault counts towards all servers.
	spreadsFrom = 3
	// forgivenAfter is the number of complete samples after a suspension, a second apart, in which data must have
	// arrived over a detour before the fault is forgotten.
	forgivenAfter = 60
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
	times        int // suspensions in a row
	well         int // samples since the suspension in which data arrived
	since, until time.Time
}

// lastResort returns the time from which a connection without another detour may try the waypoint again, or zero if
// none may before the suspension's end. An outage is often over after seconds, and another try costs only a subflow.
// The wait doubles each time.
func (b suspension) lastResort() time.Time {
	if b.fault.lastResort == 0 {
		return time.Time{}
	}
	return b.since.Add(b.fault.lastResort << min(b.times-1, 10))
}

// over reports whether the suspension is forgotten.
func (b suspension) over(now time.Time) bool { return now.Sub(b.until) > b.fault.longest }

// covers reports whether d is one of the suspended detours.
func (who suspended) covers(d *Detour) bool {
	return d.Waypoint == who.waypoint && (who.kind == anyKind || who.kind == d.Kind)
}

// suspensions holds the present and recent suspensions.
type suspensions map[suspended]suspension

// add records that a subflow over d to server suffered fault f. It returns what is suspended because of it, and until
// when. ok is false if that was suspended already, because of another subflow.
func (x suspensions) add(d *Detour, server netip.AddrPort, f *fault, now time.Time) (who suspended, until time.Time, ok bool) {
	who = suspended{d.Waypoint, d.Kind, server}
	if f.allKinds {
		who.kind = anyKind
	}
	if now.Before(x[who].until) {
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
	b := x[who]
	if b.fault == nil || b.over(now) {
		b = suspension{fault: f, since: now}
	}
	b.until, b.well = now.Add(doubled(f.initial, b.times, f.longest)), 0
	b.times++
	x[who] = b
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

// arrivedIntact records that data arrived over d since the last complete sample.
func (x suspensions) arrivedIntact(d *Detour, server netip.AddrPort, now time.Time) {
	if len(x) == 0 {
		return
	}
	for _, who := range suspendedFor(d, server) {
		b, ok := x[who]
		if !ok || now.Before(b.until) {
			continue
		}
		if b.well++; b.well >= forgivenAfter {
			delete(x, who)
			continue
		}
		x[who] = b
	}
}

// suspendedFor returns the keys under which a suspension of d towards server may be recorded.
func suspendedFor(d *Detour, server netip.AddrPort) [4]suspended {
	return [...]suspended{
		{d.Waypoint, anyKind, netip.AddrPort{}}, {d.Waypoint, anyKind, server},
		{d.Waypoint, d.Kind, netip.AddrPort{}}, {d.Waypoint, d.Kind, server},
	}
}

// on returns the longest suspension of d towards server. ok is false if there is none.
func (x suspensions) on(d *Detour, server netip.AddrPort, now time.Time) (worst suspension, ok bool) {
	if len(x) == 0 {
		return worst, false
	}
	for _, who := range suspendedFor(d, server) {
		if b := x[who]; now.Before(b.until) && (!ok || b.until.After(worst.until)) {
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
