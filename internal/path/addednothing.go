package path

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// This file makes a detour begin as a backup if it has lately added nothing to bulk traffic towards the same network of
// servers (omit.go). So not every connection pays for finding that out. When the time for another comparison comes, the
// next connection begins with the detour again, or the present one lets it carry.

const (
	// addedAfter is the age from which a connection should get what earlier ones got without the detour.
	addedAfter = 4 * time.Second
	// addedShare is the share of it that it must get. Otherwise the detour carries again.
	addedShare = 0.8
)

// nothing is the part of a record that holds the results of omissions.
type nothing struct {
	until time.Time // connections begin without the detour until then
	times int       // number of results in a row according to which it added nothing
	why   Verdict   // the last of them
}

// lasts reports whether connections begin without the detour. They do not if that would last longer than it ever
// should, because then the clock was set back.
func (n *nothing) lasts(now time.Time) bool {
	return now.Before(n.until) && n.until.Sub(now) <= nothingTime(n.times-1)
}

// nothingTime returns the longest time for which a detour stands by that stood by this many times before.
func nothingTime(times int) time.Duration {
	return doubled(standsFor, times, challengeGapMost)
}

// addedNothing records that bulk traffic got as much without a waypoint. It returns the time until which the waypoint's
// detours stand by: stands, doubled for each time in a row.
func (h history) addedNothing(waypoint string, server netip.AddrPort, why Verdict, stands time.Duration, now time.Time) time.Time {
	key := trailOf(waypoint, server)
	r, ok := h[key]
	if !ok { // the record was dropped, because there are too many
		return now.Add(stands)
	}
	n := &r.nothing
	if !n.lasts(now) { // else another connection has just found it out
		if !within(n.until, now, trustsFor) {
			n.times = 0
		}
		n.until = now.Add(doubled(stands, n.times, challengeGapMost))
		n.times++
	}
	n.why = why
	h[key] = r
	return n.until
}

// added records that bulk traffic gets less without a waypoint.
func (h history) added(waypoint string, server netip.AddrPort) {
	key := trailOf(waypoint, server)
	if r, ok := h[key]; ok {
		r.nothing = nothing{}
		h[key] = r
	}
}

// addedNothing returns why a detour begins as a backup, and until when, if it has lately added nothing to connections
// like this one.
func (m *Manager) addedNothing(t turn, d *Detour) (n nothing, ok bool) {
	r, _ := m.detours.history.of(d.Waypoint, t.server)
	if !m.beginsAside(t, d) && (t.tryouts == nil || !r.nothing.why.isBurden()) {
		return nothing{}, false
	}
	return r.nothing, r.nothing.lasts(t.now)
}

// beginsAside reports whether a detour may begin as a backup because of what was learned from other connections: its
// connection may have bulk traffic, and has a direct path that carries. One that existed before this Manager could not
// let the detour carry again.
func (m *Manager) beginsAside(t turn, d *Detour) bool {
	if _, ok := t.rule.Policy.(policy.Detours); !ok || !m.cfg.ByWorth || t.adopted || d.Kind.Own() || t.kind == measure.Messages || t.tryouts != nil {
		return false
	}
	return t.has(func(s *subflow) bool { return s.direct && s.up && !s.backup && s.backoff == 0 })
}

// beganAside reports whether the subflow is a backup since it began, because of what was learned from other connections.
func (s *subflow) beganAside() bool { return s.isAside(behindLine) || s.isAside(addedNothing) }

// idleCause returns why a detour that adds nothing stands by. Only a connection with tryouts compares what it gets with
// and without the detour.
func (t turn) idleCause() asideCause {
	if t.tryouts == nil {
		return addedNothing
	}
	return addsNothing
}

// omitFromStart makes detours that began as backups stand by as if the connection had omitted them.
func (t trying) omitFromStart() {
	o := &t.tryouts.omissions
	for _, s := range t.subflows {
		if s.isAside(addedNothing) {
			s.aside.cause = addsNothing
			o.got, o.guessed = addedShare*s.aside.why.Without, true
		}
	}
	if o.guessed {
		total, _ := t.conns.carriedTo(t.server)
		o.carriers, o.second = t.carriers(), reading{later(t.since.Add(addedAfter), t.now), total}
	}
}
