package path

import (
	"fmt"
	"slices"
	"time"
)

// spending counts what the connections of each Rule with quotas carried over each path.
type spending map[*Rule]*usedQuota

type usedQuota struct {
	since time.Time // when the quotas were last full
	bytes map[string]uint64
}

// add counts bytes on a path, and reports whether they used up its quota.
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
	return before < quota && before+bytes >= quota
}

// over reports whether a path's quota is used up, and until when; zero: for good.
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

// pathName returns the name by which the operator knows a subflow's path: its waypoint or its uplink.
func (of *offers) pathName(s *subflow) string {
	if s.detour != nil && s.detour.Waypoint != "" {
		return s.detour.Waypoint
	}
	return of.uplinkOf(s)
}

// spend counts what a subflow carried. If that was the rest of its path's quota, all connections of the rule make
// do without it.
func (m *Manager) spend(t turn, s *subflow, bytes uint64) {
	if len(t.rule.Quota) == 0 || !m.detours.spending.add(t.rule, m.detours.pathName(s), bytes, t.now) {
		return
	}
	for _, c := range m.conns.where(func(c *conn) bool { return c.rule == t.rule }) {
		m.again = append(m.again, c.token)
	}
}

// isSpent reports whether the quota of a subflow's path is used up.
func (k *detours) isSpent(t turn, s *subflow) bool {
	if len(t.rule.Quota) == 0 {
		return false
	}
	over, _ := k.spending.over(t.rule, k.pathName(s), t.now)
	return over
}

// spareSpent has subflows stand by whose path has no quota left, if another carries.
func (m *Manager) spareSpent(t turn, inUse []*subflow, roles []Role) {
	if len(t.rule.Quota) == 0 {
		return
	}
	spends := func(s *subflow) bool { return m.detours.isSpent(t, s) }
	for i, s := range inUse {
		if s.up && !spends(s) && !t.stuck(s) && roles[i] == Carries && s.stayed(t.now) {
			for j, x := range inUse {
				if roles[j] == Carries && spends(x) {
					roles[j] = StandsBy
				}
			}
			return
		}
	}
}

// quotaFull returns when a quota of the connection's paths is full again, or zero.
func (m *Manager) quotaFull(t turn) time.Time {
	if s := m.detours.spending[t.rule]; s != nil && t.rule.QuotaEvery > 0 {
		return s.since.Add(t.rule.QuotaEvery)
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
