package membership

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/enrol"
)

// enforcing is the loop's state of the confirmations of roots and lists. By these, dcol expel reports which waypoints refuse a
// member.
type enforcing struct {
	hash string    // of roots and lists; empty: this host enforces nothing
	at   time.Time // when to confirm it; zero: it is confirmed
}

const (
	// tellSpread is the delay for each member of the collective by which confirmations are spread, because all waypoints enforce
	// a new list at the same time.
	tellSpread  = 100 * time.Microsecond
	longestTell = 2 * time.Second // an expulsion should be confirmed within five
)

// Enforced confirms to the coordinators that this waypoint gives nothing to members revoked in t.
func (m *Membership) Enforced(t *collective.Trust) {
	hash := enrol.HashTrust(t)
	m.tell(func(now time.Time) {
		spread := min(time.Duration(m.keeper.State().Members)*tellSpread, longestTell)
		m.enforced = enforcing{hash, now.Add(rand.N(spread + 1))}
	})
}

// again confirms once more: the coordinators may be others, or have restarted.
func (e *enforcing) again(now time.Time) {
	if e.hash != "" && e.at.IsZero() {
		e.at = now
	}
}

// enforcedDue confirms once in each connection. The message is lost only if the connection is.
func (m *Membership) enforcedDue(_ context.Context, now time.Time) time.Time {
	e := &m.enforced
	if e.at.IsZero() || !m.connected() {
		return time.Time{}
	}
	if now.Before(e.at) {
		return e.at
	}
	if err := m.line.Load().Tell(enrol.TopicEnforced, []byte(e.hash)); err != nil {
		m.log.Debug("membership: what this waypoint enforces is not confirmed", "err", err)
		e.at = now.Add(firstAskPause)
		return e.at
	}
	e.at = time.Time{}
	return e.at
}
