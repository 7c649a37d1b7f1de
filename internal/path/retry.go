package path

import (
	"net/netip"
	"time"
)

const (
	// provenAfter is the life after which a subflow's end is no sign that its
	// route is bad: counting failures begins anew.
	provenAfter = 10 * time.Second
	// longestBackoff is also how long after it failures are remembered.
	longestBackoff = time.Minute
)

// backoff is how long to wait after the nth failure in a row (n from 1):
// doubling from one second to a minute.
func backoff(n int) time.Duration {
	if n > 6 {
		return longestBackoff
	}
	return time.Second << (n - 1)
}

// retry is a row of failures, and when to try again.
type retry struct {
	failures int
	at       time.Time
	err      error // the last one
	refused  bool  // by the waypoint, which knows better than to be tried before
}

// failed notes one more: a subflow that did not come up (lived is 0) or did not
// stay, or a request that may not be enough.
func (r *retry) failed(err error, lived time.Duration, now time.Time) {
	if lived >= provenAfter || r.over(now) {
		r.failures = 0
	}
	r.failures++
	r.at, r.err = now.Add(backoff(r.failures)), err
}

// over: nothing failed for so long that nothing is known any more.
func (r *retry) over(now time.Time) bool { return now.Sub(r.at) > longestBackoff }

// route is one detour towards one server, the unit of success and failure.
type route struct {
	detour DetourID
	server netip.AddrPort
}

func (m *Manager) failed(d *Detour, server netip.AddrPort, err error, lived time.Duration, now time.Time) {
	key := route{d.ID, server}
	r := m.retries[key]
	if r.refused && now.Before(r.at) {
		return
	}
	r.refused = false
	r.failed(err, lived, now)
	m.retries[key] = r
}

// forgetFailures drops what is over. It looks once in a while, so that many
// failures cost no more than few.
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
