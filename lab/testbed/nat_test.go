package testbed

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// home returns a host behind a home router, and two on the Internet.
func home() Spec {
	return Spec{
		Hosts: []HostSpec{{Name: "inside"}, {Name: "one"}, {Name: "two"}, {Name: "router", Forward: true, NAT: NAT{
			Inside: []string{"lan"}, Forwards: []PortForward{{Protocol: "udp", Port: 500, To: "inside"}, {Protocol: "tcp", Port: 600, To: "inside"}},
		}}},
		Links: []LinkSpec{
			{Name: "wan", A: "router", B: "one"}, {Name: "lan", A: "inside", B: "router"}, {Name: "far", A: "two", B: "router"},
		},
		Backend: BackendVeth,
	}
}

// tellWho starts servers on a host that answer each client with the client's address.
func tellWho(t *testing.T, h *Host, port string) {
	t.Helper()
	var tcp net.Listener
	var udp net.PacketConn
	err := h.Do(func() (err error) {
		if tcp, err = net.Listen("tcp", ":"+port); err != nil {
			return err
		}
		udp, err = net.ListenPacket("udp", ":"+port)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, c.RemoteAddr().String())
			c.Close()
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		b := make([]byte, 100)
		for {
			_, from, err := udp.ReadFrom(b)
			if err != nil {
				return
			}
			udp.WriteTo([]byte(from.String()), from)
		}
	}()
	t.Cleanup(func() { tcp.Close(); udp.Close(); <-done; <-done })
}

// whoAmI asks such a server for the client's address. own is the asking socket's local address.
func whoAmI(h *Host, network string, to netip.AddrPort) (seen, own netip.AddrPort, err error) {
	err = h.Do(func() error {
		c, err := net.DialTimeout(network, to.String(), 700*time.Millisecond)
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(700 * time.Millisecond))
		if network == "udp" {
			if _, err := c.Write([]byte("who?")); err != nil {
				return err
			}
		}
		b := make([]byte, 100)
		k, err := c.Read(b)
		if err != nil {
			return err
		}
		if own, err = netip.ParseAddrPort(c.LocalAddr().String()); err != nil {
			return err
		}
		seen, err = netip.ParseAddrPort(string(b[:k]))
		seen = netip.AddrPortFrom(seen.Addr().Unmap(), seen.Port())
		return err
	})
	return seen, own, err
}

func TestNAT(t *testing.T) {
	n := build(t, home())
	inside, one, two, router := n.Host("inside"), n.Host("one"), n.Host("two"), n.Host("router")
	for _, h := range []*Host{inside, one, two} {
		for _, port := range []string{"500", "600"} {
			tellWho(t, h, port)
		}
	}
	wan, _ := router.AddrOn("wan")
	far, _ := router.AddrOn("far")
	at := netip.AddrPortFrom
	samePort := 0
	for _, network := range []string{"tcp", "udp"} {
		for _, test := range []struct {
			from *Host
			to   netip.AddrPort
			as   netip.Addr // whom the other side sees
		}{
			{inside, at(one.Addr4(), 500), wan},
			{inside, at(two.Addr4(), 500), far},
			{inside, at(one.Addr6(), 500), inside.Addr6()},
			{one, at(two.Addr4(), 600), one.Addr4()}, // the router's other business
			{two, at(one.Addr6(), 600), two.Addr6()},
		} {
			seen, own, err := whoAmI(test.from, network, test.to)
			if err != nil || seen.Addr() != test.as {
				t.Errorf("%s from %s to %v: is seen as %v, want %v (%v)", network, test.from.Name(), test.to, seen, test.as, err)
			}
			if seen.Addr() == own.Addr() && seen != own {
				t.Errorf("%s from %s to %v: port %d is seen as %d", network, test.from.Name(), test.to, own.Port(), seen.Port())
			}
			if seen.Addr() != own.Addr() && seen.Port() == own.Port() {
				samePort++
			}
		}
	}
	if samePort > 1 { // by chance
		t.Errorf("%d of 4 ports were not translated", samePort)
	}
}

// From outside only what is forwarded gets in.
func TestNATGuards(t *testing.T) {
	n := build(t, home())
	inside, one, router := n.Host("inside"), n.Host("one"), n.Host("router")
	for _, port := range []string{"500", "600"} {
		tellWho(t, inside, port)
	}
	wan4, wan6 := router.AddrOn("wan")
	at := netip.AddrPortFrom
	for _, test := range []struct {
		network string
		to      netip.AddrPort
		in      bool
	}{
		{"udp", at(wan4, 500), true},
		{"tcp", at(wan4, 600), true},
		{"udp", at(inside.Addr6(), 500), true},
		{"tcp", at(inside.Addr6(), 600), true},
		{"tcp", at(wan4, 500), false}, // of the other protocol
		{"udp", at(wan4, 600), false},
		{"tcp", at(wan6, 600), false}, // IPv6 is not translated
		{"tcp", at(inside.Addr6(), 500), false},
		{"udp", at(inside.Addr6(), 600), false},
		{"tcp", at(inside.Addr4(), 600), false}, // although a route exists
		{"udp", at(inside.Addr4(), 500), false},
	} {
		seen, own, err := whoAmI(one, test.network, test.to)
		if test.in && (err != nil || seen != own) {
			t.Errorf("%s to %v: seen as %v, is %v (%v)", test.network, test.to, seen, own, err)
		}
		var timeout net.Error
		if !test.in && !errors.Is(err, unix.ECONNREFUSED) && (!errors.As(err, &timeout) || !timeout.Timeout()) {
			t.Errorf("%s to %v got in, or not as it should: %v, %v", test.network, test.to, seen, err)
		}
	}
}
