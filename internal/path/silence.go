package path

import "time"

// A detour through which nothing arrives any more, while data sent over it is missing from the
// connection, is given up. TCP does not report this to a receiver, so it proceeds in steps:
//
//   - Suspicion. The connection's data stops at a gap, another subflow keeps bringing
//     data from beyond the gap, and the detour is dry (holdsUp). Or the detour is dry
//     for much longer than ever in the last seconds, while another subflow is busy
//     (unlikeItself). Or nothing at all came by the detour for long, while data moves
//     on another subflow (unheardOf). Or it carries alone, the others are set aside, and
//     nothing comes any more (aloneAndSilent). Only the first proves much: the server may not use the
//     detour, or may have nothing to send.
//   - Probing. Keep-alive probes, which every TCP answers, are sent on the detour once
//     a second as long as nothing arrives. Anything that arrives ends the suspicion. The direct
//     path is probed, too, if it carried alone, or where it can tell whether this host is cut off.
//   - Demotion to a backup. It costs little if it was wrong, and is undone when
//     something arrives. It is immediate for a detour that holds up the connection and
//     was in use until then, if the detour was known to be steady. All others must
//     leave probes unanswered first. A path with loss is not steady, because its
//     retransmissions may be lost, too. Neither is one that was suspected wrongly
//     before, or one with too little history.
//   - The end, when more probes stay unanswered. Another detour takes the place. A detour
//     that was only not heard of is not demoted, and more probes decide on its end: it
//     holds up nothing.
//
// If all subflows become silent together after data arrived, the server may only pause. But a NAT that forgot its
// connections has them reset at the server alone, and a receiver sends nothing from which it would learn of that. So
// one subflow, the direct one if there is one, is probed (hushed). A reset answers the probe, and a new subflow can
// still join, because the server's kernel keeps the connection for a minute.
//
// The numbers come from measurements of 70 healthy and 28 broken detours, see
// docs/kernel-behaviour.md.
const (
	// For holdsUp, the connection must make no progress for two samples in a row on a steady path:
	// where round trips are short, the server resends what is missing after 0.2 s. On other paths
	// it must make none for stillFor or three round trips, so that fewer probes are sent.
	stillTwice = watchInterval - 5*time.Millisecond
	stillFor   = 300 * time.Millisecond
	trips      = 3
	// inUseUntil bounds the time between the last data of a detour in use and the last progress of
	// the connection. Data sent earlier may still be arriving on other paths.
	inUseUntil = 500 * time.Millisecond

	watchInterval = 100 * time.Millisecond
	unlikeAfter   = 500 * time.Millisecond // or three times the longest gap, for unlikeItself
	unlikeGaps    = 3
	// habitsAfter is how long a detour's gaps must have been observed before they count as usual.
	habitsAfter = 1500 * time.Millisecond
	// silentAfter is longer than one retransmission on a short path takes.
	silentAfter = 700 * time.Millisecond

	// A detour that carries alone is suspected after a silence of aloneAfter. That doubles each time it was wrong,
	// up to aloneLongest: later, samples are no longer close (watchFor).
	aloneAfter   = 700 * time.Millisecond
	aloneLongest = 4 * time.Second

	// hushAfter is the silence of all subflows after which one is probed, while the connection is still watched closely.
	// After probes that were answered, the next are not sent before hushRest, which doubles each time.
	hushAfter = 2 * time.Second
	hushRest  = 5 * time.Second
	hushRests = 6 // doublings

	demoteUnanswered = 2 // probes
	closeUnanswered  = 4
	// A connection with an idle detour counts on it to be there when the busy path dies. So nothing
	// heard for unheardFor has the detour probed, and it ends after unheardUnanswered probes: at 5 % loss
	// in each direction that many stay unanswered once in a million.
	unheardFor        = 4 * time.Second
	unheardUnanswered = 6
	// moreUnanswered is the number of additional probes required where packets are lost, because a
	// probe or its answer may be lost, too: at 5 % loss in each direction every tenth stays unanswered.
	moreUnanswered = 2
	// unaskedFor is how long nothing must have arrived to conclude that no probes are sent: this
	// host cannot send them, or the subflow is older than the agent. They are not sent either while data is missing
	// before what arrived on the subflow: the acknowledgement then has no room for the program that has them sent. But
	// the server resends what is missing, after twice the time each time, until it arrives. So if nothing comes
	// for gapFor, the detour is a hole.
	unaskedFor = 10 * time.Second
	gapFor     = 5 * time.Second

	muchLoss   = 0.02
	lossyFor   = time.Minute
	unsteady   = 10 * time.Minute // after a wrong suspicion
	busyWithin = 300 * time.Millisecond
)

// suspicion is the state of the steps above for one subflow.
type suspicion struct {
	since    time.Time // zero: not suspected
	segments uint64    // segments received by then
	cleared  time.Time // when the last one turned out to be wrong
	holdsUp  bool      // it held up the connection
	inUse    bool      // and had been in use just before
	unheard  bool      // nothing else is known against it than that nothing came
	alone    bool      // it carried alone, is a witness, or all subflows were silent
	pauses   int       // how often the server only paused
	demoted  bool
	// witnessed is the time at which another subflow was first heard so much later that this host cannot be cut off.
	witnessed time.Time
	wary      time.Time // not considered steady before
	lossy     time.Time // considered lossy before
}

// doubts returns a copy of the subflow's suspicion.
func (s *subflow) doubts() (q suspicion) {
	if s.suspicion != nil {
		q = *s.suspicion
	}
	return q
}

// doubt returns the subflow's suspicion, to be changed.
func (s *subflow) doubt() *suspicion {
	if s.suspicion == nil {
		s.suspicion = &suspicion{}
	}
	return s.suspicion
}

// forgetDoubts frees the memory of the suspicions that hold nothing.
func (c *conn) forgetDoubts() {
	for _, s := range c.subflows {
		if s.suspicion != nil && *s.suspicion == (suspicion{}) {
			s.suspicion = nil
		}
	}
}

func (s *subflow) suspected() bool { return !s.doubts().since.IsZero() }

// suspect examines the subflows of a connection after they were sampled. It returns the detours
// through which, by now, it is certain enough that nothing arrives.
func (t turn) suspect() []*subflow {
	found := false
	for _, s := range t.subflows {
		if s.up && (s.detour != nil || t.ours(s)) && s.at.Equal(t.now) && t.host.hasSource(s) && !s.leaving && t.open() {
			t.lookAt(s)
			found = found || t.isHole(s)
		}
	}
	if !found {
		return nil
	}
	return t.where(func(s *subflow) bool { return s.up && s.detour != nil && s.at.Equal(t.now) && t.isHole(s) })
}

// lookAt goes through the steps for one subflow, up to its demotion.
func (t turn) lookAt(s *subflow) {
	lossy, known := s.lossy(t.now)
	q := s.doubt()
	if lossy {
		q.lossy = t.now.Add(lossyFor)
	}
	steady := known && !t.now.Before(q.wary) && !t.now.Before(q.lossy)
	holdsUp := t.holdsUp(s, steady, t.now)
	switch {
	case s.suspected() && (s.segments != q.segments || !q.demoted && !s.hasGap() && s.unasked()),
		s.suspected() && s.direct && !s.standby && s.unansweredFor(unheardUnanswered):
		t.unsuspect(s)
		return
	case s.suspected():
		q.unheard = q.unheard && !holdsUp
	case t.aloneAndSilent(s) || t.isWitness(s) || t.hushed(s):
		q.since, q.segments, q.alone = t.now, s.segments, true
		t.out.do(Probe{t.token, s.local, s.remote, true, s.backup})
	case s.direct:
		return
	case holdsUp || t.unlikeItself(s) || t.unheardOf(s):
		q.since, q.segments = t.now, s.segments
		q.unheard = !holdsUp && !t.unlikeItself(s)
		t.out.do(Probe{t.token, s.local, s.remote, true, s.backup})
	default:
		return
	}
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

// unsuspect ends a suspicion that was wrong.
func (t turn) unsuspect(s *subflow) {
	q := s.doubt()
	t.out.do(Probe{t.token, s.local, s.remote, false, s.backup})
	if q.demoted && !s.setAside() && !s.standby {
		t.setBackup(s, false)
	}
	next := suspicion{cleared: t.now, wary: q.wary, lossy: q.lossy, pauses: q.pauses}
	if last := s.lastData(); last.After(q.since) {
		next.cleared = last.Add(-1) // what follows the data is another silence
	}
	switch {
	case q.alone:
		next.pauses++
	case !q.unheard: // otherwise it was no more than asked
		next.wary = t.now.Add(unsteady)
	}
	*q = next
}

// holdsUp reports whether the connection waits for data sent over s: it makes no progress, and
// other subflows bring later data.
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

// unlikeItself reports whether s has been dry for much longer than before.
func (c *conn) unlikeItself(s *subflow) bool {
	if s.setAside() || !s.lastData().After(s.doubts().cleared) {
		return false
	}
	gap, ok := s.usualGap()
	return ok && s.dry() > max(unlikeAfter, unlikeGaps*gap) && c.busyBeside(s)
}

// unheardOf reports whether nothing came by s for long, and it was not just probed, while another
// subflow carries data in either direction. An upload counts on an idle detour as a download does.
func (c *conn) unheardOf(s *subflow) bool {
	return s.silent() >= unheardFor && s.at.Sub(s.doubts().cleared) >= unheardFor && c.has(func(x *subflow) bool {
		return x != s && x.up && x.at.Equal(s.at) && x.moved.Equal(x.at) && x.silent() < busyWithin
	})
}

// aloneAndSilent reports whether s alone carries the connection, because all others are set aside, or did until that
// stalled, and nothing came by it for longer than is usual since its last data, or since it began to carry.
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

// isWitness reports whether an answer on s would show that a subflow that carried alone does not work, rather than this
// host's link.
func (t turn) isWitness(s *subflow) bool {
	return t.attention != nil && t.has(func(x *subflow) bool {
		return x != s && x.up && x.detour != nil && x.doubts().alone && x.surelySilent() && !s.shows(x)
	})
}

// hushed reports whether s is to be probed because all subflows have become silent after data arrived.
func (t turn) hushed(s *subflow) bool {
	q := s.doubts()
	rested := q.cleared.IsZero() || t.now.Sub(q.cleared) >= hushRest<<min(q.pauses, hushRests)
	first := t.find(func(x *subflow) bool { return t.isAskable(x) && x.direct })
	if first == nil {
		first = t.find(t.isAskable)
	}
	return s == first && rested && !t.halfClosed &&
		t.has(func(x *subflow) bool { return x.up && x.lastData().After(q.cleared) && x.dry() < watchFor }) &&
		!t.has(func(x *subflow) bool { return x.up && (!x.at.Equal(t.now) || x.silent() < hushAfter) })
}

// isAskable reports whether a probe can be sent on s.
func (t turn) isAskable(s *subflow) bool { return s.up && !s.leaving && t.host.hasSource(s) }

// shows reports whether s was heard so long after x that x, which is probed, does not work.
func (s *subflow) shows(x *subflow) bool {
	return s.lastAnswer().After(x.lastAnswer().Add(closeUnanswered * time.Second / 2))
}

// distrusted reports whether the subflow is suspected of more than a pause.
func (s *subflow) distrusted() bool {
	return s.suspected() && (!s.doubts().alone || s.surelySilent())
}

// carriesAlone reports whether all other subflows of the connection are backups, of which some would work.
func (t turn) carriesAlone(s *subflow) bool {
	return !t.has(func(x *subflow) bool { return x != s && x.up && !x.backup }) &&
		t.has(func(x *subflow) bool { return (x.setAside() || x.standby) && t.ours(x) })
}

// busyBeside reports whether another subflow of the connection just had data.
func (c *conn) busyBeside(s *subflow) bool {
	return c.has(func(x *subflow) bool {
		return x != s && x.up && x.at.Equal(s.at) && x.dry() < busyWithin
	})
}

// lossy reports whether much of what was sent over s was lost recently. known is false if too
// little arrived to decide.
func (s *subflow) lossy(now time.Time) (lossy, known bool) {
	if s.habits == nil {
		return false, false
	}
	p, known := s.habits.arrivals.Lost(now, s.minRTT)
	return p > muchLoss, known
}

// toDemote reports whether the subflow becomes a backup. known is set if it is known how many packets are lost.
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

// unansweredFor reports whether the answers to n probes are overdue, or to more if packets are
// lost. The first probe is sent after a second of silence, the others a second apart.
func (s *subflow) unansweredFor(n int) bool {
	if s.doubts().since.Before(s.doubts().lossy) {
		n += moreUnanswered
	}
	return int(s.unanswered) >= n && s.silentWhileProbed() >= time.Duration(n)*time.Second+s.answersIn()
}

// answersIn returns the time in which a probe is answered.
func (s *subflow) answersIn() time.Duration { return max(100*time.Millisecond, 2*s.minRTT) }

// unasked reports whether s has been silent for so long that unanswered probes would have been
// counted if any were sent.
func (s *subflow) unasked() bool { return s.unanswered == 0 && s.silentWhileProbed() >= unaskedFor }

func (s *subflow) hasGap() bool { return s.habits != nil && s.habits.step.gap }

// isMissing reports whether nothing came for so long although data is missing that the server resends on s.
func (s *subflow) isMissing() bool {
	return s.hasGap() && s.unanswered == 0 && s.silentWhileProbed() >= gapFor+trips*s.minRTT
}

// silentWhileProbed returns how long nothing came although probes were sent, or about to be.
func (s *subflow) silentWhileProbed() time.Duration {
	if s.doubts().unheard { // it was silent before, without a probe
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
	// Otherwise this host itself may be cut off, or was until now.
	return !q.witnessed.IsZero() && t.now.Sub(q.witnessed) >= time.Second+s.answersIn() && t.shownBesides(s)
}

// shownBesides reports whether another subflow shows that s does not work.
func (t turn) shownBesides(s *subflow) bool {
	return t.has(func(x *subflow) bool { return x != s && x.up && t.host.hasSource(x) && x.shows(s) })
}
