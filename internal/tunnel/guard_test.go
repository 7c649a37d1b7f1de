package tunnel

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

// The table has the rules in OpenGuard's comment, is restored after a firewall reload, and is removed without a trace.
func TestGuard(t *testing.T) {
	ns := netnstest.New(t)
	var g *Guard
	ns.Must(t, func() (err error) {
		g, err = OpenGuard([]string{"dcolwg0", "dcolov0"}, Reserved{})
		return err
	})
	check := func(when string) {
		t.Helper()
		list := ns.Output(t, "nft", "list", "ruleset")
		for _, words := range []string{
			"iifname @interfaces fib daddr . iif type != local counter packets 0 bytes 0 drop",
			"iifname @interfaces ct direction original counter packets 0 bytes 0 drop",
			"iifname @interfaces ct state ! established,related counter packets 0 bytes 0 drop",
			"iifname @interfaces counter packets 0 bytes 0 drop", `"dcolov0"`, `"dcolwg0"`,
		} {
			if !strings.Contains(list, words) {
				t.Errorf("%s %q is not in:\n%s", when, words, list)
			}
		}
	}
	check("at first")
	if restored, err := g.Check(); restored || err != nil {
		t.Errorf("nothing was amiss: %v, %v", restored, err)
	}
	ns.Output(t, "nft", "flush", "ruleset")
	if restored, err := g.Check(); !restored || err != nil {
		t.Errorf("flushed: %v, %v", restored, err)
	}
	check("after a flush")
	if err := g.Release(); err != nil {
		t.Error(err)
	}
	ns.Must(t, func() (err error) { g, err = OpenGuard([]string{"dcolwg0", "dcolov0"}, Reserved{}); return err })
	check("in place of one that was left")
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		ns.Must(t, func() error { return nft.RemoveTable(guardTable) })
	}
	if left := ns.Output(t, "nft", "list", "ruleset"); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// Only answers to packets that went into a tunnel are accepted from it. So a waypoint cannot forge answers to packets
// that this host sends by another way.
func TestGuardLetsInAnswersOnly(t *testing.T) {
	client, waypoint := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(t, netnstest.End{NS: client, Name: "eth0", Addresses: []string{"192.0.2.2/24"}},
		netnstest.End{NS: waypoint, Name: "eth0", Addresses: []string{"192.0.2.1/24"}})
	netnstest.Veth(t, netnstest.End{NS: client, Name: "dcolwg0", Addresses: []string{"10.200.0.9/24"}},
		netnstest.End{NS: waypoint, Name: "dcolwg", Addresses: []string{"10.200.0.1/24"}})
	for _, key := range []string{"all", "default", "eth0", "dcolwg0"} {
		client.Must(t, func() error { return netstate.SetSysctl("net/ipv4/conf/"+key+"/rp_filter", "0") })
	}
	server := netip.MustParseAddrPort("203.0.113.5:53")
	waypoint.Output(t, "ip", "address", "add", "203.0.113.5/32", "dev", "lo")
	client.Output(t, "ip", "route", "add", "203.0.113.5", "via", "192.0.2.1")
	client.Output(t, "ip", "rule", "add", "from", "10.200.0.9", "lookup", "77")
	client.Output(t, "ip", "route", "add", "default", "via", "10.200.0.1", "table", "77")
	answering := socketIn(t, waypoint, server)
	var g *Guard
	client.Must(t, func() (err error) { g, err = OpenGuard([]string{"dcolwg0"}, Reserved{}); return err })
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})

	// asks sends a request from an address, which arrives by one of the two links.
	asks := func(from string) (asking *net.UDPConn, seen netip.AddrPort) {
		t.Helper()
		asking = socketIn(t, client, netip.MustParseAddrPort(from))
		send(t, asking, "question", server)
		return asking, receive(t, answering, "question")
	}
	inTunnel, seen := asks("10.200.0.9:5001")
	send(t, answering, "answer", seen)
	receive(t, inTunnel, "answer")

	outside, seen := asks("192.0.2.2:5002")
	waypoint.Output(t, "ip", "route", "add", "192.0.2.2", "via", "10.200.0.9", "dev", "dcolwg")
	send(t, answering, "forged", seen)
	waypoint.Output(t, "ip", "route", "del", "192.0.2.2", "via", "10.200.0.9", "dev", "dcolwg")
	send(t, answering, "genuine", seen)
	receive(t, outside, "genuine")
	if list := client.Output(t, "nft", "list", "ruleset"); !strings.Contains(list, "type != local counter packets 1 ") {
		t.Errorf("the forged answer did not come by the tunnel:\n%s", list)
	}
}

// A connection that the waypoint opened while the table was missing ends when the table is restored.
func TestGuardEndsWhatOpenedWithoutIt(t *testing.T) {
	client, waypoint := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(t, netnstest.End{NS: client, Name: "dcolwg0", Addresses: []string{"10.200.0.9/24"}},
		netnstest.End{NS: waypoint, Name: "dcolwg", Addresses: []string{"10.200.0.1/24"}})
	client.Output(t, "nft", "table ip other { chain in { type filter hook input priority 0; ct state established counter; }; }")
	service := socketIn(t, client, netip.MustParseAddrPort("10.200.0.9:53"))
	at := netip.MustParseAddrPort("10.200.0.9:53")
	attacking := socketIn(t, waypoint, netip.MustParseAddrPort("10.200.0.1:5001"))
	send(t, attacking, "question", at)
	send(t, service, "answer", receive(t, service, "question"))
	receive(t, attacking, "answer")
	var g *Guard
	client.Must(t, func() (err error) { g, err = OpenGuard([]string{"dcolwg0"}, Reserved{}); return err })
	send(t, attacking, "another question", at)
	for end := time.Now().Add(10 * time.Second); !strings.Contains(client.Output(t, "nft", "list", "ruleset"), "ct direction original counter packets 1 "); {
		if err := service.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if n, err := service.Read(make([]byte, 100)); err == nil || time.Now().After(end) {
			t.Fatalf("the waypoint goes on: %d bytes, %v", n, err)
		}
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

func socketIn(t *testing.T, ns *netnstest.NS, at netip.AddrPort) (c *net.UDPConn) {
	t.Helper()
	ns.Must(t, func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func send(t *testing.T, c *net.UDPConn, what string, to netip.AddrPort) {
	t.Helper()
	if _, err := c.WriteToUDPAddrPort([]byte(what), to); err != nil {
		t.Fatal(err)
	}
}

// receive checks the next datagram.
func receive(t *testing.T, c *net.UDPConn, want string) (from netip.AddrPort) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, from, err := c.ReadFromUDPAddrPort(b)
	if err != nil || string(b[:n]) != want {
		t.Fatalf("came %q, %v; want %q", b[:n], err, want)
	}
	return from
}

// A connection that the waypoint's host opened to a member while the table was missing ends when the table is restored.
// Requests of members are still answered.
func TestOutputGuardEndsWhatOpenedWithoutIt(t *testing.T) {
	waypoint, member := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(t, netnstest.End{NS: waypoint, Name: "dcolwg", Addresses: []string{"10.200.0.1/24"}},
		netnstest.End{NS: member, Name: "dcolwg0", Addresses: []string{"10.200.0.9/24"}})
	waypoint.Output(t, "nft", "table ip other { chain out { type filter hook output priority 0; ct state established counter; }; }")
	host := socketIn(t, waypoint, netip.MustParseAddrPort("10.200.0.1:5001"))
	at := netip.MustParseAddrPort("10.200.0.9:53")
	taking := socketIn(t, member, at)
	send(t, host, "the host's", at)
	send(t, taking, "an answer", receive(t, taking, "the host's"))
	receive(t, host, "an answer")
	var g *nft.Kept
	waypoint.Must(t, func() (err error) { g, err = openOutputGuard("dcolwg"); return err })
	if _, err := host.WriteToUDPAddrPort([]byte("more"), at); !errors.Is(err, unix.EPERM) {
		t.Errorf("the host goes on: %v", err)
	}
	service := socketIn(t, waypoint, netip.MustParseAddrPort("10.200.0.1:53"))
	asking := socketIn(t, member, netip.MustParseAddrPort("10.200.0.9:5002"))
	send(t, asking, "the member's", netip.MustParseAddrPort("10.200.0.1:53"))
	send(t, service, "an answer", receive(t, service, "the member's"))
	receive(t, asking, "an answer")
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}
