package tunnel

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
)

func grantOf(addrs ...string) wire.TunnelGrant {
	g := wire.TunnelGrant{Kind: wire.WireGuard, Lease: time.Minute, PublicKey: make([]byte, 32), Port: 4500, MTU: 1420}
	g.PublicKey[0] = 9
	for _, a := range addrs {
		g.Addresses = append(g.Addresses, netip.MustParsePrefix(a))
	}
	return g
}

// network returns everything on a host that a tunnel may change.
func network(t *testing.T, ns *netnstest.NS) string {
	t.Helper()
	var b strings.Builder
	for _, args := range []string{"-br link", "-o -4 address", "-4 rule", "-6 rule", "-4 route show table all"} {
		b.WriteString(ns.Output(t, "ip", strings.Fields(args)...))
	}
	return b.String()
}

// A waypoint that grants the client's own address, or a server's, does not get packets from or to them. Such a grant
// changes nothing on the host, for any kind of tunnel, even if it is a renewal.
func TestWaypointCannotTakeTheClientsTraffic(t *testing.T) {
	p := newPair(t)
	p.client.Output(t, "ip", "tuntap", "add", "dcolov9", "mode", "tun") // another tunnel, and a VPN
	p.client.Output(t, "ip", "address", "add", "10.203.3.4/32", "dev", "dcolov9")
	p.client.Output(t, "ip", "link", "set", "dcolov9", "up")
	t.Cleanup(func() { p.client.Output(t, "ip", "link", "del", "dcolov9") })
	p.client.Output(t, "ip", "route", "add", "10.202.0.0/16", "dev", "dcolov9")
	ends := map[string]end{
		"WireGuard": p.end,
		"OpenVPN":   &openvpnEnd{route: route{iface: "dcolov0", ranges: testRanges}, config: OpenVPNConfig{Log: slog.New(slog.DiscardHandler)}},
	}
	evil := map[string]wire.TunnelGrant{
		"its own address":             grantOf("192.0.2.2/32"),
		"its network":                 grantOf("192.0.2.2/24"),
		"a public server":             grantOf("8.8.8.8/32"),
		"everything":                  grantOf("0.0.0.0/0"),
		"loopback":                    grantOf("127.0.0.53/8"),
		"its own, after a proper one": grantOf("10.201.3.4/21", "192.0.2.2/32"),
		"its own, after IPv6":         grantOf("fd64:636f:6c00::4/64", "192.0.2.2/32"),
		"a server in IPv6":            grantOf("10.201.3.4/21", "2606:4700::1111/64"),
		"two of a family":             grantOf("10.201.3.4/21", "10.201.3.5/21"),
		"another private network":     grantOf("192.168.1.1/24"),
		"another tunnel's":            grantOf("10.203.3.4/21"),
		"a network that it routes":    grantOf("10.202.3.4/21"),
		"none":                        grantOf(),
	}
	refuses := func(when string) {
		t.Helper()
		before := network(t, p.client)
		for kind, e := range ends {
			for name, grant := range evil {
				if err := p.client.Do(func() error { return e.set(t.Context(), p.to, grant) }); err == nil {
					t.Errorf("%s %s takes %s: %v", when, kind, name, grant.Addresses)
				}
			}
		}
		if after := network(t, p.client); after != before {
			t.Errorf("%s the host's network was\n%s\nand is\n%s", when, before, after)
		}
	}
	refuses("at first")
	p.ask(true)
	p.works("with an honest grant")
	refuses("as a renewal")
	p.works("after grants that are none")
}

// If the client begins to use a granted address itself, that is noticed, and another address is requested. Until then,
// and if there is none, the other family's address works as before.
func TestClientsNetworkChanges(t *testing.T) {
	p := newPair(t)
	grant := p.ask(true)
	p.works("at first")
	check := func() (conflict error, left bool) {
		p.client.Must(t, func() (err error) { conflict, left, err = p.end.check(); return err })
		return conflict, left
	}
	if err, left := check(); err != nil || !left {
		t.Errorf("nothing has changed: %v, some are left: %v", err, left)
	}
	network := netip.PrefixFrom(grant.Addresses[0].Addr(), 24).Masked()
	p.client.Output(t, "ip", "route", "add", network.String(), "via", "192.0.2.1")
	if err, left := check(); err == nil || !strings.Contains(err.Error(), network.String()) || !left {
		t.Errorf("with a route: %v, some are left: %v", err, left)
	}
	if addrs, why := p.look(); !slices.Equal(addrs, []netip.Addr{grant.Addresses[1].Addr()}) {
		t.Errorf("with a route the tunnel has %v: %s", addrs, why)
	}
	if rules := p.client.Output(t, "ip", "rule"); strings.Contains(rules, grant.Addresses[0].Addr().String()) {
		t.Errorf("the address is still routed into the tunnel:\n%s", rules)
	}
	grant = p.ask(false)
	if second := grant.Addresses[0]; network.Contains(second.Addr()) {
		t.Errorf("the client has a route to %v now, and has %v", network, second)
	}
	p.works("with another address")
	if err, left := check(); err != nil || !left {
		t.Errorf("with another address: %v, some are left: %v", err, left)
	}
	for _, a := range grant.Addresses {
		network := netip.PrefixFrom(a.Addr(), a.Addr().BitLen()-8).Masked()
		p.client.Output(t, "ip", "address", "add", netip.PrefixFrom(network.Addr().Next(), network.Bits()).String(), "dev", "eth0")
	}
	if err, left := check(); err == nil || left {
		t.Errorf("both addresses are in use: %v, some are left: %v", err, left)
	}
}

// Packets of the waypoint's own host do not go to a member, whatever the member's address is.
func TestMemberCannotTakeTheWaypointsTraffic(t *testing.T) {
	p := newPair(t)
	grant := p.ask(true)
	p.works("at first")
	member := grant.Addresses[0]
	way := func(to netip.Addr) string {
		fields := strings.Fields(p.waypoint.Output(t, "ip", "route", "get", to.String()))
		return fields[slices.Index(fields, "dev")+1]
	}
	for _, beside := range []netip.Addr{member.Addr().Prev(), member.Addr().Next(), grant.Addresses[1].Addr().Next()} {
		if beside.Is6() {
			p.waypoint.Output(t, "ip", "-6", "route", "replace", "default", "dev", "eth0")
		}
		if got := way(beside); got != "eth0" {
			t.Errorf("beside the member %v is reached by %s", beside, got)
		}
	}

	arrived := make(chan string, 10)
	inTunnel := socketIn(t, p.client, netip.AddrPortFrom(member.Addr(), 53))
	go func() {
		b := make([]byte, 100)
		for {
			n, _, err := inTunnel.ReadFrom(b)
			if err != nil {
				return
			}
			arrived <- string(b[:n])
		}
	}()
	sends := func() error {
		return p.waypoint.Do(func() error {
			c, err := net.Dial("udp4", netip.AddrPortFrom(member.Addr(), 53).String())
			if err != nil {
				return err
			}
			_, err = c.Write([]byte("a question of the waypoint's host"))
			return errors.Join(err, c.Close())
		})
	}
	if err := sends(); !errors.Is(err, unix.EPERM) {
		t.Errorf("the waypoint's host sends to a member: %v", err)
	}
	p.works("after the host has sent") // so that no packet is in flight
	// A flush of the host's rules opens the way only for a moment.
	p.waypoint.Output(t, "nft", "flush", "ruleset")
	p.waypoint.Must(t, func() error { p.giver.looked = time.Time{}; p.giver.tend(time.Now()); return nil })
	if err := sends(); !errors.Is(err, unix.EPERM) {
		t.Errorf("after a flush the waypoint's host sends to a member: %v", err)
	}
	p.works("after a flush")

	// The host gets a network that contains the member's address. From then on the address is reached there.
	host := netip.PrefixFrom(member.Addr().Next(), 24)
	if !host.Contains(member.Addr()) { // the member's address is the last of its network
		host = netip.PrefixFrom(member.Addr().Prev(), 24)
	}
	p.waypoint.Output(t, "ip", "address", "add", host.String(), "dev", "eth0")
	p.giver.networkChanged()
	p.waypoint.Must(t, func() error { p.giver.tend(time.Now()); return nil })
	if got := way(member.Addr()); got != "eth0" {
		t.Errorf("the host is in %v, and reaches %v by %s", host, member, got)
	}
	if again := p.ask(true).Addresses[0]; host.Contains(again.Addr()) {
		t.Errorf("the host is in %v, and the member gets %v", host, again)
	}
	p.works("with another address")
	public := p.giver.far.(*wireguardFar).PublicKey()
	own := string(public[:])
	if _, refusal := p.giver.Give(t.Context(), session.Peer{Name: "mallory"}, asking(own)); refusal == nil {
		t.Error("the waypoint's own key is let in")
	}
	select {
	case got := <-arrived:
		t.Errorf("the member received %q", got)
	default:
	}
}
