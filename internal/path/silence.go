package path

import "time"

// A detour through which nothing comes any more, while data that was sent over it is
// missing from the connection, is left. A receiver is not told of that; it suspects,
// asks, and only then acts:
//
//   - Suspicion. The connection's data stands still at a gap, another subflow goes on
//     bringing data from beyond the gap, and the detour is dry (holdsUp). Or the detour is
//     dry for much longer than it ever was in the last seconds, while another subflow is
//     busy (unlikeItself): that alone says little, as the server may just have no use for
//     the detour.
//   - Question. Keep-alive probes, which every TCP answers, go out on the detour once a
//     second as long as nothing comes. Anything that comes ends the suspicion.
//   - Demotion to a backup, which costs little if it was wrong and is taken back when
//     something comes: at once for a detour that holds up the connection and was in use
//     until then, if it was known for a steady one. All others have to leave probes
//     unanswered first. A path with loss is not steady (its retransmissions may be lost,
//     too), nor is one that was suspected in vain, or of which little is known.
//   - The end, when more probes went unanswered: another detour gets the place.
//
// The numbers are from measurements of 70 healthy and 28 broken detours, see
// docs/kernel-behaviour.md.
const (
	// For holdsUp the connection stands still for two samples in a row on a steady path:
	// where round trips are short the server sends what is missing again after 0.2 s. On
	// others it stands still for stillFor, or three round trips, to be asked about less.
	stillTwice = watchInterval - 5*time.Millisecond
	stillFor   = 300 * time.Millisecond
	trips      = 3
	// inUseUntil is how long after the last data of a detour that is in use the connection
	// stands still at the latest, as what was sent before is still to come on other paths.
	inUseUntil = 500 * time.Millisecond

	watchInterval = 100 * time.Millisecond
	unlikeAfter   = 500 * time.Millisecond // or three times the longest gap, for unlikeItself
	unlikeGaps    = 3
	// habitsAfter is how long a detour's gaps must have been watched to be its habits.
	habitsAfter = 1500 * time.Millisecond
	// silentAfter is more than one retransmission on a short path needs to come.
	silentAfter = 700 * time.Millisecond

	demoteUnanswered = 2 // probes
	closeUnanswered  = 4
	// moreUnanswered is how many more probes it takes where packets are lost, as a probe or
	// its answer may be, too.
	moreUnanswered = 1
	// unaskedFor is how long nothing comes before it is clear that no probes are sent: this
	// host cannot, or the subflow is older than the agent.
	unaskedFor = 10 * time.Second

	muchLoss   = 0.02
	lossyFor   = time.Minute
	unsteady   = 10 * time.Minute // after a suspicion in vain
	busyWithin = 300 * time.Millisecond
)

// suspicion is about one subflow.
type suspicion struct {
	since    time.Time // zero: there is none
	segments uint64    // that had come by then
	cleared  time.Time // when the last one turned out to be wrong
	holdsUp  bool      // the connection, at a time when
	inUse    bool      // it had just been in use
	demoted  bool
	wary     time.Time // until then it is no steady one
	lossy    time.Time // until then it loses packets
}

func (s *subflow) suspected() bool { return !s.suspicion.since.IsZero() }

// suspect looks at all detours of a connection after they were sampled.
func (m *Manager) suspect(c *conn, now time.Time) {
	ended := false
	for _, s := range c.subflows {
		if s.up && s.detour != nil && s.at.Equal(now) && m.here(s) && !s.leaving && c.open() {
			m.lookAt(c, s, now)
			ended = ended || m.isHole(c, s)
		}
	}
	if ended {
		m.endHoles(c, now)
	}
}

func (m *Manager) lookAt(c *conn, s *subflow, now time.Time) {
	lossy, known := s.lossy(now)
	q := &s.suspicion
	if lossy {
		q.lossy = now.Add(lossyFor)
	}
	steady := known && !now.Before(q.wary) && !now.Before(q.lossy)
	holdsUp := c.holdsUp(s, steady, now)
	switch {
	case s.suspected() && (s.segments != q.segments || !q.demoted && s.unasked()):
		m.unsuspect(c, s, now)
		return
	case !s.suspected() && !holdsUp && !c.unlikeItself(s):
		return
	case !s.suspected():
		q.since, q.segments = now, s.segments
		m.do(Probe{c.token, s.local, s.remote, true, s.backup})
	}
	q.holdsUp = q.holdsUp || holdsUp
	q.inUse = q.inUse || holdsUp && c.data.still.Before(s.lastData.Add(inUseUntil))
	if !q.demoted && c.busyBeside(s) && s.toDemote(steady) {
		q.demoted, s.backup = true, true
		m.do(SetBackup{c.token, s.local, s.remote, true})
	}
}

// unsuspect ends a suspicion that was wrong.
func (m *Manager) unsuspect(c *conn, s *subflow, now time.Time) {
	q := &s.suspicion
	m.do(Probe{c.token, s.local, s.remote, false, s.backup})
	if q.demoted {
		s.backup = false
		m.do(SetBackup{c.token, s.local, s.remote, false})
	}
	*q = suspicion{cleared: now, wary: now.Add(unsteady), lossy: q.lossy}
}

// holdsUp reports whether the connection waits for what was sent over s: what it has
// stands still, and others bring what comes after.
func (c *conn) holdsUp(s *subflow, steady bool, now time.Time) bool {
	still, dry := max(stillTwice, s.minRTT), stillTwice
	if !steady {
		still = max(stillFor, trips*s.minRTT)
		dry = still - watchInterval
	}
	if c.data.still.IsZero() || !c.data.still.After(s.suspicion.cleared) || now.Sub(c.data.still) < still || s.dry() < dry {
		return false
	}
	return c.has(func(x *subflow) bool {
		return x != s && x.up && x.at.Equal(now) && x.dataSegments >= x.dataSegmentsAtStill+2 && x.dataEnd > c.data.upTo
	})
}

// unlikeItself reports whether s has been dry for much longer than it was before.
func (c *conn) unlikeItself(s *subflow) bool {
	if s.habits == nil || !s.lastData.After(s.suspicion.cleared) || s.lastData.Sub(s.senses.since) < habitsAfter || s.dry() > watchFor {
		return false
	}
	gap, ok := s.habits.gaps.longest(s.lastData)
	return ok && s.dry() > max(unlikeAfter, unlikeGaps*gap) && c.busyBeside(s)
}

// busyBeside reports whether another subflow of the connection just had data.
func (c *conn) busyBeside(s *subflow) bool {
	return c.has(func(x *subflow) bool {
		return x != s && x.up && x.at.Equal(s.at) && x.dry() < busyWithin
	})
}

// lossy reports whether much of what was sent over s was lost of late, and whether enough
// came to tell.
func (s *subflow) lossy(now time.Time) (lossy, known bool) {
	if s.habits == nil {
		return false, false
	}
	p, known := s.habits.loss.estimate(now, s.minRTT)
	return p > muchLoss, known
}

func (s *subflow) toDemote(steady bool) bool {
	q := &s.suspicion
	if q.holdsUp && q.inUse && steady && s.silent() >= max(silentAfter, trips*s.minRTT) {
		return true
	}
	return s.unansweredFor(demoteUnanswered)
}

// unansweredFor reports whether the answers to n probes are overdue, or to more where
// packets are lost. The first goes out after a second of silence, the others a second apart.
func (s *subflow) unansweredFor(n int) bool {
	if s.suspicion.since.Before(s.suspicion.lossy) {
		n += moreUnanswered
	}
	trip := max(100*time.Millisecond, 2*s.minRTT)
	return s.unanswered >= n && s.silent() >= time.Duration(n)*time.Second+trip
}

// unasked reports whether s is silent for so long that probes would have been counted.
func (s *subflow) unasked() bool { return s.unanswered == 0 && s.silent() >= unaskedFor }

// isHole reports whether it is sure enough that nothing comes through s.
func (m *Manager) isHole(c *conn, s *subflow) bool {
	q := &s.suspicion
	if !s.suspected() || !s.unansweredFor(closeUnanswered) && (!q.demoted || !s.unasked()) {
		return false
	}
	// Else it may be this host that is cut off.
	return c.has(func(x *subflow) bool {
		return x != s && x.up && m.here(x) && x.lastAnswer.After(s.lastAnswer.Add(closeUnanswered*time.Second/2))
	})
}

func (m *Manager) endHoles(c *conn, now time.Time) {
	var holes []*subflow
	for _, s := range c.subflows {
		if s.up && s.detour != nil && s.at.Equal(now) && m.isHole(c, s) {
			holes = append(holes, s)
		}
	}
	m.takeBack(c, now, holes...)
	for _, s := range holes {
		m.failed(s.detour, c.server, errSilent, now.Sub(s.since), now)
		m.blame(s.detour, c.server, &swallows, now)
	}
	m.step(c, now)
}
