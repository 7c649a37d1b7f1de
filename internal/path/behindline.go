package path

import (
	"maps"
	"net/netip"
	"time"
)

// This file makes detours begin as backups for a while after this host's line was the bottleneck (line.go). They
// carry as soon as the direct path of their connection has another bottleneck.

const (
	// provenLasts is the time after the line was the bottleneck for which detours begin as backups. If the direct path
	// then has another bottleneck, detours to that network of servers carry from the beginning for as long.
	provenLasts = time.Hour
	// otherFirst is the time for which the direct path must have had another bottleneck for them to carry.
	otherFirst = 300 * time.Millisecond
	// otherAfter is that time if there was a sign of a full line.
	otherAfter = 2 * time.Second
	// signsWithin is the time without a sign after which they carry if the line is not used up.
	signsWithin = 2 * time.Second
	// signsLast is that time if there was a sign before.
	signsLast = 10 * time.Second
	// lineUsed is the share of the rate that the line carried from which it is used up.
	lineUsed = 0.85
	// mostElsewhere bounds the number of networks that are remembered.
	mostElsewhere = 1024
)

// beginsBehindLine reports whether a detour begins as a backup, because the line was the bottleneck recently.
func (m *Manager) beginsBehindLine(t turn, d *Detour) bool {
	l := &m.detours.line
	return m.beginsAside(t, d) && within(l.proven, t.now, provenLasts) && !within(l.elsewhere[prefixOf(t.server.Addr())], t.now, provenLasts)
}

// joinsBehindLine reports whether a detour stands by when it joins, because a comparison in its connection has shown that the
// line is the bottleneck, and the line still looks full. A full line may lose the packets of a session until it ends. When it is
// back, its detour joins again. A challenger is compared anew, and a waypoint with another line may help.
func (m *Manager) joinsBehindLine(t turn, d *Detour) bool {
	if t.tryouts == nil || t.tryouts.challenge != nil || d.Kind.Own() || m.detours.steering.wants(d.Waypoint) {
		return false
	}
	o := &t.tryouts.omissions
	if !t.now.Before(o.alone) || !o.line.lasts(t.now) || !t.has(func(s *subflow) bool { return s.direct && s.up && !s.backup && s.backoff == 0 }) {
		return false
	}
	return !m.detours.sessions.worth[viaOf(d)].counts(t.now) || m.detours.passesLine(d, t.now)
}

// behind returns why a detour stands by that joins then.
func (o *omissions) behind(now time.Time) *aside {
	return &aside{cause: addsNothing, since: now, until: o.alone, why: Verdict{With: o.before, Without: o.got, Line: true}}
}

// carryBesideLine lets the detours of a bulk connection carry that began as backups, if its direct path has another
// bottleneck than the line. line tells whether there is a sign of a full line. It reports whether there were any.
func (t trying) carryBesideLine(line bool) bool {
	if !t.has((*subflow).isBehindLine) {
		return false
	}
	l, x := &t.detours.line, &t.tryouts.omissions.line
	switch {
	case line:
		l.proven, x.free = t.now, time.Time{}
		return false
	case !t.isFree():
		x.free = time.Time{}
	case x.free.IsZero():
		x.free = t.now
	}
	patience, unseen := otherFirst, signsWithin
	if !x.last.IsZero() {
		patience, unseen = otherAfter, signsLast
	}
	other := !x.free.IsZero() && t.now.Sub(x.free) >= patience
	if !other && (t.usesLine() || t.now.Sub(later(t.tryouts.began, x.last)) < unseen) {
		return false
	}
	l.isNot(t.turn)
	return t.leaveLine()
}

func (s *subflow) isBehindLine() bool { return s.isAside(behindLine) }

// isFree reports whether the network limits the direct path while the line has no queue and is not used up. A line
// that has just become full has no queue for seconds.
func (t trying) isFree() bool {
	measured := t.detours.sessions.any(t.now, func(sessionWorth) bool { return true })
	if !measured || t.lineOf().least >= lineQueue {
		return false
	}
	return t.has(func(s *subflow) bool { return s.direct && t.presses(s) }) && !t.usesLine()
}

// usesLine reports whether this host's connections get about as much as when the line was the bottleneck.
func (w weighing) usesLine() bool {
	l := &w.detours.line
	if !l.carriedAt.Equal(w.now) { // else another connection has just asked
		l.carried, l.carriedAt = w.conns.carriedNow(w.now), w.now
	}
	return l.rate > 0 && l.carried >= lineUsed*l.rate
}

// leaveLine lets the detours carry that began as backups. It reports whether there were any.
func (t trying) leaveLine() bool { return t.carryAgainWhere((*subflow).isBehindLine) }

// isNot records that the line is not the bottleneck towards the network of the connection's server.
func (l *line) isNot(t turn) {
	if l.elsewhere == nil {
		l.elsewhere = make(map[netip.Prefix]time.Time)
	}
	if len(l.elsewhere) < mostElsewhere {
		l.elsewhere[prefixOf(t.server.Addr())] = t.now
	}
}

// forget drops old entries.
func (l *line) forget(now time.Time) {
	maps.DeleteFunc(l.elsewhere, func(_ netip.Prefix, at time.Time) bool { return !within(at, now, provenLasts) })
}
