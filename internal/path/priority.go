package path

import (
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// A subflow's priority is told to the peer with MP_PRIO, in a segment that is not retransmitted, and
// nothing says that it arrived (docs/kernel-behaviour.md). Therefore:
//
//   - A demotion is told again when the peer still sends new data on the subflow, after what it
//     had in flight and in its queue must have come. The wait doubles each time: the peer may have no
//     other path that works.
//   - A promotion cannot be seen not to have worked, as the peer may have nothing to send. It is
//     told a few times, until data moves on the subflow, and more often as long as data moves on others only.
//   - Linux may refuse a change just after the subflow came up. Then it is told again.

const (
	// takesPriority is the time after its establishment from which a subflow takes a change for sure.
	takesPriority = 300 * time.Millisecond
	// drains is the longest time that a peer takes to send its queue on a subflow. It was 0.35 to 0.55 s on
	// paths of 10 Mbit/s.
	drains = time.Second
	// promotions is the number of times that a promotion is told, and mostPromotions if data moves elsewhere. Where 30 % of
	// the acknowledgements are lost, one promotion in 15,000 is lost that often.
	promotions     = 3
	mostPromotions = 8
	// longestDrain bounds the wait before a demotion is told again.
	longestDrain = 32 * time.Second
)

// told records when and how often the peer was told of a subflow's present priority.
type told struct {
	at    time.Time
	times int
}

// setBackup changes a subflow's priority.
func (t turn) setBackup(s *subflow, backup bool) {
	s.backup, s.told = backup, told{}
	if s.habits != nil {
		s.habits.fall, s.habits.steady = measure.Fall{}, measure.Steady{}
	}
	t.tellPriority(s)
}

func (t turn) tellPriority(s *subflow) {
	s.told = told{t.now, s.told.times + 1}
	t.out.do(SetBackup{t.token, s.local, s.remote, s.backup})
}

// tellAgainAt returns when a promotion is told again, or zero if it is not.
func (c *conn) tellAgainAt(s *subflow) (at time.Time) {
	if !s.up || s.backup || s.told.times == 0 || s.told.times >= mostPromotions || s.moved.After(s.told.at) {
		return at
	}
	if s.told.times >= promotions && !c.moved.After(s.told.at) {
		return at
	}
	at = s.told.at.Add(takesPriority << (s.told.times - 1))
	if first := s.since.Add(takesPriority); at.Before(first) {
		return first
	}
	return at
}

// tellPromotions tells the peer again of promotions that it may not have heard of.
func (t turn) tellPromotions() {
	for _, s := range t.subflows {
		t.tellPromotion(s)
	}
}

func (t turn) tellPromotion(s *subflow) {
	if at := t.tellAgainAt(s); !at.IsZero() && !t.now.Before(at) {
		t.tellPriority(s)
	}
}

// tellDemotion tells the peer again of a demotion, after new data arrived on the subflow.
func (t turn) tellDemotion(s *subflow) {
	wait := min(max(drains, 4*s.minRTT)<<min(max(s.told.times-1, 0), 8), longestDrain)
	if !s.up || !s.backup || s.told.times == 0 || t.now.Sub(s.told.at) < wait {
		return
	}
	// Otherwise the peer uses it because it must.
	if t.has(func(x *subflow) bool { return x != s && x.up && !x.backup && x.moved.After(s.told.at) }) {
		t.tellPriority(s)
	}
}
