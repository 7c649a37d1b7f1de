package session

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// needAddress skips the test on a host without the address, for example without IPv6.
func needAddress(t *testing.T, listen string) {
	t.Helper()
	c, err := net.ListenPacket("udp", listen)
	if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT) {
		t.Skipf("this host has no %s", listen)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

func TestMap(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(listen, func(t *testing.T) {
			needAddress(t, listen)
			a := newAuthority(t)
			g := &granter{}
			w := startServer(t, served{Identity: a.identity("bob"), Listen: listen, Handler: g})
			alice := a.identity("alice")
			m := startClient(t, alice, "bob", w.at)
			s := m.awaitUp()
			if s.Observed.Addr() != w.at.Addr() || s.Local != w.at.Addr() || s.Lease != time.Minute || len(s.Offers) != 1 || s.Offers[0] != wire.Mapped {
				t.Errorf("the greeting said %+v", s)
			}
			got := m.mustMap("203.0.113.5:443")
			if want := (Grant{Port: 443, Lease: time.Minute, Client: w.at.Addr()}); got != want {
				t.Errorf("granted %+v, want %+v", got, want)
			}
			if s := m.State(); s.RTT <= 0 || s.MinRTT <= 0 || s.LatestRTT < s.MinRTT || s.MinRTT > s.RTT*10 || s.Loss != 0 {
				t.Errorf("measured %+v", s)
			}
			live := w.live()
			if len(live) != 1 || live[0].Name != "alice" || live[0].Serial != alice.Self().Serial || live[0].Addr != s.Observed.Addr() {
				t.Errorf("live sessions %+v", live)
			}
			m.Close()
			w.stop()
			if up, down := g.counts(); up != 1 || down != 1 {
				t.Errorf("%d sessions up, %d down", up, down)
			}
			_, err := m.mapping("203.0.113.5:443")
			if err == nil {
				t.Error("mapped over a closed session")
			}
		})
	}
}

// Random datagrams, and some that look like QUIC, disturb neither the waypoint nor its sessions.
func TestRandomDatagrams(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	w := startServer(t, served{Identity: a.identity("bob")})
	m := startClient(t, a.identity("alice"), "bob", w.at)
	m.awaitUp()
	attack, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(w.at))
	if err != nil {
		t.Fatal(err)
	}
	defer attack.Close()
	const datagrams = 5000
	for i := range datagrams {
		b := make([]byte, 1+i*7%1400)
		rand.Read(b)
		switch i % 4 {
		case 1: // a long header of QUIC version 1: an Initial
			copy(b, []byte{0xc3, 0, 0, 0, 1, 8})
		case 2: // a short header: a packet of a session
			b[0] = 0x40 | b[0]&0x3f
		case 3: // an unknown version
			b[0] |= 0x80
		}
		if _, err := attack.Write(b); err != nil {
			t.Fatal(err)
		}
		if i%500 == 0 {
			m.mustMap("203.0.113.5:443")
		}
	}
	m.mustMap("203.0.113.5:443")
	if s := m.State(); !s.Up || s.Sessions != 1 {
		t.Errorf("the session: %+v", s)
	}
	startClient(t, a.identity("carol"), "bob", w.at).awaitUp()
}

// Many goroutines send requests at the same time, and each gets its own answer.
func TestPipelining(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	w := startServer(t, served{Identity: a.identity("bob")})
	m := startClient(t, a.identity("alice"), "bob", w.at)
	m.awaitUp()
	var asking sync.WaitGroup
	for i := range 1500 {
		asking.Go(func() {
			port := uint16(i + 1)
			g, err := m.mapping(fmt.Sprintf("203.0.113.5:%d", port))
			if err != nil || g.Port != port {
				t.Errorf("asked for %d: %+v, %v", port, g, err)
			}
		})
	}
	asking.Wait()
}

func BenchmarkMap(b *testing.B) {
	a := newAuthority(b)
	limits := DefaultLimits()
	limits.RequestRate, limits.RequestBurst = 1e9, 1e9
	w := startServer(b, served{Identity: a.identity("bob"), Limits: limits})
	m := startClient(b, a.identity("alice"), "bob", w.at)
	m.awaitUp()
	server := netip.MustParseAddrPort("203.0.113.5:443")
	b.Run("one", func(b *testing.B) {
		for b.Loop() {
			if _, err := m.Map(b.Context(), server, 443, false); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("pipelined", func(b *testing.B) {
		b.SetParallelism(128)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := m.Map(b.Context(), server, 443, false); err != nil {
					b.Error(err)
					return
				}
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "maps/s")
	})
}
