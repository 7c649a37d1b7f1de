package server

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/engine"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
)

// Receiver is the front of a member that listens: converters bring it the connections that they have taken for the member.
// The mark in a cookie is no socket's here, but the number of the service that it was sealed for.
type Receiver struct {
	front    *Front
	services atomic.Pointer[map[uint32]netip.AddrPort]
}

// NewReceiver returns a front that accepts cookies which were sealed with the key, and has no services yet.
func NewReceiver(key cookie.Key) *Receiver {
	r := &Receiver{front: New(key)}
	r.front.route = r.toService
	r.SetServices(nil)
	return r
}

// SetKey is Front's.
func (r *Receiver) SetKey(key cookie.Key) { r.front.SetKey(key) }

// SetServices replaces the services, by their numbers.
func (r *Receiver) SetServices(services map[uint32]netip.AddrPort) { r.services.Store(&services) }

// Open implements engine.Front.
func (r *Receiver) Open(a engine.Accepted) (engine.Opening, error) { return r.front.Open(a) }

// toService is a router that connects to the service of a cookie, by TCP: it is on this host or near it. Who called, from, is
// not looked at, because the cookie is the converter's.
func (r *Receiver) toService(_ netip.AddrPort, number uint32, _ bool, _ time.Time) (*engine.Dial, *rfc8803.Error) {
	to, ok := (*r.services.Load())[number]
	if !ok {
		return nil, &rfc8803.Error{Code: rfc8803.NotAuthorized}
	}
	return &engine.Dial{To: to, Timeout: serviceTimeout}, nil
}

// serviceTimeout is less than the converter waits.
const serviceTimeout = wayTimeout - time.Second
