package path

import (
	"maps"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/path/policy"
)

// A waypoint may answer its session quickly and forward nothing. For a new server the session is all that is known, so
// this waypoint would be taken first by the connections to every new server, and delay each of them. Therefore silence
// is also counted for each waypoint and kind of detour (silences). Silence towards servers in several networks
// suspends the waypoint for all servers, for detours of that kind.
//
// The waypoint may be innocent. An outage may affect many servers, and a server can be silent on purpose to have good
// waypoints suspended. Therefore:
//
//   - Silence counts only while another path of the same connection works, and the waypoint's session does. So outages
//     of this host's line or of the waypoint's do not count.
//   - It must be seen again some time later, because other outages are short.
//   - Data that gets through the waypoint to or from any server ends the count and the suspension.
//   - Towards networks where data lately got through the waypoint, it stays in use, unless it is silent there, too. So
//     such a connection ends a wrong suspension at once.

const (
	// silentApart is the least time between the first and the last silence.
	silentApart = 30 * time.Second
	// silenceKept is the time for which a count is kept after its last silence. A suspension that followed is forgotten by
	// then.
	silenceKept = 2 * time.Hour
)

// silence counts the servers towards which a waypoint was silent since data last got through it.
type silence struct {
	first, last time.Time
	networks    [spreadsFrom]netip.Prefix // of the servers; the rest is zero
	// worked is set if data had lately got through the waypoint to or from one of these networks.
	worked bool
}

// silences holds the counts by waypoint and kind. The server of each key is zero.
type silences map[suspended]silence

// add counts a silence towards a server. It reports whether the waypoint seems to be silent towards all servers.
func (x silences) add(who suspended, server netip.AddrPort, worked bool, now time.Time) bool {
	e := x[who]
	if e.first.IsZero() || !within(e.last, now, silenceKept) {
		e = silence{first: now}
	}
	e.last, e.worked = now, e.worked || worked
	network := networkOf(server.Addr()) // wide, so that one organisation cannot have a waypoint suspended
	for i := range e.networks {
		if !e.networks[i].IsValid() {
			e.networks[i] = network
		}
		if e.networks[i] == network {
			break
		}
	}
	x[who] = e
	return e.networks[spreadsFrom-1].IsValid() && e.last.Sub(e.first) >= silentApart
}

// forget drops old counts.
func (x silences) forget(now time.Time) {
	maps.DeleteFunc(x, func(_ suspended, e silence) bool { return !within(e.last, now, silenceKept) })
}

// everywhereOf returns the key of detours like d towards all servers.
func everywhereOf(d *Detour) suspended { return suspended{waypoint: d.Waypoint, kind: d.Kind} }

// workedLately reports whether data lately got through the waypoint to or from the server's network.
func (k *detours) workedLately(d *Detour, server netip.AddrPort, now time.Time) bool {
	r, ok := k.history.of(d.Waypoint, server)
	return ok && r.carried && within(r.at, now, trustsFor)
}

// suspended returns the longest suspension of a detour towards a server. ok is false if there is none. attempted is the
// time until which an attempt by another connection keeps others from taking the detour. It may be in the past.
func (k *detours) suspended(d *Detour, server netip.AddrPort, now time.Time) (b suspension, ok bool, attempted time.Time) {
	if len(k.suspensions) == 0 {
		return b, false, attempted
	}
	works := k.workedLately(d, server, now) && !k.silences[everywhereOf(d)].worked
	b, ok = k.suspensions.on(d, server, works, now)
	return b, ok, k.suspensions.attemptedUntil(d, server, works)
}

// addSilence records that a detour is silent towards a server. It reports whether the detour seems to be silent towards
// all servers. If another kind of detour through the waypoint is suspended for that, one server is enough.
func (k *detours) addSilence(d *Detour, server netip.AddrPort, now time.Time) (everywhere bool) {
	everywhere = k.silences.add(everywhereOf(d), server, k.workedLately(d, server, now), now)
	for _, kind := range policy.Kinds() {
		b := k.suspensions[suspended{waypoint: d.Waypoint, kind: kind}]
		everywhere = everywhere || b.fault == &blackHole && now.Before(b.until)
	}
	return everywhere
}

// recordSilence suspends a detour through which nothing arrives from a server, over a subflow that began at began.
func (m *Manager) recordSilence(d *Detour, server netip.AddrPort, began, now time.Time) {
	if d.Kind.Own() {
		m.recordFault(d, server, &silentOwn, began, now)
		return
	}
	m.recordFault(d, server, &swallows, began, now)
	m.countSilence(d, server, began, now)
}

// countSilence counts that a detour was silent towards a server, and suspends it for all servers if it seems to be
// silent towards all.
func (m *Manager) countSilence(d *Detour, server netip.AddrPort, began, now time.Time) {
	if _, lost := m.detours.lost[viaOf(d)]; lost || d.Kind.Own() || !m.detours.addSilence(d, server, now) {
		return
	}
	m.recordFault(d, netip.AddrPort{}, &blackHole, began, now)
}

// showsSilence reports whether a join that was not answered counts as silence: another path of its connection worked
// meanwhile. In-band joins are judged by their trials, because the path may drop just their SYNs.
func (m *Manager) showsSilence(t turn, e *ended) bool {
	return e.detour.Kind != InBand && e.network == t.host.network && t.host.hasSource(e.subflow) &&
		t.has(func(s *subflow) bool { return s.up && s.lastAnswer().After(e.since.Add(joinTimeout/2)) })
}

// gotThrough records that data got through the detour of a subflow since its last sample. intact is set if data arrived
// and the sample is a complete one. gotThrough reports whether other connections may use the detour now.
func (k *detours) gotThrough(t turn, s *subflow, intact bool) (wake bool) {
	delete(k.silences, everywhereOf(s.detour))
	return k.suspensions.gotThrough(s.detour, t.server, intact, s.since, t.now)
}
