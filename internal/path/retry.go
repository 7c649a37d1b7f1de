package path

import (
	"maps"
	"net/netip"
	"time"
)

const (
	// provenAfter is the lifetime from which a subflow's end does not count against its route: the
	// count of failures starts anew.
	provenAfter = 10 * time.Second
	// longestBackoff is the longest wait. Failures are forgotten this long after it.
	longestBackoff = time.Minute
)

// backoff returns the wait after the nth consecutive failure (n from 1), doubling from one second
// to a minute.
func backoff(n int) time.Duration {
	if n > 6 {
		return longestBackoff
	}
	return time.Second << (n - 1)
}

// retry records consecutive failures and when to try again.
type retry struct {
	failures int
	at       time.Time
	err      error // the last one
	refused  bool  // by the waypoint, which must not be asked earlier
}

// failed records one more failure: a subflow that was not established (lived is 0) or did not last,
// or a request that may not be enough.
func (r *retry) failed(err error, lived time.Duration, now time.Time) {
	if lived >= provenAfter || r.over(now) {
		r.failures = 0
	}
	r.failures++
	r.at, r.err = now.Add(backoff(r.failures)), err
}

// last returns when the last failure was recorded.
func (r *retry) last() time.Time {
	if r.failures == 0 {
		return time.Time{}
	}
	return r.at.Add(-backoff(r.failures))
}

// over reports whether the last failure is so old that it no longer counts.
func (r *retry) over(now time.Time) bool { return now.Sub(r.at) > longestBackoff }

// route is one detour towards one server. Success and failure are recorded by route.
type route struct {
	detour DetourID
	server netip.AddrPort
}

// failed records that a subflow over d failed, which began at that time and lived for so long.
// Subflows that fail together count once.
func (m *Manager) failed(d *Detour, server netip.AddrPort, err error, began time.Time, lived time.Duration, now time.Time) {
	key := route{d.ID, server}
	r := m.retries[key]
	if r.refused && now.Before(r.at) || began.Before(r.last()) {
		return
	}
	r.refused = false
	r.failed(err, lived, now)
	m.retries[key] = r
}

// forgetRoutes drops the failures of a detour that is on offer again: the reason for which it was gone
// explains them. A waypoint's refusal stays.
func (m *Manager) forgetRoutes(id DetourID) {
	maps.DeleteFunc(m.retries, func(key route, r retry) bool { return key.detour == id && !r.refused })
}

// countFailures counts the recent failures towards server by waypoint.
func (m *Manager) countFailures(server netip.AddrPort, now time.Time) {
	clear(m.failures)
	if len(m.retries) == 0 {
		return
	}
	for o := range m.leading(server) {
		if r := m.retries[route{o.ID, server}]; r.failures > 0 && !r.over(now) {
			m.failures[o.Waypoint] += r.failures
		}
	}
}

// forgetFailures drops expired failures. It runs only once in a while, so that the cost does not
// grow with their number.
func (m *Manager) forgetFailures(now time.Time) {
	if now.Sub(m.swept) < longestBackoff {
		return
	}
	m.swept = now
	for key, r := range m.retries {
		if r.over(now) {
			delete(m.retries, key)
		}
	}
	for id, t := range m.trials {
		if m.detours[id] == nil && now.Sub(t.left) > longestRest {
			delete(m.trials, id)
		}
	}
	m.forgetBlames(now)
	m.forgetPlaces(now)
	m.forgetTunnels()
}
