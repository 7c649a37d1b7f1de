package ask

import (
	"net/netip"
	"time"
)

// Limits of Expectations.
const (
	maxExpected = 16384
	expectedFor = 10 * time.Second
)

// Expectations remembers the servers of announced connections, for a relay's [Handler]. It is not safe for concurrent use.
type Expectations struct {
	servers map[netip.AddrPort]expectation
	order   []expiry // oldest first
}

type expectation struct {
	server netip.AddrPort
	user   uint32
	until  time.Time
}

// expiry is the time at which an expectation ends if its connection has not come.
type expiry struct {
	local netip.AddrPort
	until time.Time
}

// Add notes that a connection from local is for server. It reports false if too many connections are expected, or
// already one from local. Two sockets may have the same port if both set SO_REUSEADDR.
func (e *Expectations) Add(p Process, local, server netip.AddrPort, now time.Time) bool {
	if e.servers == nil {
		e.servers = map[netip.AddrPort]expectation{}
	}
	e.expire(now)
	if _, ok := e.servers[local]; ok || len(e.servers) >= maxExpected {
		return false
	}
	until := now.Add(expectedFor)
	e.servers[local] = expectation{server: server, user: p.UID, until: until}
	e.order = append(e.order, expiry{local, until})
	return true
}

func (e *Expectations) expire(now time.Time) {
	for len(e.order) > 0 {
		oldest := e.order[0]
		found, ok := e.servers[oldest.local]
		came := !ok || found.until.After(oldest.until)
		if !came && now.Before(oldest.until) {
			return
		}
		if !came {
			delete(e.servers, oldest.local)
		}
		e.order = e.order[1:]
	}
}

// Take returns the server of a connection that has come from local, and the user whose process announced it. The relay
// must serve it only if it belongs to this user, or if the user is root.
func (e *Expectations) Take(local netip.AddrPort, now time.Time) (server netip.AddrPort, user uint32, ok bool) {
	found, ok := e.servers[local]
	delete(e.servers, local)
	return found.server, found.user, ok && now.Before(found.until)
}
