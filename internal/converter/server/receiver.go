package server

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/engine"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
)

// Receiver is the front of a member that listens. Converters bring it the connections that they have taken for the member.
// The mark in a cookie is not the mark of a socket here, but the number of the service for which the cookie was sealed.
type Receiver struct {
	front    *Front
	services atomic.Pointer[map[uint32]netip.AddrPort]
}

// NewReceiver returns a front that accepts cookies sealed with the key. It has no services yet.
func NewReceiver(key cookie.Key) *Receiver {
	r := &Receiver{front: New(key)}
	r.front.route = r.toService
	r.SetServices(nil)
	return r
}

// SetKey changes the key; see Front.SetKey.
func (r *Receiver) SetKey(key cookie.Key) { r.front.SetKey(key) }

// SetServices replaces the services, by their numbers.
func (r *Receiver) SetServices(services map[uint32]netip.AddrPort) { r.services.Store(&services) }

// Open implements engine.Front.
func (r *Receiver) Open(a engine.Accepted) (engine.Opening, error) { return r.front.Open(a) }

// toService is a router that connects to the service of a cookie. It uses TCP, because the service is on this host or
// near it. It ignores the stranger's address, because the converter decides who may call.
func (r *Receiver) toService(_ netip.AddrPort, number uint32, _ bool, _ time.Time) (*engine.Dial, *rfc8803.Error) {
	to, ok := (*r.services.Load())[number]
	if !ok {
		return nil, &rfc8803.Error{Code: rfc8803.NotAuthorized}
	}
	return &engine.Dial{To: to, Timeout: serviceTimeout}, nil
}

// serviceTimeout bounds connecting to a service. It is less than the converter waits.
const serviceTimeout = wayTimeout - time.Second
