package path

import (
	"maps"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/path/budget"
	"github.com/detour-collective/dcol/internal/path/claim"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// detours holds all that is known of detours: which are on offer, what was measured, and what speaks against using
// them. Failures count towards one server (retry.go). The results of an in-band detour's first joins count on one
// network (trial.go). Suspensions follow harm to connections (suspension.go, blackhole.go).
type detours struct {
	offers
	failures    failures
	trials      trials
	suspensions suspensions
	silences    silences
	history     history
	steering    Steering
	sessions    sessions
	line        line
	loads       loads
	spending    spending
	budget      *budget.Book
	claims      *claim.Book
	sharings    sharings
	together    together
	exploration exploration
	// disappointments has the waypoints that gave less than they stated.
	disappointments disappointments
	trying          map[netip.Prefix]hold
	counts          map[string]int // reused by countFailures
}

// offer puts a detour on offer. It returns nil if the detour is on offer already.
func (k *detours) offer(d Detour, now time.Time) *offered {
	delete(k.lost, viaOf(&d))
	if old := k.byID[d.ID]; old != nil {
		if old.Detour == d {
			return nil
		}
		k.drop(d.ID, now)
	}
	o := &offered{Detour: d, since: now, trial: k.trials.of(&d)}
	k.byID[d.ID] = o
	if d.Server.IsValid() {
		k.specific[d.Server] = append(k.specific[d.Server], o)
	} else {
		k.general = append(k.general, o)
		k.failures.forgive(d.ID)
	}
	return o
}

// rests returns the time until which the connection does not use a detour, and why. If the rest lasts, the time is
// zero.
func (k *detours) rests(t turn, o *offered) (until time.Time, why policy.Rest) {
	switch {
	case !o.Kind.Own() && !k.steering.Allows(o.Waypoint):
		return until, policy.Rest{Cause: policy.RestsUnwanted}
	case o.Local.IsValid() && !t.host.has(o.Local):
		return until, policy.Rest{Cause: policy.RestsNoAddress}
	}
	if over, full := k.spending.over(t.rule, o.Waypoint, t.now); over {
		return full, policy.Rest{Cause: policy.RestsOverQuota}
	}
	if k.spending.limitOf(t.rule, o.Waypoint, t.now).closes() {
		return k.spending.renews(t.rule), policy.Rest{Cause: policy.RestsLimited}
	}
	if s := k.budgetOf(t, &o.Detour); s.Level() == budget.Spent {
		return s.Renews, policy.Rest{Cause: policy.RestsSpent, Err: SpentError{s}}
	}
	for _, e := range t.ended {
		if e.detour != nil && e.detour.ID == o.ID {
			return e.judge, policy.Rest{Cause: policy.RestsFailed, Err: e.err}
		}
	}
	if o.trial != nil {
		until, why = o.trial.restsUntil(t.server, t.now)
	}
	if r := k.failures.of(o.ID, t.server); r.at.After(until) {
		until, why = r.at, policy.Rest{Cause: policy.RestsFailed, Err: r.err}
	}
	b, ok, attempted := k.suspended(&o.Detour, t.server, t.now)
	if ok && b.until.After(until) {
		until, why = b.until, policy.Rest{Cause: policy.RestsBlamed, Since: b.since, Err: b.fault.err, LastResort: b.lastResort(t.isCutOff())}
	}
	if attempted.After(until) && !t.isCutOff() {
		until, why = attempted, policy.Rest{Cause: policy.RestsTried}
	}
	return until, why
}

// failed records that a subflow over a detour ended while its connection lives on. It reports whether another detour
// became usable because of that.
func (k *detours) failed(t turn, e *ended) (wake bool) {
	k.failures.add(e.detour, t.server, e.err, e.since, e.lived, t.now)
	// Only joins on this network that did not come up show more than that this route failed.
	if e.up || e.unsent || e.network != t.host.network || !t.host.hasSource(e.subflow) {
		return false
	}
	v := viaOf(e.detour)
	if e.detour.Kind == Mapped {
		return k.trials.exonerate(v, t.server, t.now)
	}
	_, lost := k.lost[v]
	if trial := k.trials[e.detour.ID]; trial != nil && !lost && !k.failures.of(e.detour.ID, t.server).refused {
		trial.failed(t.server, e.err, t.now)
	}
	return false
}

// countFailures counts the recent failures towards server by waypoint. The map is valid until the
// next call.
func (k *detours) countFailures(server netip.AddrPort, now time.Time) map[string]int {
	clear(k.counts)
	if len(k.failures) == 0 {
		return k.counts
	}
	for o := range k.leading(server) {
		if r := k.failures.of(o.ID, server); r.failures > 0 && !r.over(now) {
			k.counts[o.Waypoint] += r.failures
		}
	}
	return k.counts
}

// failuresUntil returns the time at which a waypoint's recent failures towards server are forgotten.
func (k *detours) failuresUntil(waypoint string, server netip.AddrPort, now time.Time) (until time.Time) {
	for o := range k.leading(server) {
		if r := k.failures.of(o.ID, server); o.Waypoint == waypoint && r.failures > 0 && !r.over(now) {
			until = later(until, r.at.Add(longestBackoff))
		}
	}
	return until
}

// serverRefused handles a waypoint's refusal to forward to a server. No detour of the waypoint is tried for that
// server until the waypoint was asked again. It reports whether a detour that rested because of this server is usable
// for others.
func (k *detours) serverRefused(ev ServerRefused, now time.Time) (wake bool) {
	v := via{ev.Waypoint, ev.Addr}
	for _, o := range k.general {
		if viaOf(&o.Detour) == v {
			k.failures[route{o.ID, ev.Server}] = failure{retry{1, now.Add(ev.For + longestBackoff)}, ev.Err, true}
			wake = o.trial != nil && o.trial.refused(ev.Server, now) || wake
		}
	}
	return wake
}

// waypointLost records when a waypoint ceased to answer.
func (k *detours) waypointLost(v via, now time.Time) {
	k.unheard[v] = true
	if _, ok := k.lost[v]; !ok {
		k.lost[v] = now
		k.trials.waypointLost(v, now)
	}
}

// switched forgives failures after this host left or joined a network: the network, or the lack of one, may have caused them.
func (k *detours) switched() {
	clear(k.failures)
	k.trials.restart()
	k.suspensions.forgiveSilence()
	clear(k.silences)
}

// moved forgets what was measured on another network.
func (k *detours) moved() {
	clear(k.history)
	k.sessions, k.line = newSessions(), line{}
	clear(k.loads)
	clear(k.sharings)
	clear(k.disappointments)
	clear(k.trying)
}

// forget drops what has expired.
func (k *detours) forget(now time.Time) {
	k.failures.forget(now)
	k.trials.forget(now)
	k.suspensions.forget(now)
	k.silences.forget(now)
	k.history.forget(now)
	k.sharings.forget(now)
	k.disappointments.forget(now)
	k.loads.forget(now)
	k.line.forget(now)
	maps.DeleteFunc(k.trying, func(_ netip.Prefix, h hold) bool { return !within(h.at, now, holdsFor) })
}
