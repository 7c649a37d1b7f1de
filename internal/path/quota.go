package path

import (
	"fmt"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/policy"
)

// spending counts what the connections of each Rule with quotas carried over each path.
type spending map[*Rule]*usedQuota

type usedQuota struct {
	since time.Time // when the quotas were last refilled
	bytes map[string]uint64
}

// add counts bytes on a path. It reports whether they used up the path's quota, or reached nearShare of it where that
// limits the path.
func (sp spending) add(r *Rule, path string, bytes uint64, now time.Time) (over bool) {
	quota, limited := r.Quota[path]
	if !limited || bytes == 0 {
		return false
	}
	s := sp[r]
	if s == nil || r.QuotaEvery > 0 && now.Sub(s.since) >= r.QuotaEvery {
		s = &usedQuota{now, make(map[string]uint64)}
		sp[r] = s
	}
	before := s.bytes[path]
	s.bytes[path] = before + bytes
	near := uint64(nearShare * float64(quota))
	return before < quota && before+bytes >= quota || r.NearQuota.On && before < near && before+bytes >= near
}

// share returns the used share of a path's quota.
func (sp spending) share(r *Rule, path string, now time.Time) float64 {
	s := sp[r]
	if s == nil || r.Quota[path] == 0 || r.QuotaEvery > 0 && now.Sub(s.since) >= r.QuotaEvery {
		return 0
	}
	return float64(s.bytes[path]) / float64(r.Quota[path])
}

// over reports whether a path's quota is used up, and until when. A zero time means for good.
func (sp spending) over(r *Rule, path string, now time.Time) (over bool, until time.Time) {
	quota, limited := r.Quota[path]
	s := sp[r]
	if !limited || s == nil || s.bytes[path] < quota {
		return false, until
	}
	if r.QuotaEvery > 0 {
		until = s.since.Add(r.QuotaEvery)
	}
	return until.IsZero() || now.Before(until), until
}

// pathName returns the operator's name for a subflow's path: its waypoint or its uplink.
func (of *offers) pathName(s *subflow) string {
	if s.detour != nil && s.detour.Waypoint != "" {
		return s.detour.Waypoint
	}
	return of.uplinkOf(s)
}

// spend counts what a subflow carried. If that changes what its path may carry, all connections of the rule are
// stepped.
func (m *Manager) spend(t turn, s *subflow, bytes uint64) {
	if len(t.rule.Quota) == 0 || !m.detours.spending.add(t.rule, m.detours.pathName(s), bytes, t.now) {
		return
	}
	for _, c := range m.conns.where(func(c *conn) bool { return c.rule == t.rule }) {
		m.conns.stepAgain(c.token)
	}
}

// isSpent reports whether the quota of a subflow's path is used up, the path's limit is 0, or its limit is about to
// begin.
func (k *detours) isSpent(t turn, s *subflow) bool {
	if !t.rule.spares() {
		return false
	}
	path := k.pathName(s)
	over, _ := k.spending.over(t.rule, path, t.now)
	return over || s.empties || k.spending.limitOf(t.rule, path, t.now).closes()
}

// spares reports whether the rule may have paths that are not to be used while another works.
func (r *Rule) spares() bool { return len(r.Quota) > 0 || len(r.Limits) > 0 }

// spareSpent lets subflows stand by whose path is spent, if another subflow carries.
func (m *Manager) spareSpent(t turn, inUse []*subflow, roles []policy.Role) {
	if !t.rule.spares() {
		return
	}
	spends := func(s *subflow) bool { return m.detours.isSpent(t, s) }
	for i, s := range inUse {
		if s.up && !spends(s) && !t.stuck(s) && roles[i] == policy.Carries && s.stayed(t.now) {
			for j, x := range inUse {
				if roles[j] == policy.Carries && spends(x) {
					roles[j] = policy.StandsBy
				}
			}
			return
		}
	}
}

// quotaFull returns the time at which the quotas of the connection's rule are full again, or zero.
func (m *Manager) quotaFull(t turn) time.Time { return m.detours.spending.renews(t.rule) }

// renews returns the time at which the quotas of a rule are full again, or zero.
func (sp spending) renews(r *Rule) time.Time {
	if s := sp[r]; s != nil && r.QuotaEvery > 0 {
		return s.since.Add(r.QuotaEvery)
	}
	return time.Time{}
}

// note describes the paths of a rule that have no quota left.
func (sp spending) note(r *Rule, now time.Time) string {
	var paths []string
	for path := range r.Quota {
		if over, _ := sp.over(r, path, now); over {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	switch len(paths) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("the quota of %s is used up", paths[0])
	default:
		return fmt.Sprintf("the quotas of %v are used up", paths)
	}
}
