package nat

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/nat/stun"
)

// world is an Internet in memory. Each of its hosts is behind a box that translates and filters.
type world struct {
	t     *testing.T
	mu    sync.Mutex
	hosts map[netip.Addr]*host // by their external addresses
	next  uint16
}

// host is one UDP port behind a box.
type host struct {
	*Prober
	world   *world
	inner   netip.AddrPort
	outside netip.Addr
	is      Found      // what the box does
	down    bool       // it does not answer
	lies    netip.Addr // the address at which it claims to see others; invalid: it tells the truth
	maps    map[netip.AddrPort]uint16
	sends   map[uint16][]netip.AddrPort // destinations by external port
	inbox   chan packet
}

type packet struct {
	from netip.AddrPort
	data []byte
}

const port = 45672

// newWorld returns a world that ends with the test.
func newWorld(t *testing.T) *world {
	return &world{t: t, hosts: make(map[netip.Addr]*host), next: 20000}
}

// add adds a host with a running agent.
func (w *world) add(addr string, is Found) *host {
	outside := netip.MustParseAddr(addr)
	h := &host{
		world: w, outside: outside, inner: netip.AddrPortFrom(outside, port), is: is,
		maps: make(map[netip.AddrPort]uint16), sends: make(map[uint16][]netip.AddrPort), inbox: make(chan packet, 16),
	}
	if is.Mapping != Untranslated {
		h.inner = netip.MustParseAddrPort("192.168.1.2:45672")
	}
	h.Prober = NewProber(h, otherPort{h}, slog.New(slog.DiscardHandler))
	w.hosts[outside] = h
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- h.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
	return h
}

// otherPort is a second port of a host.
type otherPort struct{ *host }

func (p otherPort) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	p.send(netip.AddrPortFrom(p.inner.Addr(), 55555), b, to)
	return len(b), nil
}

// at returns the address at which members reach the host.
func (h *host) at() netip.AddrPort { return netip.AddrPortFrom(h.outside, port) }

func (h *host) ReadOther(ctx context.Context, b []byte) (int, netip.AddrPort, error) {
	select {
	case p := <-h.inbox:
		return copy(b, p.data), p.from, nil
	case <-ctx.Done():
		return 0, netip.AddrPort{}, ctx.Err()
	}
}

func (h *host) WriteOther(b []byte, to netip.AddrPort) error {
	h.send(h.inner, b, to)
	return nil
}

// send passes a packet through both boxes.
func (h *host) send(from netip.AddrPort, b []byte, to netip.AddrPort) {
	w := h.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.down || h.is.Mapping == NoWayOut {
		return
	}
	source := h.translate(from, to)
	h.sends[source.Port()] = append(h.sends[source.Port()], to)
	target := w.hosts[to.Addr()]
	if target == nil || !target.admits(source, to.Port()) {
		return
	}
	data := slices.Clone(b)
	if m, err := stun.Parse(b); err == nil && !m.Request && h.lies.IsValid() {
		m.Seen = netip.AddrPortFrom(h.lies, m.Seen.Port())
		data = m.Append(nil)
	}
	time.AfterFunc(10*time.Millisecond, func() { target.inbox <- packet{source, data} })
}

// translate returns a packet's source as others see it.
func (h *host) translate(from, to netip.AddrPort) netip.AddrPort {
	key := from
	switch h.is.Mapping {
	case Untranslated:
		return from
	case Dependent:
		key = to
	case Independent:
		if from == h.inner {
			return h.at()
		}
	}
	if h.maps[key] == 0 {
		h.world.next++
		h.maps[key] = h.world.next
	}
	return netip.AddrPortFrom(h.outside, h.maps[key])
}

// admits reports whether the box lets a packet in to an external port.
func (h *host) admits(from netip.AddrPort, to uint16) bool {
	known := to == port && h.is.Mapping != Dependent
	for _, p := range h.maps {
		known = known || p == to
	}
	if !known || h.down {
		return false
	}
	sent := func(same func(netip.AddrPort) bool) bool { return slices.ContainsFunc(h.sends[to], same) }
	switch h.is.Filtering {
	case PassesAll:
		return h.is.Mapping == Untranslated || sent(func(netip.AddrPort) bool { return true })
	case PassesAddresses:
		return sent(func(p netip.AddrPort) bool { return p.Addr() == from.Addr() })
	}
	return sent(func(p netip.AddrPort) bool { return p == from })
}
