package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/engine"
	"github.com/detour-collective/dcol/internal/converter/engine/enginetest"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
)

// service is the number of a service of a member, whose relay sees the converter at the address client.
const service = 7

// wayTo returns a way to a member's relay with a cookie that it has sealed.
func wayTo(at netip.AddrPort, proof []byte) Way {
	return Way{At: at, Cookie: proof, Expires: time.Now().Add(time.Minute)}
}

// member runs a relay of a member with one service, and returns its address.
func member(t *testing.T, to netip.AddrPort) netip.AddrPort {
	t.Helper()
	r := NewReceiver(key)
	r.SetServices(map[uint32]netip.AddrPort{service: to})
	_, at := enginetest.Start(t, r, true)
	return at
}

// converter runs a converter's port with these ways to the member, and returns its address.
func converter(t *testing.T, ways ...Way) (*engine.Engine, netip.AddrPort) {
	t.Helper()
	f := NewIncoming(NewPlaces())
	f.Set(Listener{Ways: ways})
	return enginetest.Start(t, fromAbroad{f}, true)
}

// caller is the address of strangers that call the converter. In tests they have loopback addresses, which may not be
// in a message.
var caller = netip.MustParseAddr("192.0.2.1")

type fromAbroad struct{ *Incoming }

func (f fromAbroad) Open(a engine.Accepted) (engine.Opening, error) {
	a.Peer = netip.AddrPortFrom(caller, a.Peer.Port())
	return f.Incoming.Open(a)
}

// mayReset connects to an address where connections may be reset at once.
func mayReset(t *testing.T, to netip.AddrPort) error {
	t.Helper()
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(to))
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
		return fmt.Errorf("%q, %w", b, err)
	}
	return nil
}

// A stranger that calls the converter reaches the member's service, with or without MPTCP, whichever side sends first.
func TestIncoming(t *testing.T) {
	to := enginetest.Serve(t, "127.0.0.1", false, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "welcome")
		enginetest.Echo(c)
	})
	at := member(t, to)
	e, port := converter(t, wayTo(at, sealed(key, service, time.Hour)))
	for _, mptcp := range []bool{false, true} {
		c := enginetest.Dial(t, port, mptcp)
		hello := make([]byte, len("welcome"))
		if _, err := io.ReadFull(c, hello); err != nil || string(hello) != "welcome" {
			t.Fatalf("%q, %v", hello, err)
		}
		enginetest.Exchange(t, c, 1<<20)
	}
	enginetest.Eventually(t, "both end", func() bool { return e.Counters().Pairs == 0 })
}

// The member's relay gets the caller's address before any of the caller's bytes.
func TestIncomingNamesThePeer(t *testing.T) {
	heard := make(chan rfc8803.Message, 1)
	at := enginetest.Serve(t, "127.0.0.1", true, func(c *net.TCPConn) {
		b := make([]byte, 1024)
		n, _ := c.Read(b)
		m, used, err := rfc8803.Decode(b[:n])
		if err != nil || used != n {
			t.Errorf("%x: %v", b[:n], err)
		}
		heard <- m
		_, _ = c.Write(message(t, rfc8803.Message{ExtendedHeader: []byte{}}))
		enginetest.Echo(c)
	})
	_, port := converter(t, wayTo(at, []byte("the cookie of a member..")))
	c := enginetest.Dial(t, port, false)
	enginetest.Exchange(t, c, 1000)
	if m := <-heard; m.Connect == nil || m.Connect.Server != netip.AddrPortFrom(caller, enginetest.AddrPort(c.LocalAddr()).Port()) || string(m.Cookie) != "the cookie of a member.." {
		t.Errorf("%+v", m)
	}
}

// The caller gets a reset if the member does not take the connection for any reason.
func TestIncomingIsReset(t *testing.T) {
	echo := enginetest.Serve(t, "127.0.0.1", false, enginetest.Echo)
	nobody := enginetest.Nobody(t, "127.0.0.1")
	good := sealed(key, service, time.Hour)
	elsewhere := key.Seal(cookie.Claim{Mark: service, Client: netip.MustParseAddr("192.0.2.1"), Expires: time.Now().Add(time.Hour)})
	over := wayTo(member(t, echo), good)
	over.Expires = time.Now().Add(-time.Second)
	gibberish := enginetest.Serve(t, "127.0.0.1", true, func(c *net.TCPConn) { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") })
	for name, ways := range map[string][]Way{
		"no member":                      nil,
		"the lease is over":              {over},
		"nobody at the member's address": {wayTo(nobody, good)},
		"the service is not there":       {wayTo(member(t, nobody), good)},
		"a forged cookie":                {wayTo(member(t, echo), sealed(cookie.Key{8}, service, time.Hour))},
		"an expired cookie":              {wayTo(member(t, echo), sealed(key, service, -time.Second))},
		"another converter's cookie":     {wayTo(member(t, echo), elsewhere)},
		"a cookie for another service":   {wayTo(member(t, echo), sealed(key, service+1, time.Hour))},
		"no cookie":                      {wayTo(member(t, echo), nil)},
		"a cookie for no message":        {wayTo(member(t, echo), make([]byte, 2000))},
		"a member with another protocol": {wayTo(gibberish, good)},
	} {
		t.Run(name, func(t *testing.T) {
			e, port := converter(t, ways...)
			if err := mayReset(t, port); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%v", err)
			}
			if n := e.Counters(); n.Refused != 1 {
				t.Errorf("%+v", n)
			}
		})
	}
}

// A member with several addresses is called at the next one if one does not work.
func TestIncomingOtherWay(t *testing.T) {
	at := member(t, enginetest.Serve(t, "127.0.0.1", false, enginetest.Echo))
	good := sealed(key, service, time.Hour)
	_, port := converter(t, wayTo(enginetest.Nobody(t, "127.0.0.1"), good), wayTo(netip.AddrPortFrom(client, at.Port()), good))
	enginetest.Exchange(t, enginetest.Dial(t, port, false), 1000)
}

// Strangers whose connections wait for a member share few places: the oldest is reset, and the newest waits.
func TestIncomingStrangers(t *testing.T) {
	e, port := converter(t, wayTo(enginetest.Silent(t), sealed(key, service, time.Hour)))
	first := enginetest.Dial(t, port, false)
	enginetest.Eventually(t, "the first waits", func() bool { return e.Counters().Pairs == 1 })
	for range incomingLimits.PerSource {
		enginetest.Dial(t, port, false)
	}
	if _, err := first.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the oldest: %v", err)
	}
	enginetest.Eventually(t, "the others wait", func() bool { return e.Counters().Pairs == int64(incomingLimits.PerSource) })
}

// A Receiver dials the service of the cookie, or none.
func TestReceiverDials(t *testing.T) {
	services := map[uint32]netip.AddrPort{1: netip.MustParseAddrPort("127.0.0.1:80"), 2: netip.MustParseAddrPort("[fd00::2]:443")}
	r := NewReceiver(key)
	r.SetServices(services)
	rapid.Check(t, func(rt *rapid.T) {
		number := rapid.Uint32Range(0, 3).Draw(rt, "number")
		sealer := rapid.SampledFrom([]cookie.Key{key, {8}}).Draw(rt, "key")
		from := netip.MustParseAddr(rapid.SampledFrom([]string{"127.0.0.1", "192.0.2.9"}).Draw(rt, "from"))
		lasts := rapid.SampledFrom([]time.Duration{time.Hour, -time.Second}).Draw(rt, "lasts")
		peer := netip.MustParseAddrPort(rapid.SampledFrom([]string{"192.0.2.1:1", "[2001:db8::1]:65535", "127.0.0.1:80", "0.0.0.0:1", "192.0.2.1:0"}).Draw(rt, "peer"))
		m := rfc8803.Message{
			Connect: &rfc8803.Connect{Server: peer},
			Cookie:  sealer.Seal(cookie.Claim{Mark: number, Client: client, Expires: time.Now().Add(lasts)}),
		}
		b, err := m.Append(nil)
		if err != nil {
			rt.Fatal(err)
		}
		damage := rapid.IntRange(-1, len(b)-1).Draw(rt, "damage")
		if damage >= 0 {
			b[damage] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
		}
		o, err := r.Open(engine.Accepted{Peer: netip.AddrPortFrom(from, 1234)})
		if err != nil {
			rt.Fatal(err)
		}
		defer o.(engine.Ender).Ended()
		s := o.Read(append(slices.Clone(b), "data"...))
		to, known := services[number]
		may := known && sealer == key && from == client && lasts > 0
		if s.Dial == nil {
			if may && damage < 0 && peer.Port() != 0 && !peer.Addr().IsUnspecified() && !peer.Addr().IsLoopback() {
				rt.Errorf("refused: %x", s.Reply)
			}
			return
		}
		if !may || s.Dial.To != to || s.Dial.MPTCP || s.Dial.Mark != 0 {
			rt.Errorf("%+v for service %d", s.Dial, number)
		}
	})
}
