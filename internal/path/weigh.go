package path

import (
	"math"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file decides which subflows of a connection carry, by what was measured while data moved. A subflow that does
// more harm than good is set aside: it becomes a backup, which costs nothing and is there when the others fail.
//
//   - Loss. A path that loses too much is set aside if another loses much less (lossy.go). It is tried again after a
//     minute, later less and less often.
//   - Messages. The path with the shortest wait carries messages, and the others stand by. Bulk traffic uses all
//     paths.
//   - Stalls. When the paths that carry become silent in the middle of traffic, those set aside carry again at once
//     (stall.go).
//
// The state of a connection that is sampled closely is in its attention. Of a connection that existed before this
// Manager, only the kind of traffic is found. Its subflows are left alone.

const (
	// betterFactor is the factor by which another path must be better to carry the messages.
	betterFactor = 1.25
	// betterBy is the time by which it must also be better.
	betterBy = 5 * time.Millisecond
	// betterFor is the time for which it must be better. A path that is better by more than muchBetter needs less.
	betterFor  = 2 * time.Second
	muchBetter = 2
	// betterLeast is the least time for which it must be better.
	betterLeast = 300 * time.Millisecond
	// mostDoublings bounds how often betterFor doubles. It doubles with each change while the path that carries is as
	// good as ever, so that messages do not follow paths that flap.
	mostDoublings = 6
	// lateLeast is the least time by which answers over a path count as late.
	lateLeast = 100 * time.Millisecond
	// lossDelay is the time that a lost packet adds to a message, beyond another round trip.
	lossDelay = 200 * time.Millisecond
	// lossExposed is the number of packets whose loss delays a message.
	lossExposed = 10
	// lossCounts is the factor by which losses count more when subflows are compared. The messages behind a lost one are
	// delayed as well, and users notice the latest.
	lossCounts = 2
	// muchLess is the factor by which a path must lose less than another to be preferred to it.
	muchLess = 2
	// learnsEvery is the time after which the history learns from a connection again.
	learnsEvery = time.Second
)

// attention is the state of a connection that is sampled closely.
type attention struct {
	traffic    measure.Traffic
	learned    time.Time     // when the history last learned from the connection
	challenger *subflow      // the subflow that has been better than carrier
	since      time.Time     // when it began to be better
	carrier    *subflow      // the subflow that carries messages
	took       time.Duration // a message's wait over carrier when that began to carry
	changes    int           // number of changes of carrier
	heard      time.Time     // when data last arrived
	look       time.Time     // when the connection is to be sampled before the next round; zero: it is not
	stalls     stalls
	peak       measure.Peak // the connection's highest rate
	kept       kept
	drew       time.Time // when a random number last decided about leaving a loaded waypoint

	comparedAt  time.Time // when the detours in use were last compared with others
	slowerSince time.Time // when one of them began to be much slower; zero: none is
	besides     *besides  // nil unless it has bulk traffic
}

// asideCause is the kind of reason for setting a subflow aside.
type asideCause uint8

const (
	// notAside means that the subflow is not set aside now.
	notAside asideCause = iota
	// lossy means that it lost too much (lossy.go).
	lossy
	// standsBy means that another subflow carries the messages.
	standsBy
	// spent means that a budget is used up (spend.go).
	spent
	// yieldsPlace means that it gives its place to a waypoint that is tried out (tryout.go).
	yieldsPlace
	// addsNothing means that it is omitted, or that the connections got as much without it (omit.go).
	addsNothing
	// behindLine means that it began as a backup, because this host's line was the bottleneck (behindline.go).
	behindLine
	// addedNothing means that it began as a backup, because earlier connections got as much without it (addednothing.go).
	addedNothing
	// surplus means that it is to end, because the operator lowered the number of subflows (surplus.go).
	surplus
)

// aside tells why a subflow is set aside. It is kept when the subflow carries again.
type aside struct {
	cause asideCause
	since time.Time
	until time.Time // when it is tried again, for lossy and addsNothing
	times int       // how often it was lossy
	tried time.Time // when it was last tried again
	why   Verdict

	missed missed // for the direct path
}

// setAside reports whether the subflow is set aside: a backup although it works.
func (s *subflow) setAside() bool { return s.aside != nil && s.aside.cause != notAside }

// isAside reports whether the subflow is set aside for this cause.
func (s *subflow) isAside(cause asideCause) bool { return s.aside != nil && s.aside.cause == cause }

// putAside sets a subflow aside.
func (t turn) putAside(s *subflow, cause asideCause, why Verdict) {
	if s.aside == nil {
		s.aside = &aside{}
	}
	s.aside.cause, s.aside.since, s.aside.why = cause, t.now, why
	t.setBackup(s, true)
}

// weigh decides about a connection that was just sampled closely.
func (m *Manager) weigh(t turn) {
	if !m.cfg.ByWorth || !t.open() || t.closing() {
		return
	}
	moment := t.moment()
	if moment.Elapsed == 0 {
		return
	}
	if t.attention == nil {
		t.attention = &attention{traffic: measure.Traffic{Kind: t.kind}}
	}
	t.timeAnswers(moment)
	if !t.kindSaid {
		t.kind = t.attention.traffic.Take(t.now, moment)
	}
	if t.adopted {
		return
	}
	if t.now.Sub(t.attention.learned) >= learnsEvery {
		m.learn(t)
	}
	m.compare(t, moment)
	t.confirmStall()
	stalls := t.carriersStall()
	if stalls {
		t.callUp()
	}
	if m.endDead(t) || stalls {
		m.step(t)
		return
	}
	changed := m.setLossyAside(t)
	changed = t.missDirect() || changed
	changed = m.setBurdensAside(t, moment) || changed
	changed = m.drawToLeave(t) || changed
	changed = m.flee(t) || m.tryOut(t) || m.exchangeSlower(t) || changed
	m.divide(t)
	if changed {
		m.step(t)
	}
}

// moment sums up what happened on the connection since the last samples.
func (t turn) moment() (m measure.Moment) {
	m.Asked, m.Heard = math.MaxInt64, math.MaxInt64
	for _, s := range t.subflows {
		if !s.measuredAt(t.now) {
			continue
		}
		step := &s.habits.step
		m.Elapsed = max(m.Elapsed, step.elapsed)
		m.Received += step.received
		m.Acked += step.acked
		m.Flight = max(m.Flight, float64(step.received+step.acked)/max(1, step.elapsed.Seconds()/max(s.minRTT, time.Millisecond).Seconds()))
		m.Asked, m.Heard = min(m.Asked, step.asked), min(m.Heard, step.heard)
		m.Limited = m.Limited || step.limited
		m.Lossy = m.Lossy || step.lossy
		m.Queued, m.SurelyQueued = m.Queued || step.queued, m.SurelyQueued || step.surelyQueued
		if s.minRTT > 0 && (m.Trip == 0 || s.minRTT < m.Trip) {
			m.Trip = s.minRTT
		}
	}
	return m
}

// measuredAt reports whether the subflow was just sampled, in a series of close samples.
func (s *subflow) measuredAt(now time.Time) bool { return s.up && s.at.Equal(now) && s.habits != nil }

// ours reports whether the subflow is an established one on a known path, which may stay.
func (t turn) ours(s *subflow) bool {
	return t.isLive(s) && !s.foreign && (s.direct || s.detour != nil)
}

// waypoint returns the name of the waypoint, or "" for the direct path.
func (s *subflow) waypoint() string {
	if s.detour == nil {
		return ""
	}
	return s.detour.Waypoint
}

// loses returns the share of packets lost in the last seconds, in the worse direction. known is false if too few
// packets were seen.
func (s *subflow) loses(now time.Time) (p float64, known bool) {
	if s.habits == nil {
		return 0, false
	}
	in, knowsIn := s.habits.arrivals.Lost(now, s.minRTT, s.habits.step.trip)
	out, knowsOut := s.habits.sent.Lost(now)
	return max(in, out), knowsIn || knowsOut
}

// seemsToLose returns what loses would return if all packets that were overtaken had been lost.
func (s *subflow) seemsToLose(now time.Time) (p float64, known bool) {
	if s.habits == nil {
		return 0, false
	}
	in, knowsIn := s.habits.arrivals.Seems(now, s.habits.step.trip)
	out, knowsOut := s.habits.sent.Seems(now)
	return max(in, out), knowsIn || knowsOut
}

// learn passes the measurements to the history.
func (m *Manager) learn(t turn) {
	t.attention.learned = t.now
	for _, s := range t.subflows {
		if t.ours(s) && s.measuredAt(t.now) && t.now.Sub(s.moved) < time.Second {
			m.detours.history.learn(s.waypoint(), t.server, m.found(t, s), t.now)
		}
	}
}

// divide decides by the kind of traffic which subflows carry.
func (m *Manager) divide(t turn) {
	if t.now.Sub(t.attention.stalls.calledUp) < asideWaits {
		return
	}
	if t.kind == measure.Messages || t.attention.traffic.BeginsAsMessages() {
		m.gather(t)
		return
	}
	if t.kind == measure.Short && !t.attention.traffic.MovedMuch() {
		return // the kind is not known, so detours that are backups from the beginning (far.go) stay backups
	}
	t.carryAgainWhere(func(s *subflow) bool { return s.isAside(standsBy) })
}

// expectsMessages reports whether a connection is likely to carry messages, before its kind of traffic is known. The operator
// says so, or earlier connections to the network of servers carried messages. Such a connection's detours begin as backups.
// Those with a shorter round trip carry as soon as the first data has moved (gather).
func (m *Manager) expectsMessages(t turn) bool {
	return m.cfg.ByWorth && !t.adopted && m.detours.history.expected(t.conn, t.now) == measure.Messages
}

// wasQuicker reports whether messages to the network of servers lately took much less time over a detour than over the direct
// path.
func (m *Manager) wasQuicker(t turn, d *Detour) bool {
	r, _ := m.detours.history.of(d.Waypoint, t.server)
	direct, _ := m.detours.history.of("", t.server)
	return r.hasTrip(t.now) && direct.hasTrip(t.now) && isQuicker(waits(r.trip, lossCounts*r.lost()), waits(direct.trip, lossCounts*direct.surelyLost()))
}

// carryAgain ends that a subflow is set aside.
func (t turn) carryAgain(s *subflow) {
	s.aside.cause = notAside
	if s.backup && !s.doubts().demoted && !s.standby {
		t.setBackup(s, false)
	}
	if s.habits != nil {
		s.habits.acquit()
	}
}

// carryAgainWhere lets the subflows carry again for which is returns true. It reports whether there were any.
func (t turn) carryAgainWhere(is func(*subflow) bool) (found bool) {
	for _, s := range t.subflows {
		if is(s) {
			t.carryAgain(s)
			found = true
		}
	}
	return found
}

// gather lets the best subflow carry the messages, and sets the others aside. A subflow that is better than the carrier
// stands by as well until it is chosen (carrier).
func (m *Manager) gather(t turn) {
	best := m.carrier(t)
	if best == nil {
		return
	}
	if best.setAside() || best.backup {
		if best.aside == nil {
			return // this Manager did not make it a backup
		}
		t.carryAgain(best)
	}
	if a := t.attention; a.carrier != best {
		if a.carrier != nil {
			a.changes++
		}
		m.messagesLeave(t, a.carrier, best)
		a.carrier, a.took = best, m.wait(t, best)
	}
	for _, s := range t.subflows {
		if s == best || !t.ours(s) || !s.stayed(t.now) || s.backup && !s.isAside(standsBy) || t.now.Before(s.fullyUp()) {
			continue
		}
		why := m.compareWaits(t, s, best)
		if s.backup {
			s.aside.why = why
			continue
		}
		t.putAside(s, standsBy, why)
	}
}

// messagesLeave records that messages left the path of the subflow from for that of best. It records nothing if from ended
// or became a backup, or if messages do not wait longer on it.
func (m *Manager) messagesLeave(t turn, from, best *subflow) {
	if from == nil || from.backup || !slices.Contains(t.subflows, from) {
		return
	}
	if why := m.compareWaits(t, from, best); why.Wait > why.OtherWait {
		t.departs(from, false, SubflowReason{Cause: CauseSlower, Other: why.byWait()}, t.now)
	}
}

// compareWaits returns the waits and losses on s, beside those on the subflow that carries the messages.
func (m *Manager) compareWaits(t turn, s, carrier *subflow) Verdict {
	return Verdict{
		Waypoint: carrier.waypoint(), Wait: m.wait(t, s), OtherWait: m.wait(t, carrier), Loss: m.loss(t, s), OtherLoss: m.loss(t, carrier),
	}
}

// carrier returns the subflow that should carry the messages, or nil if no subflow is fit. The first choice is made at
// once. Later, another subflow must be better for a while.
func (m *Manager) carrier(t turn) *subflow {
	a := t.attention
	fit := t.where(func(s *subflow) bool {
		return t.ours(s) && t.surelyWorks(s) && !s.isLossy() && !s.isSpent() && !s.isSurplus() && s.minRTT > 0 && (!s.backup || s.aside != nil)
	})
	if len(fit) == 0 {
		return nil
	}
	now := slices.IndexFunc(fit, func(s *subflow) bool { return !s.backup && s == a.carrier })
	if now < 0 {
		now = slices.IndexFunc(fit, func(s *subflow) bool { return !s.backup && s.direct })
	}
	if carrying := slices.DeleteFunc(slices.Clone(fit), func(s *subflow) bool { return s.backup }); len(carrying) == 1 {
		now = slices.Index(fit, carrying[0])
	}
	best := slices.MinFunc(fit, func(x, y *subflow) int { return int(m.wait(t, x) - m.wait(t, y)) })
	if now < 0 {
		return best
	}
	carries := fit[now]
	if best == carries || !isQuicker(m.wait(t, best), m.wait(t, carries)) {
		a.challenger = nil
		return carries
	}
	if a.carrier == nil {
		return best
	}
	if a.challenger != best {
		a.challenger, a.since = best, t.now
	}
	if t.now.Sub(a.since) < a.changesAfter(m.wait(t, carries), m.wait(t, best)) {
		return carries
	}
	a.challenger = nil
	return best
}

// isQuicker reports whether messages wait so much shorter over a path than over the one that carries them that it is
// worth a change.
func isQuicker(wait, carries time.Duration) bool {
	return betterFactor*float64(wait+betterBy) < float64(carries)
}

// changesAfter returns the time for which another subflow must be better than the carrier. wait and other are the waits
// over both now.
func (a *attention) changesAfter(wait, other time.Duration) time.Duration {
	if isQuicker(a.took, wait) { // the carrier has become worse
		share := min(1, muchBetter*other.Seconds()/wait.Seconds())
		return max(betterLeast, time.Duration(share*float64(betterFor)))
	}
	return betterFor << min(max(a.changes-1, 0), mostDoublings)
}

// timeAnswers records the times of the answers that just arrived. Data counts as an answer only if the request was
// sent after all earlier data had arrived, because a stream answers nothing.
func (t turn) timeAnswers(m measure.Moment) {
	a := t.attention
	for _, s := range t.subflows {
		if !s.measuredAt(t.now) || s.habits.step.received == 0 || m.Asked == math.MaxInt64 {
			continue
		}
		if took := m.Asked - s.habits.step.heard; took > 0 && t.now.Add(-m.Asked).After(a.heard) {
			s.habits.answers.Take(took)
		}
	}
	if m.Heard != math.MaxInt64 {
		a.heard = later(a.heard, t.now.Add(-m.Heard))
	}
}

// late returns the time by which answers over the subflow are later than its round trip explains, compared with the
// best other subflow. If nothing is known of another, it counts as faster. That shows when it carries.
func (t turn) late(s *subflow) time.Duration {
	own, known := s.beyondTrip()
	if !known {
		return 0
	}
	least := own
	for _, x := range t.subflows {
		if x == s || !t.ours(x) {
			continue
		}
		other, known := x.beyondTrip()
		if !known {
			other = 0
		}
		least = min(least, other)
	}
	if own-least < lateLeast {
		return 0
	}
	return own - least
}

// beyondTrip returns the least time by which answers over the subflow take longer than its shortest round trip.
func (s *subflow) beyondTrip() (beyond time.Duration, known bool) {
	if s.habits == nil {
		return 0, false
	}
	took, known := s.habits.answers.Least()
	return max(0, took-s.habits.trip.Base()), known
}

// wait estimates how long a message over the subflow waits for its answer: a round trip with its queue, the time that
// its answers take beyond that, and the delay by lost packets.
func (m *Manager) wait(t turn, s *subflow) time.Duration {
	trip := s.minRTT
	if s.habits != nil {
		trip = max(trip, s.habits.trip.Now(t.now))
	}
	return waits(trip+t.late(s), lossCounts*m.loss(t, s))
}

// loss returns the share of packets that counts as lost when the subflow is compared with others. The direct path has
// the benefit of the doubt, because over few packets a loss seems greater than it is now and then.
func (m *Manager) loss(t turn, s *subflow) float64 {
	r, _ := m.detours.history.of(s.waypoint(), t.server)
	if s.direct {
		return r.surelyLost()
	}
	return r.lost()
}

// waits estimates how long a message waits for its answer where this share of packets is lost.
func waits(trip time.Duration, loss float64) time.Duration {
	return trip + time.Duration(min(1, lossExposed*loss)*float64(lossDelay+trip))
}

// keepCarrying lets subflows carry again if all that carried are gone: the direct one or, if it was not set aside,
// all.
func (t turn) keepCarrying() {
	if !t.has((*subflow).setAside) || t.has(func(s *subflow) bool { return t.isLive(s) && !s.backup }) {
		return
	}
	direct := t.has(func(s *subflow) bool { return s.direct && s.setAside() && t.ours(s) })
	for _, s := range t.subflows {
		if s.setAside() && t.ours(s) && (s.direct || !direct) {
			t.carryAgain(s)
		}
	}
}
