package testbed

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestRenumber moves a host two times, with and without a while between, and
// moves the router that it is behind.
func TestRenumber(t *testing.T) {
	for _, backend := range backends(t) {
		t.Run(backend, func(t *testing.T) {
			n := build(t, triangle(backend, LinkParams{}))
			client, server := n.Host("client"), n.Host("server")
			if err := client.SetCongestionControl("reno"); err != nil {
				t.Fatal(err)
			}
			old4, old6 := client.Addr4(), client.Addr6()
			talks := func(when string) {
				t.Helper()
				for _, addr := range []netip.Addr{server.Addr4(), server.Addr6()} {
					if err := reach(client, addr); err != nil {
						t.Errorf("%s, %v is not reached: %v", when, addr, err)
					}
				}
				for _, addr := range []netip.Addr{client.Addr4(), client.Addr6()} {
					if err := reach(server, addr); err != nil {
						t.Errorf("%s, the host is not reached at %v: %v", when, addr, err)
					}
				}
			}
			talks("before")
			if err := n.Renumber("client", "1"); err != nil {
				t.Fatal(err)
			}
			if client.Addr4() == old4 || client.Addr6() == old6 {
				t.Errorf("it still is %v and %v", client.Addr4(), client.Addr6())
			}
			talks("at new addresses")
			if got := run(t, client, "ip", "address"); strings.Contains(got, old4.String()+"/") || strings.Contains(got, old6.String()+"/") {
				t.Errorf("it still has the old ones:\n%s", got)
			}
			if opened, _ := congestionOf(t, client, server, server.Addr4()); opened != "reno" {
				t.Errorf("its congestion control is %s", opened)
			}

			if err := n.TakeAddress("client", "1"); err != nil {
				t.Fatal(err)
			}
			if got := run(t, client, "sh", "-c", "ip -4 route; ip -6 route"); got != "" {
				t.Errorf("without addresses it has routes:\n%s", got)
			}
			if err := errors.Join(n.Renumber("client", "1"), n.Renumber("r1", "1")); err != nil {
				t.Fatal(err)
			}
			talks("after the second time, and its router's first")
		})
	}
}

func TestRenumberRefuses(t *testing.T) {
	n := build(t, pair(BackendVeth, LinkParams{}))
	for _, test := range []struct{ host, link, want string }{
		{"nobody", "line", "no such host"}, {"left", "nowhere", "not on that link"},
	} {
		if err := n.Renumber(test.host, test.link); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s on %s gives %v", test.host, test.link, err)
		}
	}
	for range lastMove {
		if err := n.Renumber("left", "line"); err != nil {
			t.Fatal(err)
		}
	}
	if err := reach(n.Host("left"), n.Host("right").Addr4()); err != nil {
		t.Errorf("after all moves: %v", err)
	}
	if err := n.Renumber("left", "line"); err == nil || !strings.Contains(err.Error(), "no more addresses") {
		t.Errorf("one too many gives %v", err)
	}
}

func TestIPv6OnlyHost(t *testing.T) {
	for _, backend := range backends(t) {
		t.Run(backend, func(t *testing.T) {
			spec := triangle(backend, LinkParams{})
			spec.Hosts[0].IPv6Only = true
			n := build(t, spec)
			client, server := n.Host("client"), n.Host("server")
			if client.Addr4().IsValid() || client.Addr() != client.Addr6() || server.Addr() != server.Addr4() {
				t.Errorf("it has %v and %v", client.Addr4(), client.Addr())
			}
			if got := run(t, client, "sh", "-c", "ip -4 route; ip -4 address show up scope global"); got != "" {
				t.Errorf("it has IPv4:\n%s", got)
			}
			if err := reach(client, server.Addr6()); err != nil {
				t.Error(err)
			}
			if err := reach(client, server.Addr4()); err == nil {
				t.Error("it reaches IPv4")
			}
			if got := run(t, server, "getent", "ahosts", "client"); strings.Contains(got, "10.") {
				t.Errorf("others know it as %s", got)
			}
			if err := n.Renumber("client", "1"); err != nil {
				t.Fatal(err)
			}
			if err := reach(client, server.Addr6()); err != nil {
				t.Errorf("renumbered: %v", err)
			}
		})
	}
	spec := triangle(BackendVeth, LinkParams{})
	spec.Hosts[1].IPv6Only = true
	if err := spec.Validate(); err == nil || !strings.Contains(err.Error(), "a host that forwards needs IPv4") {
		t.Errorf("a router without IPv4 gives %v", err)
	}
}

// TestDropForwardedTCP has a router lose the TCP of others, over IPv4 and IPv6, while
// their UDP and its own TCP pass.
func TestDropForwardedTCP(t *testing.T) {
	for _, backend := range backends(t) {
		t.Run(backend, func(t *testing.T) {
			n := build(t, triangle(backend, LinkParams{}))
			client, router, server := n.Host("client"), n.Host("r2"), n.Host("server")
			conn := dialUDP(t, client, echo(t, server))
			for range 2 { // it can be turned on again
				if err := router.DropForwardedTCP(true); err != nil {
					t.Fatal(err)
				}
				if err := router.DropForwardedTCP(true); err != nil {
					t.Errorf("a second time: %v", err)
				}
				for _, addr := range []netip.Addr{server.Addr4(), server.Addr6()} {
					if err := reachWithin(client, addr, 300*time.Millisecond); err == nil {
						t.Errorf("TCP to %v passes", addr)
					}
					if err := reach(router, addr); err != nil {
						t.Errorf("the router's own TCP: %v", err)
					}
				}
				if err := reach(client, router.Addr4()); err != nil {
					t.Errorf("TCP to the router: %v", err)
				}
				if _, err := ask(conn, "udp", 10*time.Second); err != nil {
					t.Errorf("UDP: %v", err)
				}
				for range 2 {
					if err := router.DropForwardedTCP(false); err != nil {
						t.Fatal(err)
					}
				}
				if err := reach(client, server.Addr4()); err != nil {
					t.Errorf("after its end: %v", err)
				}
			}
			if err := client.DropForwardedTCP(false); err != nil {
				t.Errorf("ended before it began: %v", err)
			}
		})
	}
}
