package waypoint

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// home is a waypoint whose network has public addresses, and a member that would like to see it from inside.
// Nothing is allowed beyond the defaults.
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

// A home's neighbours at public addresses, and its router by the address that it has outside, are out of
// reach by every kind of detour, as soon as they are known and as long as nothing else is said.
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
	admit(t, w, w.config.MappingLifetime)
	w.SessionUp(session("alice", client4, 1))
	grant := mustInBand(t, w, session("alice", client4, 1))
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
	w.SessionUp(session("alice", client4, 1))
	grant := mustInBand(t, w, session("alice", client4, 1))
	if got := p.probe(t, p.syn(server, grant)); got == byServer {
		t.Errorf("in-band: %s", got)
	}
	seen <- egress.Outside{NATs: []netip.Addr{netip.MustParseAddr("84.1.2.3")}}
	eventually(t, "in-band works", func() bool { return p.probe(t, p.syn(server, grant)) == byServer })
	mustMap(t, w, alice, other, 443)
}
