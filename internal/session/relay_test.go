package session

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
)

// relay is a NAT on loopback between one client and a waypoint. It can be cut, can lose datagrams, and can use another
// port, as NATs do.
type relay struct {
	at  netip.AddrPort
	cut atomic.Bool
	// percent of the datagrams towards the waypoint are lost. dropped counts them.
	percent, dropped atomic.Uint32

	t       testing.TB
	target  *net.UDPAddr
	inner   *net.UDPConn
	mu      sync.Mutex
	client  netip.AddrPort
	outer   *net.UDPConn
	workers sync.WaitGroup
}

func startRelay(t testing.TB, target netip.AddrPort) *relay {
	t.Helper()
	inner, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{at: addrPort(inner.LocalAddr()), t: t, target: net.UDPAddrFromAddrPort(target), inner: inner}
	r.rebind(netip.MustParseAddr("127.0.0.1"))
	r.workers.Go(r.inward)
	t.Cleanup(func() {
		inner.Close()
		r.mu.Lock()
		r.outer.Close()
		r.mu.Unlock()
		r.workers.Wait()
	})
	return r
}

// rebind gives the client another address towards the waypoint.
func (r *relay) rebind(from netip.Addr) {
	outer, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)))
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	old := r.outer
	r.outer = outer
	r.mu.Unlock()
	if old != nil {
		old.Close()
	}
	r.workers.Go(func() { r.outward(outer) })
}

func (r *relay) inward() {
	buf := make([]byte, 2048)
	for {
		n, from, err := r.inner.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		r.mu.Lock()
		r.client = from
		outer := r.outer
		r.mu.Unlock()
		if rand.Uint32N(100) < r.percent.Load() {
			r.dropped.Add(1)
			continue
		}
		if !r.cut.Load() {
			outer.WriteToUDP(buf[:n], r.target)
		}
	}
}

func (r *relay) outward(outer *net.UDPConn) {
	buf := make([]byte, 2048)
	for {
		n, _, err := outer.ReadFromUDP(buf)
		if err != nil {
			return
		}
		r.mu.Lock()
		client := r.client
		r.mu.Unlock()
		if !r.cut.Load() {
			r.inner.WriteToUDPAddrPort(buf[:n], client)
		}
	}
}

// If a NAT on the way uses another address, the client notices it without being told, and gets grants for the new
// address.
func TestRebinding(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	w := startServer(t, served{Identity: a.identity("bob")})
	r := startRelay(t, w.at)
	m := startClient(t, a.identity("alice"), "bob", r.at)
	before := m.awaitUp()
	if g := m.mustMap("203.0.113.5:443"); g.Client != before.Observed.Addr() {
		t.Errorf("granted for %v, seen at %v", g.Client, before.Observed)
	}
	moved := netip.MustParseAddr("127.0.0.9")
	r.rebind(moved)
	m.await("being not usable", func(s State) bool { return s.Up && !s.Usable() })
	after := m.await("being usable", State.Usable)
	if after.Observed.Addr() != moved || after.Sessions != 1 {
		t.Errorf("seen at %v after %d sessions", after.Observed, after.Sessions)
	}
	if g := m.mustMap("203.0.113.5:443"); g.Client != moved {
		t.Errorf("granted for %v", g.Client)
	}
	if live := w.live(); len(live) != 1 || live[0].Addr != moved {
		t.Errorf("at the waypoint: %+v", live)
	}
}
