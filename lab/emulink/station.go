package emulink

import (
	"net/netip"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/lab/middlebox"
)

// End describes one end of a link.
type End struct {
	Host string // "" if nothing handles packets there
	// Addresses are the host's IPv4 and IPv6 address on this link.
	Addresses [2]netip.Addr
}

// Station configures the middlebox and the router that handle packets at a host, beside the host's kernel.
type Station struct {
	Host      string
	Addresses []netip.Addr // all of the host
	Middlebox middlebox.Kind
	Quotes    middlebox.Quotes
	ICMP      middlebox.ICMP
	Seed      uint64
}

// station is the state of a Station. Only the loop's thread uses it.
type station struct {
	box    *middlebox.Box    // nil if there is none
	router *middlebox.Router // nil if the host's kernel answers
}

// set replaces the middlebox and the router of a host.
func (s *station) set(to Station) {
	*s = station{}
	if to.Middlebox != middlebox.None {
		s.box = middlebox.New(to.Middlebox, to.Addresses, to.Seed)
	}
	if to.Quotes != middlebox.QuoteKernel || to.ICMP != middlebox.ICMPAlways {
		s.router = middlebox.NewRouter(to.Quotes, to.ICMP, to.Addresses)
	}
	if s.box != nil || s.router != nil {
		const normal = 100
		debug.SetGCPercent(normal) // middleboxes and routers allocate
	}
}

// SetStation replaces the middlebox and the router of a host.
func (s *service) SetStation(to Station, _ *struct{}) error {
	return s.loop.do(func(int64) {
		for i := range s.loop.ports {
			if p := &s.loop.ports[i]; p.nearHost == to.Host && p.near != nil {
				p.near.set(to)
				return
			}
		}
	})
}

// pass lets the middlebox of the sending host handle a packet that a device has just sent to the link. handled is true
// if the caller must not forward the packet any more.
func (p *port) pass(now int64, packet []byte) (handled bool) {
	if p.near == nil || p.near.box == nil {
		return false
	}
	on, back := p.near.box.Pass(packet)
	for _, b := range back {
		// Write it as if it had come over this link. The host's kernel forwards it to its destination.
		if _, err := unix.Write(p.in, b); err != nil {
			p.stats.WriteErrors++
		}
	}
	if len(on) == 1 && len(back) == 0 && &on[0][0] == &packet[0] {
		return false
	}
	for _, b := range on {
		p.inject(now, b)
	}
	return true
}

// inject queues a packet that no device has sent.
func (p *port) inject(now int64, b []byte) {
	space := p.space()
	if space == nil || len(b) > len(space) {
		p.stats.RingDrops++
		return
	}
	copy(space, b)
	p.offer(now, len(b))
}

// expire lets the router at the link's far end answer a packet whose time to live ends there. expired is true if the
// packet must not be delivered.
func (p *port) expire(now int64, packet []byte) (expired bool) {
	if p.far == nil || p.far.router == nil {
		return false
	}
	reply, expired := p.far.router.Expire(packet, p.farAddr, time.Duration(now))
	if reply != nil {
		p.back.inject(now, reply)
	}
	return expired
}
