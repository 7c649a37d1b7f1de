package path

import "time"

// This file tells whether the direct path works. Its subflows are not ended for their silence, unless messages are stuck on
// them (dead.go). So they stay even if it does not work. silence.go probes them, and here they are mute if they do not answer.

const (
	// directKnown is the time since the direct path was last heard for which it counts as working.
	directKnown = 20 * time.Second
	// muteAsks is a time in which a probe is sent, but not two.
	muteAsks = 500 * time.Millisecond
	// muteRests is the longest time between two probes of a mute path. The kernel ends a subflow after 127 probes without
	// an answer, which then takes an hour. After that, joins show whether the path works (retry.go).
	muteRests = 30 * time.Second
)

// DirectState is the state of this host's direct path.
type DirectState struct {
	Word DirectWord
	// Since is the time at which something last came over a lost direct path. Zero: it is not lost.
	Since time.Time
	// Conns is the number of connections that go on without a lost direct path.
	Conns int
}

// DirectWord is the state of the direct path as a word.
type DirectWord string

const (
	// DirectUnknown means that no connection used it lately.
	DirectUnknown DirectWord = ""
	// DirectUp means that something came over it lately.
	DirectUp DirectWord = "up"
	// DirectLost means that nothing comes over it any more, while connections are busy on other paths.
	DirectLost DirectWord = "lost"
)

// mute finds out whether a direct path that is suspected is mute: its probes or what the server should send again do not
// arrive, while another subflow shows that this host is not cut off. It reports whether to stop probing. A path that is
// mute already gets one probe at a time.
func (t turn) mute(s *subflow) bool {
	switch {
	case !s.direct || !s.suspected():
		return false
	case s.isMute():
		return t.now.Sub(s.suspicion.since) >= muteAsks+s.answersIn()
	case !s.unansweredFor(unheardUnanswered) && !s.isMissing() || !t.shownBesides(s):
		return false
	}
	s.suspicion.mute = s.lastAnswer()
	return true
}

// restsMute reports whether a mute direct path is not probed now. The time between two probes doubles, up to muteRests.
func (s *subflow) restsMute(now time.Time) bool {
	q := s.doubts()
	return !q.mute.IsZero() && now.Sub(q.cleared) < min(q.cleared.Sub(q.mute), muteRests)
}

// isMute reports whether the subflow is a direct path that does not answer.
func (s *subflow) isMute() bool { return !s.doubts().mute.IsZero() }

// hear ends that the subflow is mute if something arrived since its last sample.
func (s *subflow) hear(sm *Sample) {
	if s.isMute() && sm.SegsIn != s.segments {
		s.suspicion.mute = time.Time{}
	}
}

// directState returns the state of the direct path. If something came over it to one connection since another last heard
// it, only the other's server is out of reach on it. An idle connection shows nothing.
func (m *Manager) directState(now time.Time) (d DirectState) {
	var heard time.Time
	for _, c := range m.conns.byToken {
		if !c.managed() || c.isExcluded() {
			continue
		}
		for _, s := range c.subflows {
			switch {
			case !s.direct || !s.up || s.at.IsZero() || !m.host.hasSource(s):
			case !s.isMute():
				heard = later(heard, s.lastAnswer())
			case c.has(func(x *subflow) bool { return x != s && x.up && now.Sub(x.moved) < busyFor }):
				d.Since = later(d.Since, s.suspicion.mute)
				d.Conns++
			}
		}
	}
	switch {
	case d.Conns > 0 && !heard.After(d.Since.Add(closeUnanswered*time.Second/2)):
		d.Word = DirectLost
		return d
	case now.Sub(heard) < directKnown:
		return DirectState{Word: DirectUp}
	}
	return DirectState{}
}
