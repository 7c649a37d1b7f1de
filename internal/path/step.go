package path

import (
	"net/netip"
	"slices"
	"time"
)

// step brings one connection up to date. It runs at the end of every event and may be repeated
// without harm.
func (m *Manager) step(t turn) {
	m.settleEnds(t)
	t.noticeLoss()
	if t.managed() {
		m.giveUpJoins(t)
		m.judge(t)
		t.promote()
		t.probeHandshake()
		t.lookNow()
		m.measureYoung(t)
		m.tryAgain(t)
		m.restrict(t)
		m.arrange(t)
		m.keepBudgets(t)
		t.keepCarrying()
		t.tellAgain()
		if !t.closing() {
			t.dropOrphans()
			t.replaceLossy()
			m.weighing(t).follow()
			t.replaceCrowded()
			t.refresh()
			m.trying(t).endStaleExtra()
			m.endSurplus(t)
			t.endLeaving()
			t.sendRemoveAddr()
			m.open(t)
		}
	}
	m.conns.due.Set(&t.due, m.nextStep(t))
}

// turn is one connection's turn to decide at the time of an event. Its methods use only the connection's own state
// and the host's addresses, and append to the actions. Methods that need detours or other connections belong to
// weighing or, if they change what the Manager owns, to the Manager.
type turn struct {
	*conn
	now  time.Time
	host *hostAddrs
	out  *actions
}

// startsFrom records the source address of a subflow that the kernel reports.
func (t turn) startsFrom(local netip.AddrPort) {
	if t.host.startsFrom(local) {
		t.out.do(ReadAddrs{})
	}
}

// giveUpJoins aborts the joins that were not answered in time. If the connection itself may have ended, they are judged
// only if it turns out to exist (vanish.go).
func (m *Manager) giveUpJoins(t turn) {
	judge := t.now
	if m.samples.ending(t.conn, t.now) {
		judge = t.now.Add(endsWithin)
	}
	for _, s := range slices.Clone(t.subflows) {
		if !s.up && !t.now.Before(s.timeout()) {
			t.out.do(DestroySubflow{Token: t.token, Local: s.local, Remote: s.remote})
			t.end(ended{subflow: s, err: errNoAnswer, judge: judge})
		}
	}
}

// end removes a subflow that ended by itself. It is judged later (judge.go).
func (t turn) end(e ended) {
	t.remove(e.subflow)
	if !t.managed() {
		return
	}
	e.adrift = t.host.perhapsLacked(e.subflow, t.now)
	switch {
	case e.up:
		e.lived = t.now.Sub(e.since)
	case e.err == nil:
		e.err = errNotJoined
	}
	if !e.full() {
		t.dropped = t.now
	}
	t.ended = append(t.ended, e)
}

// promote gives full priority to the subflows that waited for the server's first data.
func (t turn) promote() {
	if !t.open() {
		return
	}
	for _, s := range t.subflows {
		if s.waits() {
			t.setBackup(s, false)
		}
	}
}

// probeHandshake requests samples of the direct path while a TLS connection's detours wait, to learn when the
// server's first data has arrived. The samples are frequent at first, then fewer and fewer.
func (t turn) probeHandshake() {
	if !t.waits() || t.now.Before(t.nextProbe) {
		return
	}
	for _, s := range t.subflows {
		if s.direct && s.up {
			t.out.do(Measure{t.token, s.local, s.remote})
		}
	}
	t.nextProbe = t.now.Add(min(max(t.now.Sub(t.since)/2, 4*time.Millisecond), 2*time.Second))
}

// nextStep returns the next time at which step has something to do without another event, or zero
// if there is none.
func (m *Manager) nextStep(t turn) (next time.Time) {
	at := func(then time.Time) {
		if then.After(t.now) && (next.IsZero() || then.Before(next)) {
			next = then
		}
	}
	if !t.managed() {
		return next
	}
	for _, e := range t.ended {
		at(e.judge)
	}
	for _, s := range t.subflows {
		if !s.up {
			at(s.timeout())
		}
		at(t.tellAgainAt(s))
		if m.weighing(t).mayBeFar(s) {
			at(s.fullyUp())
		}
		if s.isCrowded() {
			at(s.crowdedAt().Add(exchangedIn))
		}
		if s.isLossy() {
			at(s.aside.until)
		}
		if s.empties {
			at(s.at.Add(emptiesProbed))
		}
		if s.isLossy() || s.isSpent() {
			at(s.aside.since.Add(drains))
		}
	}
	if t.waits() {
		at(t.nextProbe)
	}
	if t.attention != nil {
		at(t.attention.look)
	}
	if len(t.removals.lost) > 0 || t.leaving() || t.settling() || t.has((*subflow).isCrowded) {
		for _, s := range t.subflows {
			at(s.since.Add(s.stays()))
		}
	}
	for _, l := range t.removals.lost {
		at(l.sent.Add(removeAddrGap))
		at(l.copyAt())
	}
	if t.removals.pending() {
		at(t.removals.last.Add(removeAddrGap))
	}
	if t.growth != nil {
		at(t.growth.latest)
	}
	if latest, ok := t.extraEnds(); ok {
		at(latest)
	}
	if t.surplus() > 0 {
		at(t.now.Add(drains))
	}
	at(m.quotaFull(t))
	at(t.room.at)
	at(t.direct.at)
	if t.follows > 0 {
		at(t.since.Add(t.follows))
	}
	if t.wants() {
		at(t.ask.at)
	}
	if t.capped {
		at(m.places.limits[t.server.Addr()].until)
	}
	if t.isShort() {
		at(t.short.Add(offersCome))
	}
	if steering := &m.detours.steering; t.isShort() || len(steering.Use) > 0 {
		for o := range m.detours.leading(t.server) {
			if !t.isShort() && !steering.wants(o.Waypoint) {
				continue
			}
			until, why := m.detours.rests(t, o)
			at(until)
			at(why.LastResort)
			at(m.detours.loads.of(viaOf(&o.Detour), t.now))
		}
	}
	return next
}
