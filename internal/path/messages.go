package path

import (
	"math"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file chooses the subflow that carries messages: the one over which they wait least. The others stand by. A message's
// wait is estimated from the round trip, from how late answers were, and from losses.

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
	// escapesBy is the time by which messages must wait less on a path that is about as long, where they escape losses.
	escapesBy = 2 * time.Millisecond
	// aboutAsLong is the factor by which the round trip of a path may be longer that carries messages instead of a lossy one.
	aboutAsLong = 1.1
	// mostDoublings bounds how often betterFor doubles. It doubles with each change while the path that carries is as
	// good as ever, so that messages do not follow paths that flap.
	mostDoublings = 6
	// lateLeast is the least time by which answers over a path count as late.
	lateLeast = 100 * time.Millisecond
	// lateStays is the time since the last answer over the direct path for which its answers count as late. After that, messages
	// try it again.
	lateStays = time.Minute
	// lossDelay is the time that a lost packet adds to a message, beyond another round trip.
	lossDelay = 200 * time.Millisecond
	// lossExposed is the number of packets whose loss delays a message.
	lossExposed = 10
	// lossCounts is the factor by which losses count more when subflows are compared. The messages behind a lost one are
	// delayed as well, and users notice the latest.
	lossCounts = 2
)

// expectsMessages reports whether a connection is likely to carry messages, before its kind of traffic is known. The operator
// says so, or earlier connections to the network of servers carried messages. Such a connection's detours begin as backups.
// Those with a shorter round trip carry as soon as the first data has moved (gather).
func (m *Manager) expectsMessages(t turn) bool {
	return m.cfg.ByWorth && !t.adopted && m.detours.history.expected(t.conn, t.now) == measure.Messages
}

// wasQuicker reports whether messages to the network of servers lately took much less time over a detour than over the direct
// path.
func (w weighing) wasQuicker(d *Detour) bool {
	r, direct := w.record(d.Waypoint), w.record("")
	queue := func(waypoint string) time.Duration { return w.detours.together.queue(waypoint, w.server, w.now) }
	return r.hasTrip(w.now) && direct.hasTrip(w.now) &&
		isQuicker(waits(r.trip, lossCounts*r.lost())+queue(d.Waypoint), waits(direct.trip, lossCounts*direct.surelyLost())+queue(""))
}

// gather lets the best subflow carry the messages, and sets the others aside. A subflow that is better than the carrier
// stands by as well until it is chosen (carrier).
func (w weighing) gather() {
	best := w.carrier()
	if best == nil {
		return
	}
	if best.setAside() || best.backup {
		if best.aside == nil {
			return // this Manager did not make it a backup
		}
		w.carryAgain(best)
	}
	carries := w.estimate(best)
	if a := w.attention; a.carrier != best {
		if a.carrier != nil {
			a.changes++
		}
		w.messagesLeave(a.carrier, carries)
		a.carrier, a.took = best, carries.wait
	}
	for _, s := range w.subflows {
		if s == best || !w.ours(s) || !s.stayed(w.now) || s.backup && !s.isAside(standsBy) || w.now.Before(s.fullyUp()) {
			continue
		}
		why := w.estimate(s).beside(carries)
		if s.backup {
			s.aside.why = why
			continue
		}
		w.putAside(s, standsBy, why)
	}
}

// messagesLeave records that messages left the path of the subflow from for another. It records nothing if from ended or
// became a backup, or if messages do not wait longer on it.
func (w weighing) messagesLeave(from *subflow, other estimate) {
	if from == nil || from.backup || !slices.Contains(w.subflows, from) {
		return
	}
	if why := w.estimate(from).beside(other); why.Wait > why.OtherWait {
		w.departs(from, false, SubflowReason{Cause: CauseSlower, Other: why.byWait()}, w.now)
	}
}

// carrier returns the subflow that should carry the messages, or nil if no subflow is fit. The first choice is made at
// once. Later, another subflow must be better for a while.
func (w weighing) carrier() *subflow {
	a := w.attention
	fit := w.where(func(s *subflow) bool {
		return w.ours(s) && w.surelyWorks(s) && !s.isLossy() && !s.isSpent() && !s.isSurplus() && s.minRTT > 0 && (!s.backup || s.aside != nil)
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
	expected, least := make([]estimate, len(fit)), 0
	for i, s := range fit {
		expected[i] = w.estimate(s)
		if expected[i].wait < expected[least].wait {
			least = i
		}
	}
	best := fit[least]
	if now < 0 {
		return best
	}
	carries := fit[now]
	if best == carries || !expected[least].isBetter(expected[now]) {
		a.challenger = nil
		return carries
	}
	if a.carrier == nil {
		return best
	}
	if a.challenger != best {
		a.challenger, a.since = best, w.now
	}
	if w.now.Sub(a.since) < w.changesAfter(expected[now], expected[least]) {
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

// changesAfter returns the time for which another subflow must be better than the carrier.
func (w weighing) changesAfter(carries, other estimate) time.Duration {
	a := w.attention
	switch {
	case isQuicker(a.took, carries.wait): // the carrier has become worse
		share := min(1, muchBetter*other.wait.Seconds()/carries.wait.Seconds())
		return max(betterLeast, time.Duration(share*float64(betterFor)))
	case a.changes == 0 && other.escapesLosses(carries):
		return betterLeast
	default:
		return betterFor << min(max(a.changes-1, 0), mostDoublings)
	}
}

// timeAnswers records the times of the answers that just arrived. Data counts as an answer only if the request was
// sent after all earlier data had arrived, because a stream answers nothing.
func (w weighing) timeAnswers(m measure.Moment) {
	a := w.attention
	for _, s := range w.subflows {
		if !s.measuredAt(w.now) || s.habits.step.received == 0 || m.Asked == math.MaxInt64 {
			continue
		}
		if took := m.Asked - s.habits.step.heard; took > 0 && w.now.Add(-m.Asked).After(a.heard) {
			s.habits.answers.Take(w.now, took)
		}
	}
	if m.Heard != math.MaxInt64 {
		a.heard = later(a.heard, w.now.Add(-m.Heard))
	}
}

// late returns the time by which answers over the subflow are later than its round trip explains, compared with the
// best other subflow. If nothing is known of another, it counts as faster. That shows when it carries.
func (w weighing) late(s *subflow) time.Duration {
	own, known := s.beyondTrip()
	if !known || s.direct && w.now.Sub(s.habits.answers.At()) > lateStays {
		return 0
	}
	least := own
	for _, x := range w.subflows {
		if x == s || !w.ours(x) {
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

// estimate holds the round trip and the loss that a message would probably have over a subflow.
type estimate struct {
	waypoint string
	// wait is the time from a message to its answer. It includes the average delay by lost packets, and trip does not.
	wait, trip time.Duration
	// loss is the share of packets that counts as lost when subflows are compared. surely is the share that is certainly lost.
	loss, surely float64
}

// estimate estimates what messages may expect of the subflow. The direct path has the benefit of the doubt, because over few
// packets a loss seems greater than it is now and then.
func (w weighing) estimate(s *subflow) estimate {
	r := w.record(s.waypoint())
	e := estimate{waypoint: s.waypoint(), trip: w.answersIn(s), loss: r.lost(), surely: r.surelyLost()}
	if s.direct {
		e.loss = e.surely
	}
	e.wait = waits(e.trip, lossCounts*e.loss)
	return e
}

// wait estimates how long a message over the subflow waits for its answer.
func (w weighing) wait(s *subflow) time.Duration { return w.estimate(s).wait }

// isBetter reports whether messages should leave the subflow that carries them for this one.
func (e estimate) isBetter(carries estimate) bool {
	return isQuicker(e.wait, carries.wait) || e.escapesLosses(carries)
}

// escapesLosses reports whether messages escape losses on this subflow, and its round trip is about the same or shorter. Then
// little speaks against a change, so a slightly shorter wait is enough. The losses are those that are certain.
func (e estimate) escapesLosses(carries estimate) bool {
	return e.loss < carries.surely && float64(e.trip) <= aboutAsLong*float64(carries.trip) && e.wait+escapesBy <= waits(carries.trip, lossCounts*carries.surely)
}

// beside returns the reason for not using the subflow for messages, with the numbers of the one that carries them.
func (e estimate) beside(carries estimate) Verdict {
	return Verdict{
		Waypoint: carries.waypoint, Wait: e.wait, OtherWait: carries.wait, Loss: e.loss, OtherLoss: carries.loss, Better: e.isBetter(carries),
	}
}

// answersIn estimates how long a message over the subflow waits for its answer if no packet is lost: a round trip with its
// queue, and the time that its answers take beyond that.
func (w weighing) answersIn(s *subflow) time.Duration {
	trip := s.minRTT
	if s.habits != nil {
		trip = max(trip, s.habits.trip.Now(w.now))
	}
	return trip + w.late(s)
}

// record returns what was measured of the path through a waypoint, or of the direct path, as it counts for messages.
func (w weighing) record(waypoint string) record {
	r, _ := w.detours.history.of(waypoint, w.server)
	if waypoint == "" {
		return r.aged(w.now)
	}
	return r
}

// waits estimates how long a message waits for its answer where this share of packets is lost.
func waits(trip time.Duration, loss float64) time.Duration {
	return trip + time.Duration(min(1, lossExposed*loss)*float64(lossDelay+trip))
}
