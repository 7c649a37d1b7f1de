package path

import (
	"time"

	"github.com/detour-collective/dcol/internal/path/policy"
)

// This file handles waypoints that report that they are loaded.
//
//   - New subflows go through other waypoints, if there are any.
//   - Connections with traffic leave a loaded waypoint for another, but not all at once, because the other would be
//     loaded next. A random number decides for each of them, again and again while the waypoint is loaded.
//   - When a load ends, connections return to the waypoint at a random time, which differs from host to host. Otherwise all
//     would return at once, and load it again.
//   - A waypoint whose capacity one member uses up is not loaded, but states what one more member would get.
//     Connections that get about as much do not leave for it.
//
// A waypoint that lies can only keep its clients away, for loadedAtMost at a time.

const (
	// loadedAtMost bounds the time for which a waypoint is believed to be loaded.
	loadedAtMost = time.Minute
	// drawsEvery is the time between two decisions of a connection whether it leaves a loaded waypoint.
	drawsEvery = time.Second
	// leavesOneIn makes one connection in 20 leave at each decision, at first.
	leavesOneIn = 20
	// leavesTwice is the time after which the chance to leave doubles while the waypoint stays loaded.
	leavesTwice = 8 * time.Second
	// leavesAtMost makes at most one connection in 10 leave at each decision.
	leavesAtMost = 10
	// staysLeast is the time for which a connection stays with a detour that it has just taken.
	staysLeast = 3 * time.Second
	// staysAfter is the time after an exchange for which a connection makes no other. It doubles each time, up to
	// staysMost.
	staysAfter = 8 * time.Second
	staysMost  = 10 * time.Minute
	// returnsWithin bounds the time after the end of a load at which connections return to the waypoint.
	returnsWithin = 4 * time.Second
	// exchangedIn is the time within which the new detour must be established.
	exchangedIn = 5 * time.Second
)

// load is what a waypoint states about its load. since and until are the start and the end of its load. gives is
// the rate that one more member would get, in bits a second. If the waypoint is not loaded but used up by one member,
// until is zero, and since is the time of the statement. over is set if the waypoint is no longer loaded, and until is the time
// from which this host's connections return to it.
type load struct {
	since, until time.Time
	gives        float64
	over         bool
}

// loads holds the statements of waypoints that are loaded or used up by one member.
type loads map[via]load

// set records a statement. It reports whether it ended the waypoint's load. Connections then return after returns.
func (l loads) set(v via, until time.Time, gives float64, returns time.Duration, now time.Time) (over bool) {
	before := l[v]
	if !until.After(now) {
		switch loaded := before.until.After(now); {
		case loaded && !before.over:
			l[v] = load{before.since, now.Add(returns), gives, true}
		case loaded:
			l[v] = load{before.since, before.until, gives, true}
		case gives > 0:
			l[v] = load{since: now, gives: gives}
		default:
			delete(l, v)
		}
		return !before.until.IsZero()
	}
	if most := now.Add(loadedAtMost); until.After(most) {
		until = most
	}
	if !before.until.After(now) {
		before.since = now
	}
	l[v] = load{before.since, until, gives, false}
	return false
}

// of returns the time until which the waypoint is loaded, or zero.
func (l loads) of(v via, now time.Time) time.Time {
	if is := l[v]; is.until.After(now) {
		return is.until
	}
	return time.Time{}
}

// leavesOneIn returns n such that one connection in n leaves at a decision now.
func (l load) leavesOneIn(now time.Time) uint64 {
	return max(uint64(leavesOneIn)>>min(now.Sub(l.since)/leavesTwice, 10), leavesAtMost)
}

func (l loads) forget(now time.Time) {
	for v, is := range l {
		switch {
		case is.until.IsZero() || is.until.After(now):
		case is.over && is.gives > 0: // it is used up by one member
			l[v] = load{since: is.until, gives: is.gives}
		default:
			delete(l, v)
		}
	}
}

// waypointLoaded handles a waypoint's statement about its load. When the load ends, connections that are short of a
// detour may use the waypoint.
func (m *Manager) waypointLoaded(v via, until time.Time, gives float64, now time.Time) {
	returns := time.Duration(m.views.draw(Token(now.Unix()), v.waypoint) % uint64(returnsWithin))
	m.woken = m.detours.loads.set(v, until, gives, returns, now) || m.woken
}

// drawToLeave decides at random whether the connection leaves a loaded waypoint. It reports whether a detour is to be
// exchanged.
func (w weighing) drawToLeave() (leaves bool) {
	if len(w.detours.loads) == 0 || w.now.Sub(w.attention.drew) < drawsEvery {
		return false
	}
	w.attention.drew = w.now
	if w.exchangedLately() {
		return false
	}
	for _, s := range w.subflows {
		if s.detour == nil || !w.ours(s) || s.setAside() || w.now.Sub(s.since) < staysLeast || w.now.Sub(s.moved) >= drawsEvery {
			continue
		}
		if is := w.detours.loads[viaOf(s.detour)]; !is.until.After(w.now) || is.over || !w.hasUnloaded(s) {
			continue
		}
		if w.views.drawAt(w.token, s.detour.Waypoint, w.now)%w.detours.loads[viaOf(s.detour)].leavesOneIn(w.now) == 0 {
			w.planExchange(s, SubflowReason{Cause: CauseLoaded})
			return true
		}
	}
	return false
}

// exchangedLately reports whether the connection made an exchange so recently that it makes no other.
func (w weighing) exchangedLately() bool {
	return w.exchanges > 0 && w.now.Sub(w.exchanged) < doubled(staysAfter, int(w.exchanges)-1, staysMost)
}

// hasUnloaded reports whether the connection may take a detour in place of s through another waypoint, which is not
// loaded.
func (w weighing) hasUnloaded(s *subflow) bool {
	for o := range w.detours.leading(w.server) {
		remote, ok := w.detours.target(w.conn, &o.Detour)
		if !ok || o.Waypoint == s.detour.Waypoint || w.taken(&o.Detour, remote) || !w.detours.loads.of(viaOf(&o.Detour), w.now).IsZero() {
			continue
		}
		if r, known := w.detours.history.of(o.Waypoint, w.server); known && r.isShunned(w.now) {
			continue
		}
		if gives := w.detours.loads[viaOf(&o.Detour)].gives; gives > 0 && gives < policy.SameFactor*w.gets(s) {
			continue // one member uses it up
		}
		if until, why := w.detours.rests(w.turn, o); !w.now.Before(until) && !why.Lasts() {
			return true
		}
	}
	return false
}

// drawAt returns a random number that differs from time to time.
func (vs *views) drawAt(token Token, waypoint string, now time.Time) uint64 {
	return mix(vs.draw(token, waypoint) ^ mix(uint64(now.UnixNano())))
}

// replaceCrowded marks detours that are to be exchanged as leaving, once the new detour is established. If none came
// in time, they stay.
func (t turn) replaceCrowded() {
	for _, s := range t.subflows {
		switch {
		case !s.isCrowded() || s.leaving:
		case t.has(func(x *subflow) bool {
			return x.detour != nil && t.ours(x) && !x.since.Before(s.crowdedAt()) && !x.isCrowded() && !x.isLossy() && x.stayed(t.now)
		}):
			s.leaving = true
		case t.now.Sub(s.crowdedAt()) >= exchangedIn && !t.has(func(x *subflow) bool { return !x.up && x.detour != nil }):
			s.crowded = 0
		}
	}
}

// leaveCrowded marks detours that are to be exchanged as leaving, if the server accepts no more subflows. It reports
// whether there were any.
func (t turn) leaveCrowded() (found bool) {
	for _, s := range t.subflows {
		if s.isCrowded() && s.up && !s.leaving {
			s.leaving, found = true, true
		}
	}
	return found
}
