package path

import "time"

// This file gives up a detour through which nothing arrives any more while data that was sent over it is missing from
// the connection. TCP does not report this to a receiver, so it proceeds in steps:
//
//   - Suspicion. Four signs make a detour suspect. The connection's data stops at a gap, another subflow keeps
//     bringing data from beyond the gap, and no data comes over the detour (holdsUp). No data has come for much
//     longer than usual, while another subflow is busy (unlikeItself). Nothing at all has come for long, while data
//     moves on another subflow (unheardOf). The detour carries alone, because the others are set aside, and nothing
//     comes (aloneAndSilent). Only the first sign proves much: the server may not use the detour, or may have nothing
//     to send.
//   - Probing. Keep-alive probes, which every TCP answers, are sent on the detour once a second as long as nothing
//     arrives. Anything that arrives ends the suspicion. The direct path is also probed if it carried alone, or if it
//     can show whether this host is cut off.
//   - Demotion to a backup. If it was wrong, it costs little, and it is undone when something arrives. It is
//     immediate for a detour that holds up the connection, was in use until then, and is known to be steady. Other
//     detours must leave probes unanswered first. A detour is not steady if it has loss, because its retransmissions
//     may be lost, too, if it was wrongly suspected before, or if little is known of it.
//   - The end, after more unanswered probes. Another detour takes the place. A detour that was only unheard of is not
//     demoted, because it holds up nothing. More probes decide on its end.
//
// If all subflows become silent together after data arrived, the server may just pause. But if a NAT has forgotten
// them, only the server sees them reset, and a receiver sends nothing that would tell it. So one subflow, the direct
// one if there is one, is probed (hushed). A reset answers the probe. Then a new subflow can still join, because the
// server's kernel keeps the connection for a minute.
//
// A direct path over which nothing came for long while data moves on a detour is probed, too. It stays, but if it does
// not answer, it counts as mute until something arrives (direct.go).
//
// The numbers come from measurements of 70 healthy and 28 broken detours (docs/kernel-behaviour.md).
const (
	// stillTwice is a little less than the time of two samples in a row. For holdsUp on a steady detour, the
	// connection must make no progress for this time. On short round trips the server resends what is missing after
	// 0.2 s.
	stillTwice = watchInterval - 5*time.Millisecond
	// stillFor is the time in place of stillTwice for detours that are not steady, at least trips round trips. It
	// keeps the number of probes low.
	stillFor = 300 * time.Millisecond
	trips    = 3
	// inUseUntil bounds the time from the last data of a detour to the last progress of the connection if the detour
	// was in use. Data sent earlier may still be arriving on other paths.
	inUseUntil = 500 * time.Millisecond

	// watchInterval is the time between close samples.
	watchInterval = 100 * time.Millisecond
	// unlikeAfter is the time without data from which a detour is unlike itself, at least unlikeGaps times the longest
	// gap.
	unlikeAfter = 500 * time.Millisecond
	unlikeGaps  = 3
	// habitsAfter is the time for which a detour's gaps must have been observed to count as usual.
	habitsAfter = 1500 * time.Millisecond
	// silentAfter is the silence from which a steady detour is demoted before probes are due. On a short path a
	// retransmission takes less.
	silentAfter = 700 * time.Millisecond

	// aloneAfter is the silence after which a detour that carries alone is suspected. It doubles each time it was
	// wrong, up to aloneLongest, because samples are not close for longer than watchFor.
	aloneAfter   = 700 * time.Millisecond
	aloneLongest = 4 * time.Second

	// hushAfter is the silence of all subflows after which one of them is probed.
	hushAfter = 2 * time.Second
	// hushRest is the time after answered probes before the next are sent. It doubles each time, but not more often
	// than hushRests.
	hushRest  = 5 * time.Second
	hushRests = 6

	// demoteUnanswered is the number of unanswered probes after which a detour is demoted.
	demoteUnanswered = 2
	// closeUnanswered is the number of unanswered probes after which a detour is given up.
	closeUnanswered = 4
	// unheardFor is the time without anything heard after which an idle detour is probed. A connection relies on it to
	// be there when the busy path dies. The answer also tells its round trip (sense.go).
	unheardFor = 4 * time.Second
	// unheardUnanswered is the number of unanswered probes after which an idle detour is given up. At 5 % loss in each
	// direction that many stay unanswered once in a million.
	unheardUnanswered = 6
	// moreUnanswered is the number of additional probes if packets are lost, because a probe or its answer may be
	// lost, too: at 5 % loss in each direction one in ten stays unanswered.
	moreUnanswered = 2
	// unaskedFor is the silence from which it is certain that no probes are sent. This host may be unable to send
	// them, or the subflow is older than the agent. No probes are sent either while data is missing before what
	// arrived on the subflow: the acknowledgement then has no room for the program that makes the kernel send them.
	unaskedFor = 10 * time.Second
	// gapFor is the silence from which a detour is a hole while data is missing. The server resends what is missing,
	// after twice the time each time, until it arrives.
	gapFor = 5 * time.Second

	// muchLoss is the share of lost packets from which a detour counts as lossy, for lossyFor.
	muchLoss = 0.02
	lossyFor = time.Minute
	// unsteady is the time for which a detour does not count as steady after a wrong suspicion.
	unsteady = 10 * time.Minute
	// busyWithin is the time since its last data up to which a subflow is busy.
	busyWithin = 300 * time.Millisecond
)

// suspicion is the state of one subflow in the steps above.
type suspicion struct {
	since    time.Time // zero: not suspected
	segments uint64    // segments received by then
	cleared  time.Time // when the last suspicion turned out to be wrong
	holdsUp  bool      // it held up the connection
	inUse    bool      // it had been in use just before
	unheard  bool      // the only sign is that nothing came
	alone    bool      // it carried alone, is a witness, or all subflows were silent
	pauses   int       // how often the server just paused
	demoted  bool
	// witnessed is the time at which another subflow first showed that this host is not cut off.
	witnessed time.Time
	wary      time.Time // does not count as steady before
	lossy     time.Time // counts as lossy until then
	mute      time.Time // when a direct path was last heard that does not answer; zero: it answers, as far as is known
}

// doubts returns a copy of the subflow's suspicion.
func (s *subflow) doubts() (q suspicion) {
	if s.suspicion != nil {
		q = *s.suspicion
	}
	return q
}

// doubt returns the subflow's suspicion, to be changed. Few subflows need one, so it is allocated for the first change.
func (s *subflow) doubt() *suspicion {
	if s.suspicion == nil {
		s.suspicion = &suspicion{}
	}
	return s.suspicion
}

func (s *subflow) suspected() bool { return !s.doubts().since.IsZero() }

// suspect examines the subflows of a connection after they were sampled. It returns the detours through which, with
// enough certainty, nothing arrives.
func (t turn) suspect() []*subflow {
	found := false
	for _, s := range t.subflows {
		if t.isLive(s) && (s.detour != nil || s.id == 0 || t.ours(s)) && s.at.Equal(t.now) && t.open() {
			t.lookAt(s)
			found = found || t.isHole(s)
		}
	}
	if !found {
		return nil
	}
	return t.where(func(s *subflow) bool { return s.up && s.detour != nil && s.at.Equal(t.now) && t.isHole(s) })
}

// lookAt takes one subflow through the steps up to its demotion.
func (t turn) lookAt(s *subflow) {
	lossy, known := s.lossy(t.now)
	if lossy {
		s.doubt().lossy = t.now.Add(lossyFor)
	}
	was := s.doubts()
	steady := known && !t.now.Before(was.wary) && !t.now.Before(was.lossy)
	holdsUp := t.holdsUp(s, steady, t.now)
	muted := t.mute(s)
	switch {
	case s.suspected() && (s.segments != was.segments || !was.demoted && !s.hasGap() && s.unasked()),
		s.suspected() && s.direct && !s.standby && (muted || s.unansweredFor(unheardUnanswered)):
		t.unsuspect(s)
		return
	case s.suspected():
		s.suspicion.unheard = was.unheard && !holdsUp
	case t.aloneAndSilent(s) || t.isWitness(s) || t.hushed(s):
		t.beginSuspicion(s).alone = true
	case s.direct && (s.standby || !t.unheardOf(s) || s.restsMute(t.now)):
		return
	case holdsUp || t.unlikeItself(s) || t.unheardOf(s):
		t.beginSuspicion(s).unheard = !holdsUp && !t.unlikeItself(s)
	default:
		return
	}
	q := s.suspicion
	if q.witnessed.IsZero() && t.shownBesides(s) {
		q.witnessed = t.now
	}
	q.holdsUp = q.holdsUp || holdsUp
	q.inUse = q.inUse || holdsUp && t.data.still.Before(s.lastData().Add(inUseUntil))
	if !s.direct && !q.demoted && t.busyBeside(s) && s.toDemote(steady, known) {
		q.demoted = true
		t.setBackup(s, true)
	}
}

// beginSuspicion suspects a subflow from now on, and probes it.
func (t turn) beginSuspicion(s *subflow) *suspicion {
	q := s.doubt()
	q.since, q.segments = t.now, s.segments
	t.out.do(Probe{t.token, s.local, s.remote, true, s.backup})
	return q
}

// unsuspect ends a suspicion that was wrong.
func (t turn) unsuspect(s *subflow) {
	q := s.doubt()
	s.timeProbe(q)
	t.out.do(Probe{t.token, s.local, s.remote, false, s.backup})
	if q.demoted && !s.setAside() && !s.standby {
		t.setBackup(s, false)
	}
	next := suspicion{cleared: t.now, wary: q.wary, lossy: q.lossy, mute: q.mute, pauses: q.pauses}
	if last := s.lastData(); last.After(q.since) {
		next.cleared = last.Add(-1) // silence after that data is a new one
	}
	switch {
	case q.alone:
		next.pauses++
	case !q.unheard: // otherwise the detour was only asked whether it is there
		next.wary = t.now.Add(unsteady)
	}
	*q = next
}

// holdsUp reports whether the connection waits for data sent over s: it makes no progress, while other subflows bring
// later data.
func (c *conn) holdsUp(s *subflow, steady bool, now time.Time) bool {
	still, dry := max(stillTwice, s.minRTT), stillTwice
	if !steady {
		still = max(stillFor, trips*s.minRTT)
		dry = still - watchInterval
	}
	if c.data.still.IsZero() || !c.data.still.After(s.doubts().cleared) || now.Sub(c.data.still) < still || s.dry() < dry {
		return false
	}
	return c.has(func(x *subflow) bool {
		return x != s && x.up && x.at.Equal(now) && x.dataSegments >= x.dataSegmentsAtStill+2 && x.dataEnd > c.data.upTo
	})
}

// unlikeItself reports whether s has had no data for much longer than before. The time in which it stood by does not count.
func (c *conn) unlikeItself(s *subflow) bool {
	if s.setAside() || !s.lastData().After(s.doubts().cleared) {
		return false
	}
	gap, ok := s.usualGap()
	return ok && min(s.dry(), s.at.Sub(s.told.at)) > max(unlikeAfter, unlikeGaps*gap) && c.busyBeside(s)
}

// unheardOf reports whether nothing came over s for unheardFor, and it was not just probed, while another subflow
// carries data in either direction.
func (c *conn) unheardOf(s *subflow) bool {
	return s.silent() >= unheardFor && s.at.Sub(s.doubts().cleared) >= unheardFor && c.has(func(x *subflow) bool {
		return x != s && x.up && x.at.Equal(s.at) && x.moved.Equal(x.at) && x.silent() < busyWithin
	})
}

// aloneAndSilent reports whether s alone carries the connection, or did until it stalled, and nothing came over it
// for longer than usual since its last data or since it began to carry.
func (t turn) aloneAndSilent(s *subflow) bool {
	cleared := s.doubts().cleared
	if s.backup || !s.lastData().After(cleared) && !s.told.at.After(cleared) || !t.inDoubt(s) && !t.carriesAlone(s) {
		return false
	}
	after := aloneAfter << min(s.doubts().pauses, 10)
	if gap, ok := s.usualGap(); ok {
		after = max(after, unlikeGaps*gap)
	}
	return min(s.silent(), t.now.Sub(s.told.at)) >= min(after, aloneLongest)
}

// isWitness reports whether an answer on s would show that another subflow, which carried alone, does not work, and
// that this host's link does.
func (t turn) isWitness(s *subflow) bool {
	return t.attention != nil && t.has(func(x *subflow) bool {
		return x != s && x.up && x.detour != nil && x.doubts().alone && x.surelySilent() && !s.shows(x)
	})
}

// hushed reports whether s is to be probed because all subflows became silent after data arrived.
func (t turn) hushed(s *subflow) bool {
	q := s.doubts()
	rested := q.cleared.IsZero() || t.now.Sub(q.cleared) >= hushRest<<min(q.pauses, hushRests)
	first := t.find(func(x *subflow) bool { return t.isLive(x) && x.direct })
	if first == nil {
		first = t.find(t.isLive)
	}
	return s == first && rested && !t.halfClosed &&
		t.has(func(x *subflow) bool { return x.up && x.lastData().After(q.cleared) && x.dry() < watchFor }) &&
		!t.has(func(x *subflow) bool { return x.up && (!x.at.Equal(t.now) || x.silent() < hushAfter) })
}

// shows reports whether s was heard so much later than x that x, which is probed, does not work.
func (s *subflow) shows(x *subflow) bool {
	return s.lastAnswer().After(x.lastAnswer().Add(closeUnanswered * time.Second / 2))
}

// distrusted reports whether the subflow is suspected of more than a pause. A direct path that is probed is not, nor is a
// subflow that was only asked whether it is there, unless their answers are late.
func (s *subflow) distrusted() bool {
	q := s.doubts()
	return s.isMute() || s.suspected() && (!q.alone && !q.unheard && !s.direct || s.surelySilent())
}

// carriesAlone reports whether all other subflows of the connection are backups, and some of them would work.
func (t turn) carriesAlone(s *subflow) bool {
	return !t.has(func(x *subflow) bool { return x != s && x.up && !x.backup }) &&
		t.has(func(x *subflow) bool { return (x.setAside() || x.standby) && t.ours(x) })
}

// busyBeside reports whether another subflow of the connection has just had data.
func (c *conn) busyBeside(s *subflow) bool {
	return c.has(func(x *subflow) bool {
		return x != s && x.up && x.at.Equal(s.at) && x.dry() < busyWithin
	})
}

// lossy reports whether much of what was sent over s was lost recently. known is false if too little arrived to tell.
func (s *subflow) lossy(now time.Time) (lossy, known bool) {
	if s.habits == nil {
		return false, false
	}
	p, known := s.habits.arrivals.Seems(now, s.minRTT)
	return p > muchLoss, known
}

// toDemote reports whether the subflow is to become a backup. known is set if its loss is known.
func (s *subflow) toDemote(steady, known bool) bool {
	q := s.doubts()
	if q.unheard {
		return false
	}
	if q.holdsUp && q.inUse && steady && s.silent() >= max(silentAfter, trips*s.minRTT) {
		return true
	}
	probes := demoteUnanswered
	switch {
	case !q.holdsUp && q.since.Before(q.lossy):
		probes = closeUnanswered // nothing waits for it
	case !known:
		probes += moreUnanswered
	}
	return s.unansweredFor(probes)
}

// unansweredFor reports whether the answers to n probes are overdue, or to more probes if packets are lost. The first
// probe is sent after a second of silence, the next ones a second apart.
func (s *subflow) unansweredFor(n int) bool {
	if s.doubts().since.Before(s.doubts().lossy) {
		n += moreUnanswered
	}
	return int(s.unanswered) >= n && s.silentWhileProbed() >= time.Duration(n)*time.Second+s.answersIn()
}

// answersIn returns the time within which a probe is answered.
func (s *subflow) answersIn() time.Duration { return max(100*time.Millisecond, 2*s.minRTT) }

// unasked reports whether s has been silent for so long that unanswered probes would have been counted if any had
// been sent.
func (s *subflow) unasked() bool { return s.unanswered == 0 && s.silentWhileProbed() >= unaskedFor }

func (s *subflow) hasGap() bool { return s.habits != nil && s.habits.step.gap }

// isMissing reports whether nothing has come for gapFor although the server resends data that is missing on s.
func (s *subflow) isMissing() bool {
	return s.hasGap() && s.unanswered == 0 && s.silentWhileProbed() >= gapFor+trips*s.minRTT
}

// silentWhileProbed returns the time for which nothing has come although probes were sent or about to be sent.
func (s *subflow) silentWhileProbed() time.Duration {
	if s.doubts().unheard { // it was silent before without being probed
		return min(s.silent(), s.at.Sub(s.doubts().since))
	}
	return s.silent()
}

// isHole reports whether it is certain enough that nothing arrives through s.
func (t turn) isHole(s *subflow) bool {
	q := s.doubts()
	probes := closeUnanswered
	if q.unheard {
		probes = unheardUnanswered
	}
	if !s.suspected() || !s.unansweredFor(probes) && (!q.demoted || !s.unasked()) && !s.isMissing() {
		return false
	}
	// Without a witness, this host itself may be cut off, or may have been until now.
	return !q.witnessed.IsZero() && t.now.Sub(q.witnessed) >= time.Second+s.answersIn() && t.shownBesides(s)
}

// shownBesides reports whether another subflow shows that s does not work.
func (t turn) shownBesides(s *subflow) bool {
	return t.has(func(x *subflow) bool { return x != s && x.up && t.host.hasSource(x) && x.shows(s) })
}
