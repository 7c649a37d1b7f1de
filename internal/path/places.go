package path

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/policy"
)

// A server accepts a limited number of subflows beside a connection's first, and closes further ones as soon as they
// come up (docs/kernel-behaviour.md). Each try costs the connection something, so the number is remembered for the
// server's address. Connections do not ask for more until the number may have changed.
//
// A waypoint could close subflows in the same way. So the number is believed only if two subflows in a row were
// closed while the same number of others were up. If no other was up, the two must also have taken different routes.
// If all of them went through one waypoint, the number holds only for that waypoint. Connections still use the
// others, which shows whether the waypoint or the server closes subflows. The number is not updated while the server
// may still count subflows that have ended.

const (
	// placesFor is the time for which a number is believed at first. It doubles whenever the number is confirmed, up
	// to longestPlaces.
	placesFor     = 10 * time.Minute
	longestPlaces = time.Hour
	// noticedAfter is the time for which a server may still count a subflow that ended.
	noticedAfter = time.Minute
	// refusals is the number of refusals in a row that show the number.
	refusals = 2
	// usualPlaces is the number of subflows beside the first that Linux accepts by default.
	usualPlaces = 2
)

// places holds the number of subflows that each server accepts.
type places struct {
	limits  map[netip.Addr]limit
	refused uint64 // number of subflows that servers closed because they accept no more
	// noDirect has the servers that refused to let the direct path of a connection join again, and when they last did.
	noDirect map[netip.Addr]time.Time
}

// limit is the number of subflows that one server accepts.
type limit struct {
	n        int // subflows beside the first
	known    bool
	until    time.Time // when the number is checked again; while not known: the time of the last refusal
	lasted   time.Duration
	refused  int    // consecutive refusals with n subflows up
	waypoint string // waypoint of the first of these
	others   bool   // other waypoints or the direct path were refused, too
}

// onlyWitness returns the waypoint if the number was seen only through it. ok is false otherwise.
func (l *limit) onlyWitness() (waypoint string, ok bool) {
	return l.waypoint, l.known && !l.others && l.waypoint != ""
}

// closed records that the server closed a surplus subflow. If that shows through two waypoints how many subflows the server
// accepts, it returns these waypoints. They are not to blame.
func (p *places) closed(t turn, e *ended) (excused []string) {
	p.refused++
	if t.removals.unsettled() || t.now.Sub(t.dropped) < noticedAfter || t.has(func(s *subflow) bool { return !t.host.hasSource(s) }) {
		return nil
	}
	n := t.beside(func(s *subflow) bool { return s.up && !s.since.After(e.since) })
	l := p.limits[t.server.Addr()]
	waypoint := ""
	if e.detour != nil {
		waypoint = e.detour.Waypoint
	}
	switch {
	case l.known && n > l.n:
		return nil // the connection has more subflows than before
	case l.known && n == l.n: // confirmed
		l.refused, l.others = refusals, l.others || l.waypoint != waypoint
	case l.refused > 0 && l.n == n:
		l.refused++
		l.others = l.others || l.waypoint != waypoint
	default:
		l = limit{n: n, refused: 1, waypoint: waypoint}
	}
	if !l.known {
		l.until = t.now
	}
	if l.refused >= refusals && (n > 0 || l.others) {
		if !l.known && l.others {
			excused = []string{l.waypoint, waypoint}
		}
		l.lasted = min(max(placesFor, 2*l.lasted), longestPlaces)
		l.known, l.until, l.refused = true, t.now.Add(l.lasted), 0
	}
	p.limits[t.server.Addr()] = l
	return excused
}

// room returns how many more detours the server accepts on the connection. known is false if that is not known. When
// the number is due to be checked, it returns one more for the first connection that asks. If the direct path is to join
// again because the first subflow was ended, one place is kept for it. Otherwise it could never join again. If the server
// refuses to let it join, the place is for a detour.
func (p *places) room(t turn) (n int, known bool) {
	n, known = p.free(t)
	switch {
	case t.firstEnded && !p.refusesDirect(t) && !t.has(func(s *subflow) bool { return s.direct && s.up }):
		if !known {
			n = usualPlaces - t.further()
		}
		if !t.has(func(s *subflow) bool { return s.direct }) {
			n--
		}
		return max(0, n), true
	case known && !t.now.Before(p.limits[t.server.Addr()].until):
		n++
	}
	return max(0, n), known
}

// free returns how many more subflows the server accepts on the connection by what was last seen. It may be negative.
// known is false if nothing was seen.
func (p *places) free(t turn) (n int, known bool) {
	l := p.limits[t.server.Addr()]
	if !l.known {
		return 0, false
	}
	if stayed := t.beside(func(s *subflow) bool { return s.stayed(t.now) }); stayed > l.n {
		l.n = stayed
		p.limits[t.server.Addr()] = l
	}
	return l.n - t.further(), true
}

// onlyWitness reports whether the number of subflows that the server accepts was seen through a single waypoint.
func (p *places) onlyWitness(t turn) bool {
	l := p.limits[t.server.Addr()]
	_, only := l.onlyWitness()
	return only
}

// withoutWitness returns the usable detours without those of the only waypoint through which the number was seen. ok
// is false if the number is unknown or was seen elsewhere, too.
func (p *places) withoutWitness(t turn, usable []policy.Usable) (others []policy.Usable, ok bool) {
	l := p.limits[t.server.Addr()]
	witness, ok := l.onlyWitness()
	if !ok {
		return nil, false
	}
	return slices.DeleteFunc(slices.Clone(usable), func(u policy.Usable) bool { return u.Waypoint == witness }), true
}

// askingForMore records that the connection opens more subflows than the server accepted last time. Other connections
// wait for the result.
func (p *places) askingForMore(t turn) {
	addr := t.server.Addr()
	l := p.limits[addr]
	if l.known && !t.now.Before(l.until) && t.further() > l.n {
		l.until = t.now.Add(joinTimeout + time.Second)
		p.limits[addr] = l
	}
}

// note describes for users how many subflows the server accepts on the connection, and when that is checked again.
func (p *places) note(t turn) string {
	l := p.limits[t.server.Addr()]
	n := max(l.n, t.beside(func(s *subflow) bool { return s.stayed(t.now) }))
	note := fmt.Sprintf("the server takes %d beside the first subflow", n)
	if n == 0 {
		note = "the server takes no detour, only the first subflow"
	}
	if witness, ok := l.onlyWitness(); ok {
		note += fmt.Sprintf(" (seen through %s only)", witness)
	}
	if l.known {
		note += fmt.Sprintf("; believed until %s, then a connection tries one more", l.until.Format("15:04"))
	}
	return note
}

// refusedDirect records that the server, or a middlebox before it, refused to let the direct path of a connection join again.
func (p *places) refusedDirect(t turn) { p.noDirect[t.server.Addr()] = t.now }

// refusesDirect reports whether the server lately refused to let the direct path of a connection join again.
func (p *places) refusesDirect(t turn) bool {
	at, ok := p.noDirect[t.server.Addr()]
	return ok && within(at, t.now, longestPlaces)
}

// acceptsDirect reports whether the server is expected to let the direct path join again if its subflow ends. A later direct
// subflow frees its own place. The first subflow has none, because servers do not count it.
func (p *places) acceptsDirect(t turn, direct *subflow) bool {
	if p.refusesDirect(t) {
		return false
	}
	if direct.id != 0 {
		return true
	}
	if free, known := p.free(t); known {
		return free > 0
	}
	most := usualPlaces
	if l := p.limits[t.server.Addr()]; l.refused > 0 {
		most = min(most, l.n)
	}
	return t.further() < most
}

func (p *places) forget(now time.Time) {
	maps.DeleteFunc(p.noDirect, func(_ netip.Addr, at time.Time) bool { return !within(at, now, longestPlaces) })
	maps.DeleteFunc(p.limits, func(_ netip.Addr, l limit) bool { return now.Sub(l.until) > longestPlaces })
}
