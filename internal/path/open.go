package path

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/path/policy"
)

const (
	// offersCome bounds the time that a waypoint takes to answer a request for a mapping.
	offersCome = time.Second
	// idleAfter is the time without data after which a connection does not try detours that were silent.
	idleAfter = 15 * time.Second
)

// This file opens the detours of a connection: it builds the policy's view and carries out its
// plan.

// open requests the subflows that the connection lacks, unless the server certainly has no place for them.
func (m *Manager) open(t turn) {
	if t.halfClosed || t.abandoned(m.cfg.Inactivity) {
		t.asks, t.capped = false, false
		t.lacks(false)
		return
	}
	if t.now.Before(t.room.at) || t.settling() || t.announcingRemoval() {
		return
	}
	m.keepDirect(t)
	if !t.moving() {
		m.openDetours(t)
	}
}

// openDetours opens the detours that the policy chooses, and requests mappings if needed.
func (m *Manager) openDetours(t turn) {
	from, ok := t.host.source(t.conn)
	if !ok || t.denied() {
		t.lacks(false)
		return
	}
	plan := m.plan(t, m.views.of(t, &m.detours))
	t.delayed(plan.Delayed, plan.At)
	for _, choice := range plan.Open {
		o := m.detours.byID[choice.ID]
		explores := choice.Why.Explored || choice.Why.Silent && !t.isCutOff()
		if explores {
			m.detours.exploration.begin(t.now)
		}
		t.take(o, from, choice, explores, m.asideAtFirst(t, &o.Detour, choice), &m.reasons)
		t.took(choice.Waypoint)
		m.detours.suspensions.attempt(&o.Detour, t.server, t.now)
		t.tried = t.tried || choice.Why.Explored
	}
	if plan.Replace && (t.leaveLossy() || t.leaveCrowded()) {
		m.conns.stepAgain(t.token)
	}
	m.places.askingForMore(t)
	t.capped = plan.Capped
	plan.Ask = plan.Ask && !m.allSpent(t) && !t.tunnelled
	t.lacks(plan.Short)
	t.asks = plan.Short && plan.Ask
	if (plan.Ask || t.wants()) && !t.now.Before(t.ask.at) {
		t.ask.failed(0, t.now)
		t.out.do(RequestDetours{t.server})
	}
}

// plan asks the policy which detours to open. If the number of subflows that the server accepts was seen through a
// single waypoint, the policy first plans without that waypoint and without the number, to test it. If that opens
// nothing, the number is believed.
func (m *Manager) plan(t turn, v policy.View) policy.Plan {
	room, known := m.places.room(t)
	if others, ok := m.places.withoutWitness(t, v.Usable); ok {
		disproving := v
		disproving.Usable = others
		if plan := t.rule.plan(disproving); len(plan.Open) > 0 {
			return plan
		}
	}
	v.Room, v.RoomKnown = room, known
	return t.rule.plan(v)
}

// views builds the policy's views. It reuses their slices.
type views struct {
	byWorth bool
	seed    uint64
	inUse   []policy.InUse
	// subflows holds the subflows that inUse describes.
	subflows []*subflow
	usable   []policy.Usable
	resting  []policy.Resting
}

// of returns the policy's view of a connection. It is valid until the next call.
func (vs *views) of(t turn, k *detours) policy.View {
	v := policy.View{
		InUse: vs.inUse[:0], Usable: vs.usable[:0], Resting: vs.resting[:0],
		Traffic: policy.Traffic{Now: t.now, Since: t.since, Bytes: t.carried},
	}
	if t.awaitsExtra() {
		v.Extra = 1
	}
	if g := t.growth; g != nil {
		v.Traffic.Slow, v.Traffic.Far = g.slow, g.far
	}
	vs.subflows = vs.subflows[:0]
	for _, s := range t.subflows {
		if !t.host.hasSource(s) || s.leaving {
			continue
		}
		u := policy.InUse{
			Direct: s.direct, Aside: s.detour != nil && (s.isLossy() || s.isSpent() || s.isCrowded()),
			Up: s.up, Stuck: t.stuck(s) || k.isSpent(t, s), Standby: s.standby, Uplink: k.uplinkOf(s),
		}
		if s.detour != nil {
			u.Kind, u.Waypoint = s.detour.Kind, s.detour.Waypoint
		}
		v.InUse, vs.subflows = append(v.InUse, u), append(vs.subflows, s)
	}
	failures := k.countFailures(t.server, t.now)
	for o := range k.leading(t.server) {
		remote, ok := k.target(t.conn, &o.Detour)
		if !ok || t.taken(&o.Detour, remote) || o.Kind == Uplink && o.Local == t.local.Addr() && !t.directElsewhere() {
			continue
		}
		until, why := k.rests(t, o)
		rests := t.now.Before(until) || why.Lasts()
		if rests && !k.allowsLastResort(t, why) {
			v.Resting = append(v.Resting, policy.Resting{Kind: o.Kind, Waypoint: o.Waypoint, Rest: why})
		} else {
			v.Usable = append(v.Usable, policy.Usable{
				Detour: &o.Detour, Since: o.since, Unproven: o.unproven(), Failures: failures[o.Waypoint],
				Wanted: k.steering.wants(o.Waypoint), Unheard: k.unheard[viaOf(&o.Detour)], LastResort: rests, Err: why.Err, Prospect: vs.prospect(t, k, o),
			})
		}
	}
	v.Resting = append(v.Resting, k.unready...)
	vs.inUse, vs.usable, vs.resting = v.InUse, v.Usable, v.Resting
	return v
}

// lacks records whether the connection is short of a detour.
func (t turn) lacks(detour bool) {
	switch {
	case !detour:
		t.short = time.Time{}
	case !t.isShort():
		t.short = t.now
	}
}

// allowsLastResort reports whether the connection may try a detour that rests. It first waits offersCome, so that
// waypoints can offer another. Otherwise a detour that carries nothing could take the place of one that works. If the
// connection has a path that works, the try counts as exploring, and must show something, so the connection must not
// be idle.
func (k *detours) allowsLastResort(t turn, why policy.Rest) bool {
	return why.IsLastResort(t.now) && t.isShort() && !t.now.Before(t.short.Add(offersCome)) &&
		(!t.isIdle() && k.exploration.may(t.now) || t.isCutOff())
}

// isIdle reports whether the connection has moved no data for idleAfter.
func (t turn) isIdle() bool { return t.now.Sub(t.moved) >= idleAfter }

// isCutOff reports whether nothing gets through on any path of the connection, as far as is known.
func (t turn) isCutOff() bool {
	return !t.has(func(s *subflow) bool { return t.isLive(s) && s.backoff < stuckBackoff && !s.distrusted() })
}

// taken reports whether a subflow already uses the path that d would use to remote.
func (t turn) taken(d *Detour, remote netip.AddrPort) bool {
	return t.has(func(s *subflow) bool {
		return t.host.hasSource(s) && !s.leaving && (s.detour != nil && s.detour.ID == d.ID || d.Kind != Port &&
			s.remote == remote && (!d.Local.IsValid() || d.Local == s.local.Addr()))
	})
}

// asideAtFirst returns why a subflow over a detour begins set aside, or nil if it does not.
func (m *Manager) asideAtFirst(t turn, d *Detour, choice policy.Choice) *aside {
	switch {
	case choice.Aside:
		return &aside{cause: lossy, since: t.now, until: choice.Why.Shunned, why: Verdict{Loss: choice.Why.Loss}}
	case !choice.Standby && m.expectsMessages(t) && !m.weighing(t).wasQuicker(d):
		return &aside{cause: standsBy, since: t.now}
	case !choice.Standby && m.beginsBehindLine(t, d):
		return &aside{cause: behindLine, since: t.now}
	case !choice.Standby:
		if n, ok := m.addedNothing(t, d); ok {
			return &aside{cause: t.idleCause(), since: t.now, until: n.until, why: n.why}
		}
		if m.joinsBehindLine(t, d) {
			return t.tryouts.omissions.behind(t.now)
		}
	}
	return nil
}

// take requests a subflow over a detour on offer. from is the source address if the detour has none. explores is set
// if the subflow counts as exploring. begins is the reason why it begins set aside, or nil.
func (t turn) take(o *offered, from netip.Addr, choice policy.Choice, explores bool, begins *aside, reasons *reasons) {
	remote, _ := o.Target(t.server)
	why := chosen{Reason: choice.Why, instead: t.fledFrom}
	t.fledFrom = nil
	if o.Local.IsValid() {
		from = o.Local
	}
	s := &subflow{
		detour: &o.Detour, why: reasons.shared(&why), try: o.unproven(), counted: explores, standby: choice.Standby,
		backup: !t.open() && !o.Kind.Own() || begins != nil || choice.Standby,
		local:  netip.AddrPortFrom(from, 0), remote: remote, aside: begins,
	}
	t.create(s)
	if o.unproven() {
		o.trial.begin(t.server, t.now)
	}
}

// keepDirect reopens the direct path after it failed or after this host's address changed.
func (m *Manager) keepDirect(t turn) {
	if t.denied() || t.now.Before(t.direct.at) || t.has(func(s *subflow) bool { return s.direct && !s.leaving && t.host.hasSource(s) }) {
		return
	}
	if t.uplinkIsDirect() {
		return
	}
	from, ok := t.host.source(t.conn)
	if t.tunnelled {
		from, ok = m.detours.sourceInTunnel(t)
	}
	if ok {
		t.create(&subflow{direct: true, local: netip.AddrPortFrom(from, 0), remote: t.server})
	}
}

// sourceInTunnel returns the source of the direct path of a connection that began in a tunnel: the same address, or
// else the address of the tunnel that now leads to the server's host. ok is false if there is neither.
func (of *offers) sourceInTunnel(t turn) (from netip.Addr, ok bool) {
	if t.host.owns(t.local.Addr()) {
		return t.local.Addr(), true
	}
	for _, o := range of.general {
		if o.Kind == WireGuard && of.endsAt(&o.Detour, t.server.Addr()) && o.Local.Is4() == t.server.Addr().Is4() && t.host.has(o.Local) {
			return o.Local, true
		}
	}
	return netip.Addr{}, false
}

// moving reports whether the host's address changed and a new direct subflow is joining. Subflows from the old
// address still take up the server's few places. The direct subflow needs a place first, because REMOVE_ADDRs for the
// others are sent over it. So no detour is opened meanwhile.
func (t turn) moving() bool {
	return t.has(func(s *subflow) bool { return s.direct && !s.up }) &&
		(t.removals.pending() || t.has(func(s *subflow) bool {
			return !t.host.hasSource(s) && (s.detour == nil || !s.detour.Local.IsValid())
		}))
}

// create requests a subflow.
func (t turn) create(s *subflow) {
	id, ok := t.newID()
	if !ok {
		return
	}
	s.id, s.since, s.network = id, t.now, t.host.network
	t.subflows = append(t.subflows, s)
	a := CreateSubflow{
		Token: t.token, LocalID: id, Local: s.local.Addr(), Remote: s.remote, Backup: s.backup,
		Direct: s.direct, Server: t.server,
	}
	if s.detour != nil {
		a.Kind, a.Waypoint = s.detour.Kind, s.detour.Waypoint
	}
	t.out.do(a)
}
