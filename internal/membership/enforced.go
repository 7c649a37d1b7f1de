package membership

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/enrol"
)

// enforcing is what the coordinators are told that this waypoint enforces, as the loop sees it: whoever expels a
// member can then say which waypoints refuse it.
type enforcing struct {
	hash string    // of roots and lists; empty: this host enforces nothing
	at   time.Time // when to tell it; zero: it was told
}

const (
	// tellSpread is for each member there is: all waypoints enforce another list at once, and a coordinator has
	// other things to do.
	tellSpread  = 100 * time.Microsecond
	longestTell = 2 * time.Second // an expulsion is to be known to be enforced within five
)

// Enforced says that this waypoint gives nothing to anybody any more who is not to have it by t.
func (m *Membership) Enforced(t *collective.Trust) {
	hash := enrol.HashTrust(t)
	m.tell(func(now time.Time) {
		spread := min(time.Duration(m.keeper.State().Members)*tellSpread, longestTell)
		m.enforced = enforcing{hash, now.Add(rand.N(spread + 1))}
	})
}

// again has it told once more, to coordinators that may be others, or have forgotten.
func (e *enforcing) again(now time.Time) {
	if e.hash != "" && e.at.IsZero() {
		e.at = now
	}
}

// enforcedDue tells it, once in each connection. That is not lost but with the connection.
func (m *Membership) enforcedDue(_ context.Context, now time.Time) time.Time {
	e := &m.enforced
	if e.at.IsZero() || !m.connected() {
		return time.Time{}
	}
	if now.Before(e.at) {
		return e.at
	}
	if err := m.line.Load().Tell(enrol.TopicEnforced, []byte(e.hash)); err != nil {
		m.log.Debug("membership: what this waypoint enforces is not told", "err", err)
		e.at = now.Add(firstAskPause)
		return e.at
	}
	e.at = time.Time{}
	return e.at
}
