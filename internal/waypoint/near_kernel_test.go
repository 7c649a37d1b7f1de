package waypoint

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// home is a waypoint whose network has public addresses, and a member that tries to reach that network. The policy
// is the default.
func home(t *testing.T) (*network, *prober) {
	t.Helper()
	n := newNetwork(t)
	n.config.Allow, n.config.InBand = nil, InBandAuthenticated
	n.waypoint.Output(t, "ip", "address", "add", "5.6.7.2/24", "dev", "eth1")
	n.waypoint.Output(t, "ip", "address", "add", "2a02:810d:1:2::2/64", "dev", "eth1", "nodad")
	n.server.Output(t, "ip", "address", "add", "5.6.7.1/24", "dev", "eth0")
	n.server.Output(t, "ip", "address", "add", "2a02:810d:1:2::1/64", "dev", "eth0", "nodad")
	n.server.Output(t, "ip", "address", "add", "84.1.2.3/32", "dev", "eth0") // the router's, outside
	n.server.Output(t, "ip", "address", "add", "9.9.9.9/32", "dev", "eth0")  // somewhere in the Internet
	n.waypoint.Output(t, "ip", "route", "add", "default", "via", "5.6.7.1")
	return n, newProber(t, n)
}

// A home's neighbours at public addresses, and its router at its external address, cannot be reached by any kind
// of detour, as soon as they are known and unless they are allowed.
func TestHomeStaysClosed(t *testing.T) {
	t.Parallel()
	n, p := home(t)
	n.joinTunnel(t)
	seen := make(chan egress.Outside)
	n.config.Outside = seen
	w, _ := n.start(t)
	if err := w.SetTunnelInterfaces([]string{tunnelName}); err != nil {
		t.Fatal(err)
	}
	admit(t, w, w.loop.config.MappingLifetime)
	w.SessionUp(overSession("alice", client4, 1))
	grant := mustInBand(t, w, overSession("alice", client4, 1))
	alice := peer("alice", client4)
	somewhere, router := n.echo(t, "9.9.9.9:80"), n.echo(t, "84.1.2.3:80")

	reaches := func(what string, server netip.AddrPort, want bool) {
		t.Helper()
		if _, refusal := w.Map(t.Context(), alice, wire.MapRequest{Server: server}); (refusal == nil) != want {
			t.Errorf("%s by a mapping: %v", what, refusal)
		}
		if got := p.probe(t, p.syn(server, grant)); (got == byServer) != want {
			t.Errorf("%s in-band: %s", what, got)
		}
		if _, err := n.from(t, tunnel4, server); (err == nil) != want || err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s by a tunnel: %v", what, err)
		}
	}
	reaches("a server", somewhere, true)
	reaches("a neighbour", n.echo(t, "5.6.7.1:80"), false)
	neighbour6 := n.echo(t, "[2a02:810d:1:2::1]:80")
	if got := refusal(t, w, peer("alice", client6), neighbour6); got != wire.DestinationForbidden {
		t.Errorf("an IPv6 neighbour by a mapping: %v", got)
	}
	if _, err := n.from(t, tunnel6, neighbour6); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("an IPv6 neighbour by a tunnel: %v", err)
	}
	if got := refusal(t, w, peer("alice", client6), netip.MustParseAddrPort("[2a02:810d:1:3::1]:80")); got != wire.DestinationForbidden {
		t.Errorf("the home's other IPv6 network: %v", got)
	}

	// As soon as it is known that this is where others see us.
	reaches("the router before that is known", router, true)
	seen <- egress.Outside{NATs: []netip.Addr{router.Addr()}}
	eventually(t, "the mapping to the router is removed", func() bool {
		list, err := w.Mappings()
		return err == nil && len(list) == 1 && list[0].Server == somewhere
	})
	reaches("the router", router, false)
	reaches("a server", somewhere, true)
	n.waitEntry(t, "mapping-removed", func(e attribution.Entry) bool {
		return e.Event == attribution.MappingRemoved && e.Server == router
	})
	seen <- egress.Outside{NATs: []netip.Addr{netip.MustParseAddr("84.1.2.4")}}
	eventually(t, "the router's former address is a server like others", func() bool {
		_, refusal := w.Map(t.Context(), alice, wire.MapRequest{Server: router})
		return refusal == nil
	})

	// A network that the host joins later.
	n.waypoint.Output(t, "ip", "address", "add", "9.9.9.2/24", "dev", "eth1")
	eventually(t, "the mapping into the new network is removed", func() bool {
		list, err := w.Mappings()
		return err == nil && len(list) == 1 && list[0].Server == router
	})
	reaches("a new neighbour", somewhere, false)
}

// Behind a NAT whose address is not known yet, a member waits: any address could be the router's.
func TestHiddenWaits(t *testing.T) {
	t.Parallel()
	n, p := home(t)
	seen := make(chan egress.Outside, 1)
	n.config.Outside = seen
	seen <- egress.Outside{}
	w, stop := n.start(t)
	server, other := n.echo(t, "9.9.9.9:80"), netip.MustParseAddrPort("8.8.8.8:443")
	alice := peer("alice", client4)
	before := mustMap(t, w, alice, server, 80)
	stop()

	// The agent is started again, and does not know yet where it is seen.
	seen <- egress.Outside{Hidden: true}
	w, _ = n.start(t)
	_, refusal := w.Map(t.Context(), alice, wire.MapRequest{Server: other})
	if refusal == nil || refusal.Code != wire.NotReady || refusal.RetryAfter == 0 {
		t.Errorf("a server: %v", refusal)
	}
	if got := n.mustDial(t, netip.AddrPortFrom(waypoint4, before.Port)); got.seen.Addr() != netip.MustParseAddr("5.6.7.2") {
		t.Errorf("the mapping from before leads elsewhere: the server sees %v", got.seen)
	}
	w.SessionUp(overSession("alice", client4, 1))
	grant := mustInBand(t, w, overSession("alice", client4, 1))
	if got := p.probe(t, p.syn(server, grant)); got == byServer {
		t.Errorf("in-band: %s", got)
	}
	seen <- egress.Outside{NATs: []netip.Addr{netip.MustParseAddr("84.1.2.3")}}
	eventually(t, "in-band works", func() bool { return p.probe(t, p.syn(server, grant)) == byServer })
	mustMap(t, w, alice, other, 443)
}

// A home's router has an IPv6 address towards its provider, from another prefix than the home's. It cannot be
// reached as soon as the routers on the way to the Internet are known, like the home's other networks.
func TestRouterTowardsItsProvider(t *testing.T) {
	t.Parallel()
	n, _ := home(t)
	n.joinTunnel(t)
	provider := netnstest.New(t)
	for _, ns := range []*netnstest.NS{n.server, provider} {
		ns.Must(t, func() error {
			// Routers ask for neighbours from link-local addresses: they are to be good at once.
			return errors.Join(netstate.SetSysctl("net/ipv6/conf/default/accept_dad", "0"), netstate.SetSysctl("net/ipv6/conf/all/forwarding", "1"))
		})
	}
	netnstest.Veth(t, netnstest.End{NS: n.server, Name: "wan", Addresses: []string{"2a02:8100:ff:7::2/64"}},
		netnstest.End{NS: provider, Name: "eth0", Addresses: []string{"2a02:8100:ff:7::1/64"}})
	n.server.Output(t, "ip", "address", "add", "2a02:810d:1:3::1/64", "dev", "lo")
	n.waypoint.Route(t, "::/0", "2a02:810d:1:2::1")
	n.server.Route(t, "::/0", "2a02:8100:ff:7::1")
	provider.Route(t, "2a02:810d:1::/48", "2a02:8100:ff:7::2")
	provider.Output(t, "ip", "link", "add", "internet", "type", "veth", "peer", "name", "beyond")
	provider.Output(t, "ip", "link", "set", "internet", "up")
	provider.Output(t, "ip", "route", "add", "2001:503::/32", "dev", "internet")
	admin := n.echo(t, "[2a02:8100:ff:7::2]:80")
	seen := make(chan egress.Outside)
	n.config.Outside = seen
	w, _ := n.start(t)
	if err := w.SetTunnelInterfaces([]string{tunnelName}); err != nil {
		t.Fatal(err)
	}
	admit(t, w, w.loop.config.MappingLifetime)
	alice := peer("alice", client6)
	mustMap(t, w, alice, admin, 80) // or it would be out of reach without being denied
	if _, err := n.from(t, tunnel6, admin); err != nil {
		t.Fatal(err)
	}

	var o egress.Outside
	n.waypoint.Must(t, func() (err error) {
		o.Routers, err = netstate.FirstHops(t.Context())
		return err
	})
	seen <- o
	eventually(t, "the mapping to the router is removed", func() bool {
		list, err := w.Mappings()
		return err == nil && len(list) == 0
	})
	for _, server := range []netip.AddrPort{admin, netip.MustParseAddrPort("[2a02:810d:1:3::1]:80")} {
		if got := refusal(t, w, alice, server); got != wire.DestinationForbidden {
			t.Errorf("%v by a mapping: %v", server, got)
		}
		if _, err := n.from(t, tunnel6, server); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%v by a tunnel: %v", server, err)
		}
	}
	mustMap(t, w, alice, netip.MustParseAddrPort("[2a02:8100:ee::1]:80"), 80) // addresses behind it stay open
}

// The kernel's sets for tunnels and in-band detours contain exactly what is denied by default.
func TestDefaultsAreInTheKernel(t *testing.T) {
	t.Parallel()
	n, _ := home(t)
	n.waypoint.Output(t, "ip", "route", "add", "local", "81.3.3.0/24", "dev", "lo") // it answers to all of these
	n.start(t)
	in := func(set, addr string) bool {
		return n.waypoint.Do(func() error {
			return exec.Command("nft", "get", "element", "inet", "dcol", set, "{ "+addr+" }").Run()
		}) == nil
	}
	for addr, denied := range map[string]bool{
		"0.0.0.0": true, "0.255.255.255": true, "10.255.255.255": true, "100.64.0.0": true, "100.127.255.255": true, "127.0.0.53": true,
		"169.254.169.254": true, "172.31.255.255": true, "192.0.0.8": true, "192.0.0.170": true, "192.88.99.1": true, "192.168.255.255": true,
		"198.18.0.0": true, "198.19.255.255": true, "224.0.0.251": true, "239.255.255.250": true, "240.0.0.1": true, "255.255.255.255": true,
		"168.63.129.16": true, "5.6.7.2": true, "5.6.7.1": true, "5.6.7.255": true, "81.3.3.9": true,
		"9.9.9.9": false, "100.128.0.0": false, "172.32.0.0": false, "192.0.1.0": false, "198.20.0.0": false, "81.3.4.1": false,

		"::": true, "::1": true, "::127.0.0.1": true, "::10.0.0.1": true, "::ffff:10.0.0.1": true, "::ffff:9.9.9.9": true, "::ffff:0:10.0.0.1": true,
		"64:ff9b::10.0.0.1": true, "64:ff9b::100.64.0.1": true, "64:ff9b::169.254.169.254": true, "64:ff9b::5.6.7.1": true, "64:ff9b::127.0.0.1": true,
		"64:ff9b::192.168.1.1": true, "64:ff9b::81.3.3.9": true, "64:ff9b:1::1": true, "64:ff9b:2::1": true, "100::1": true,
		"2001::1": true, "2001:0:4136:e378:8000:63bf:3fff:fdd2": true, "2001:db8::1": true, "3fff::1": true,
		"2002:a00:1::1": true, "2002:c0a8:101::1": true, "2002:6440:1::1": true, "2002:7f00:1::1": true, "2002:506:701::1": true, "2002:a9fe:a9fe::": true,
		"4000::1": true, "5f00::1": true, "fc00::1": true, "fd12::1": true, "fe80::1": true, "febf::1": true, "fec0::1": true, "ff02::1": true, "ff05::2": true,
		"2a02:810d:1:2::1": true, "2a02:810d:1:ff::1": true,
		"2a02:810d:1:100::1": false, "64:ff9b::9.9.9.9": false, "2002:909:909::1": false, "2606:4700::1111": false,
	} {
		a := netip.MustParseAddr(addr)
		elements := map[string]string{}
		if a.Is4() {
			b := a.As4()
			elements["forbidden4"], elements["inband_forbidden4"] = addr, fmt.Sprintf("%#x", b[:])
		} else {
			elements["forbidden6"] = hextets(a)
		}
		for set, element := range elements {
			if got := in(set, element); got != denied {
				t.Errorf("%s: in %s: %v", addr, set, got)
			}
		}
	}
}

// hextets writes an IPv6 address without an IPv4 address in it, as nft reads it.
func hextets(a netip.Addr) string {
	b := a.As16()
	var parts []string
	for i := 0; i < len(b); i += 2 {
		parts = append(parts, fmt.Sprintf("%x", b[i:i+2]))
	}
	return strings.Join(parts, ":")
}
