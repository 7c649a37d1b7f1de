package path

import (
	"time"
)

// This file handles waypoints that say that they are loaded, for some time.
//
//   - New subflows go through other waypoints, if there are any.
//   - Connections with traffic leave a loaded waypoint for another, but not all at once, as the
//     other would be loaded next: each draws lots while the waypoint is loaded. A waypoint that one member uses up is not loaded,
//     but says what one more would get. Those who have about as much do not leave for it.
//
// A waypoint that lies can only keep its clients away, and for loadedAtMost at a time.

const (
	// loadedAtMost bounds the time for which a waypoint is believed to be loaded.
	loadedAtMost = time.Minute
	// While a waypoint is loaded, a connection draws lots every drawsEvery. At first one in leavesOneIn leaves. While it
	// stays loaded, the chance doubles every leavesTwice, up to one in leavesAtMost. A connection that has just taken the
	// detour stays for staysLeast.
	drawsEvery   = time.Second
	leavesOneIn  = 20
	leavesTwice  = 8 * time.Second
	leavesAtMost = 10
	staysLeast   = 3 * time.Second
	// After an exchange a connection does not draw for staysAfter, which doubles each time.
	staysAfter = 8 * time.Second
	staysMost  = 10 * time.Minute
	// exchangedIn is the time in which another detour must have come.
	exchangedIn = 5 * time.Second
)

// load is a waypoint's load, by its own report: the time for which it has been loaded without a break, and the rate that one more
// member would get, in bits a second. until is zero if it is not loaded, but used up by one member; since is when it said so.
type load struct {
	since, until time.Time
	gives        float64
}

// loads holds which waypoints are loaded, or used up by one member.
type loads map[via]load

// set records what a waypoint says. It reports whether it is loaded no more.
func (l loads) set(v via, until time.Time, gives float64, now time.Time) (over bool) {
	before := l[v]
	if !until.After(now) {
		if delete(l, v); gives > 0 {
			l[v] = load{since: now, gives: gives}
		}
		return !before.until.IsZero()
	}
	if most := now.Add(loadedAtMost); until.After(most) {
		until = most
	}
	if !before.until.After(now) {
		before.since = now
	}
	l[v] = load{before.since, until, gives}
	return false
}

// of returns until when the waypoint is loaded, or zero.
func (l loads) of(v via, now time.Time) time.Time {
	if is := l[v]; is.until.After(now) {
		return is.until
	}
	return time.Time{}
}

// leavesOneIn returns of how many connections one leaves now.
func (l load) leavesOneIn(now time.Time) uint64 {
	return max(uint64(leavesOneIn)>>min(now.Sub(l.since)/leavesTwice, 10), leavesAtMost)
}

func (l loads) forget(now time.Time) {
	for v, is := range l {
		if !is.until.IsZero() && !is.until.After(now) {
			delete(l, v)
		}
	}
}

// waypointLoaded handles what a waypoint says about its load. Connections that were short because of it may use it
// when it is over.
func (m *Manager) waypointLoaded(v via, until time.Time, gives float64, now time.Time) {
	m.woken = m.detours.loads.set(v, until, gives, now) || m.woken
}

// drawToLeave has the connection draw lots about its detours through loaded waypoints. It reports whether one is to be
// exchanged for another.
func (m *Manager) drawToLeave(t turn) (leaves bool) {
	if len(m.detours.loads) == 0 || t.now.Sub(t.attention.drew) < drawsEvery {
		return false
	}
	t.attention.drew = t.now
	if t.exchangedLately() {
		return false
	}
	for _, s := range t.subflows {
		if s.detour == nil || !t.ours(s) || s.setAside() || t.now.Sub(s.since) < staysLeast || t.now.Sub(s.moved) >= drawsEvery {
			continue
		}
		if m.detours.loads.of(s.detour.via(), t.now).IsZero() || !m.hasUnloaded(t, s) {
			continue
		}
		if m.views.drawAt(t.token, s.detour.Waypoint, t.now)%m.detours.loads[s.detour.via()].leavesOneIn(t.now) == 0 {
			s.crowded, t.exchanged = t.now, t.now
			t.exchanges++
			return true
		}
	}
	return false
}

// exchangedLately reports whether the connection exchanged a detour so lately that it stays with what it has.
func (t turn) exchangedLately() bool {
	return t.exchanges > 0 && t.now.Sub(t.exchanged) < min(staysAfter<<min(t.exchanges-1, 10), staysMost)
}

// hasUnloaded reports whether another waypoint, which is not loaded, has a detour that the connection may take in place
// of s.
func (m *Manager) hasUnloaded(t turn, s *subflow) bool {
	for o := range m.detours.leading(t.server) {
		remote, ok := m.detours.target(t.conn, &o.Detour)
		if !ok || o.Waypoint == s.detour.Waypoint || t.taken(&o.Detour, remote) || !m.detours.loads.of(o.via(), t.now).IsZero() {
			continue
		}
		if r, known := m.detours.history.of(o.Waypoint, t.server); known && r.isShunned(t.now) {
			continue
		}
		if gives := m.detours.loads[o.via()].gives; gives > 0 && gives < sameFactor*t.gets(s) {
			continue // one member uses it up
		}
		if until, why := m.detours.rests(t, o); !t.now.Before(until) && !why.lasts() {
			return true
		}
	}
	return false
}

// drawAt returns a number at random, another one each time.
func (vs *views) drawAt(token Token, waypoint string, now time.Time) uint64 {
	return mix(vs.draw(token, waypoint) ^ mix(uint64(now.UnixNano())))
}

// replaceCrowded marks detours that are to be exchanged as leaving, once the one in their place is there. Where none
// came, they stay.
func (t turn) replaceCrowded() {
	for _, s := range t.subflows {
		switch {
		case s.crowded.IsZero() || s.leaving:
		case t.has(func(x *subflow) bool {
			return x.detour != nil && t.ours(x) && !x.since.Before(s.crowded) && x.crowded.IsZero() && !x.isLossy() && x.stayed(t.now)
		}):
			s.leaving = true
		case t.now.Sub(s.crowded) >= exchangedIn && !t.has(func(x *subflow) bool { return !x.up && x.detour != nil }):
			s.crowded = time.Time{}
		}
	}
}

// leaveCrowded marks detours that are to be exchanged as leaving, where the server accepts no more. It reports whether
// there were any.
func (t turn) leaveCrowded() (found bool) {
	for _, s := range t.subflows {
		if !s.crowded.IsZero() && s.up && !s.leaving {
			s.leaving, found = true, true
		}
	}
	return found
}
