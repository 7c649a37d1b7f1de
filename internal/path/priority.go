package path

import (
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// MP_PRIO tells the peer a subflow's priority. It is sent in a segment that is not retransmitted, and nothing shows
// that it arrived (docs/kernel-behaviour.md). Therefore:
//
//   - A demotion is sent again if new data still moves on the subflow after the sender must have emptied its queue.
//     The wait doubles each time, because the peer may have no other path that works.
//   - Nothing shows that a promotion got lost, because the peer may have nothing to send. It is sent a few times,
//     until data moves on the subflow, and more often as long as data moves only on other subflows.
//   - Linux refuses a change until the subflow is fully established, a round trip after it came up. So a change is sent
//     again once the subflow is surely older than that.

const (
	// takesPriority is the least age of a subflow from which the kernel surely accepts a change.
	takesPriority = 300 * time.Millisecond
	// drains is the longest time that a peer needs to send its queue on a subflow. It took 0.35 to 0.55 s on paths of
	// 10 Mbit/s.
	drains = time.Second
	// promotions is the number of times that a promotion is sent, and mostPromotions that number if data moves on
	// other subflows. Where 30 % of the acknowledgements are lost, all mostPromotions are lost once in 15,000 times.
	promotions     = 3
	mostPromotions = 8
	// longestDrain bounds the wait before a demotion is sent again.
	longestDrain = 32 * time.Second
)

// told records when and how often the subflow's present priority was sent to the peer.
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

// takesPriorityAfter returns the age from which the kernel surely accepts a change of the subflow's priority: two round trips,
// because the join took at least one.
func (s *subflow) takesPriorityAfter() time.Duration {
	return max(takesPriority, 2*min(s.took, synAgain))
}

// tellAgainAt returns when a priority is sent again even if nothing shows that it got lost, or zero if it is not.
func (c *conn) tellAgainAt(s *subflow) (at time.Time) {
	takes := s.since.Add(s.takesPriorityAfter())
	switch {
	case !s.up || s.told.times == 0:
		return at
	case s.backup:
		if s.told.at.Before(takes) {
			return takes
		}
		return at
	case s.told.times >= mostPromotions || s.moved.After(s.told.at) || s.told.times >= promotions && !c.moved.After(s.told.at):
		return at
	}
	return later(takes, s.told.at.Add(takesPriority<<(s.told.times-1)))
}

// tellAgain sends the priorities again that are due.
func (t turn) tellAgain() {
	for _, s := range t.subflows {
		t.tellPriorityAgain(s)
	}
}

func (t turn) tellPriorityAgain(s *subflow) {
	if at := t.tellAgainAt(s); !at.IsZero() && !t.now.Before(at) {
		t.tellPriority(s)
	}
}

// tellDemotion sends a demotion again if new data moved on the subflow although another subflow worked.
func (t turn) tellDemotion(s *subflow) {
	wait := min(max(drains, 4*s.minRTT)<<min(max(s.told.times-1, 0), 8), longestDrain)
	if !s.up || !s.backup || s.told.times == 0 || t.now.Sub(s.told.at) < wait {
		return
	}
	// Otherwise the peer uses the subflow because it has no other.
	if t.has(func(x *subflow) bool { return x != s && x.up && !x.backup && x.moved.After(s.told.at) }) {
		t.tellPriority(s)
	}
}
