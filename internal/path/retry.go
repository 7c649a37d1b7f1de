package path

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"time"
)

const (
	// provenAfter is the lifetime from which the end of a subflow does not add to earlier failures of its route.
	provenAfter = 10 * time.Second
	// longestBackoff is the longest wait. A failure is forgotten that long after its wait.
	longestBackoff = time.Minute
)

// backoff returns the wait after n consecutive failures (n from 1). It doubles from one second to one minute.
func backoff(n int) time.Duration {
	if n > 6 {
		return longestBackoff
	}
	return time.Second << (n - 1)
}

// retry counts consecutive failures and holds the time of the next try.
type retry struct {
	failures int
	at       time.Time
}

// failed records one more failure. lived is 0 for a subflow that was not established.
func (r *retry) failed(lived time.Duration, now time.Time) {
	if lived >= provenAfter || r.over(now) {
		r.failures = 0
	}
	r.failures++
	r.at = now.Add(backoff(r.failures))
}

// last returns when the last failure was recorded.
func (r *retry) last() time.Time {
	if r.failures == 0 {
		return time.Time{}
	}
	return r.at.Add(-backoff(r.failures))
}

// over reports whether the last failure no longer counts.
func (r *retry) over(now time.Time) bool { return now.Sub(r.at) > longestBackoff }

// route is one detour towards one server. Failures are counted by route.
type route struct {
	detour DetourID
	server netip.AddrPort
}

// failures records the failures of each route.
type failures map[route]failure

// failure records the failures of one route.
type failure struct {
	retry
	err     error // the last one
	refused bool  // the waypoint refused, and must not be asked before at
}

// of returns the failures of a detour towards a server.
func (f failures) of(id DetourID, server netip.AddrPort) failure { return f[route{id, server}] }

// add records the failure of a subflow over d that began at began and lived for lived. Subflows that fail together
// count once.
func (f failures) add(d *Detour, server netip.AddrPort, err error, began time.Time, lived time.Duration, now time.Time) {
	key := route{d.ID, server}
	r := f[key]
	if r.refused && now.Before(r.at) || began.Before(r.last()) {
		return
	}
	r.err, r.refused = err, false
	r.failed(lived, now)
	f[key] = r
}

// forgive drops the failures of joins over a detour that is on offer again, because they came from what made it
// unavailable. Refusals by the waypoint and failures of established subflows stay.
func (f failures) forgive(id DetourID) {
	maps.DeleteFunc(f, func(key route, r failure) bool {
		return key.detour == id && !r.refused && !errors.Is(r.err, errStalled) && !errors.Is(r.err, errSilent) && !errors.Is(r.err, errOverdue)
	})
}

// forget drops expired failures.
func (f failures) forget(now time.Time) {
	maps.DeleteFunc(f, func(_ route, r failure) bool { return r.over(now) })
}

// worst returns, for each detour that rests after failures, the server towards which it failed most.
func (f failures) worst(now time.Time) map[DetourID]netip.AddrPort {
	worst := make(map[DetourID]netip.AddrPort)
	for key, r := range f {
		old, ok := worst[key.detour]
		w := f.of(key.detour, old)
		if r.at.After(now) && (!ok || cmp.Or(cmp.Compare(r.failures, w.failures), r.at.Compare(w.at), key.server.Compare(old)) > 0) {
			worst[key.detour] = key.server
		}
	}
	return worst
}
