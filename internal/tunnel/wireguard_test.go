package tunnel

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/vpn/wireguard"
)

// pair is a client and a waypoint, in namespaces, with a home router before the waypoint that forwards one UDP port:
//
//	client .2 -- 192.0.2.0/24 -- .1 router .1 -- 198.51.100.0/24 -- .2 waypoint
type pair struct {
	t                        *testing.T
	client, router, waypoint *netnstest.NS
	gate                     *fakeGate
	giver                    *Giver
	end                      *wireguardEnd
	to                       place
}

// The session's port at the waypoint, and its external address.
var inside45672, outside4500 = netip.MustParseAddrPort("[::]:45672"), netip.MustParseAddrPort("192.0.2.1:4500")

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{t: t, client: netnstest.New(t), router: netnstest.New(t), waypoint: netnstest.New(t)}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("needs TUN: %v", err)
	}
	netnstest.Veth(t, netnstest.End{NS: p.client, Name: "eth0", Addresses: []string{"192.0.2.2/24"}},
		netnstest.End{NS: p.router, Name: "eth0", Addresses: []string{"192.0.2.1/24"}})
	netnstest.Veth(t, netnstest.End{NS: p.router, Name: "eth1", Addresses: []string{"198.51.100.1/24"}},
		netnstest.End{NS: p.waypoint, Name: "eth0", Addresses: []string{"198.51.100.2/24"}})
	p.router.Must(t, func() error { return netstate.SetSysctl("net/ipv4/ip_forward", "1") })
	p.router.Output(t, "nft", `table ip home {
		chain arrive { type nat hook prerouting priority dstnat; iifname "eth0" udp dport 4500 dnat to 198.51.100.2:45672; }
		chain leave { type nat hook postrouting priority srcnat; oifname "eth0" masquerade; }
	}`)
	p.client.Route(t, "0.0.0.0/0", "192.0.2.1")
	p.waypoint.Route(t, "0.0.0.0/0", "198.51.100.1")
	p.settle()
	p.gate = &fakeGate{open: make(map[netip.Addr]string)}
	p.serve()
	private, public, err := wireguard.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	p.end = &wireguardEnd{route: route{iface: "dcolwg0", ranges: testRanges}, private: private, public: public, log: slog.New(slog.DiscardHandler)}
	p.to = place{at: outside4500, rtt: time.Millisecond}
	t.Cleanup(func() {
		p.client.Must(t, p.end.drop)
		p.stop()
		for _, ns := range []*netnstest.NS{p.client, p.waypoint} {
			if left := ns.Output(t, "nft", "list", "ruleset") + ns.Output(t, "ip", "-o", "link"); strings.Contains(left, "dcol") {
				t.Errorf("left behind:\n%s", left)
			}
		}
	})
	return p
}

// settle waits until new interfaces stop dropping packets.
func (p *pair) settle() {
	p.t.Helper()
	for end := time.Now().Add(90 * time.Second); ; {
		err := p.client.Do(func() error {
			return refused(netip.MustParseAddr("192.0.2.2"), netip.MustParseAddrPort("198.51.100.2:9"))
		})
		if err == nil {
			return
		}
		if time.Now().After(end) {
			p.t.Fatal(err)
		}
	}
}

// serve starts the waypoint's end, always with the same key.
func (p *pair) serve() {
	p.t.Helper()
	p.waypoint.Must(p.t, func() (err error) {
		p.giver, err = GiveWireGuard(GiveWireGuardConfig{
			GiveConfig: GiveConfig{
				Seed: [32]byte{4, 5, 6}, Ranges: testRanges, PerMember: perMember, Lease: time.Minute, Gate: p.gate, Log: slog.New(slog.DiscardHandler),
			},
			Key: [32]byte{1, 2, 3}, Session: inside45672,
		})
		return err
	})
}

func (p *pair) stop() {
	p.t.Helper()
	p.waypoint.Must(p.t, p.giver.stop)
}

// ask does what a Keeper does: it requests a grant and sets up the tunnel.
func (p *pair) ask(fresh bool) wire.TunnelGrant {
	p.t.Helper()
	var req wire.TunnelRequest
	p.client.Must(p.t, func() (err error) { req, err = p.end.request(); return err })
	var grant wire.TunnelGrant
	p.waypoint.Must(p.t, func() error {
		g, refusal := p.giver.Give(p.t.Context(), session.Peer{Name: "alice"}, req)
		if refusal != nil {
			return refusal
		}
		grant = g
		return nil
	})
	p.to.fresh = fresh
	p.client.Must(p.t, func() error { return p.end.set(p.t.Context(), p.to, grant) })
	return grant
}

// look does what a Keeper and a Giver do every second.
func (p *pair) look() (addrs []netip.Addr, why string) {
	p.t.Helper()
	p.waypoint.Must(p.t, func() error { p.giver.tend(time.Now()); return nil })
	p.client.Must(p.t, func() error {
		list, reason := p.end.tunnels(p.t.Context())
		for _, l := range list {
			addrs = append(addrs, l.Local)
		}
		why = reason
		return nil
	})
	return addrs, why
}

// works checks that packets pass through the tunnel in both directions.
func (p *pair) works(when string) {
	p.t.Helper()
	var why string
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var addrs []netip.Addr
		if addrs, why = p.look(); len(addrs) == 2 && p.answers(addrs[0]) {
			return
		}
	}
	p.t.Fatalf("%s: nothing comes through the tunnel: %s", when, why)
}

// refused returns nil if a connection is refused because nothing listens at the address.
func refused(from netip.Addr, to netip.AddrPort) error {
	d := net.Dialer{Timeout: time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
	d.SetMultipathTCP(false)
	c, err := d.Dial("tcp", to.String())
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	if err == nil {
		err = errors.Join(errors.New("somebody listens there"), c.Close())
	}
	return err
}

// answers reports whether the waypoint refuses a connection to its end of the tunnel.
func (p *pair) answers(from netip.Addr) bool {
	gateway := p.giver.Gateway(from)
	return p.client.Do(func() error { return refused(from, netip.AddrPortFrom(gateway, 9)) }) == nil
}

// hasMTU waits until the client uses an MTU that routers have reported.
func (p *pair) hasMTU(when, want string) {
	p.t.Helper()
	var got string
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		p.look()
		_, after, _ := strings.Cut(p.client.Output(p.t, "ip", "-o", "link", "show", "dcolwg0"), " mtu ")
		if got, _, _ = strings.Cut(after, " "); got == want {
			return
		}
	}
	p.t.Errorf("%s the MTU is %s, want %s", when, got, want)
}

// The waypoint is behind a NAT that forwards the session's port under another number. If the client asks again, the
// tunnel keeps its address, although the address is then in use on the client, by the tunnel.
func TestWireGuardTunnel(t *testing.T) {
	p := newPair(t)
	first := p.ask(true)
	if first.Port != 0 {
		t.Errorf("granted at port %d", first.Port)
	}
	p.works("at first")
	for range 3 {
		again := p.ask(false)
		if got, want := again.Addresses, first.Addresses; len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
			t.Errorf("the tunnel has %v, and had %v", got, want)
		}
	}
	p.works("asked for again")
}

// The next agent has the same key, and so the same addresses. It uses another key only if there is no handshake with
// this one.
func TestWireGuardKeyIsKept(t *testing.T) {
	p := newPair(t)
	first := p.ask(true)
	p.works("at first")
	public := p.end.public
	next := func() {
		before := p.end
		p.client.Must(t, before.drop)
		p.end = &wireguardEnd{route: route{iface: before.iface, ranges: before.ranges}, private: before.private, public: public, untried: true, log: before.log}
	}
	next()
	if got := p.ask(true).Addresses; !slices.Equal(got, first.Addresses) {
		t.Errorf("the next agent has %v, and the one before had %v", got, first.Addresses)
	}
	p.works("with the next agent")
	p.end.opened = time.Now().Add(-keyTrial)
	if p.ask(false); p.end.public != public {
		t.Error("a key that works was replaced")
	}

	next()
	p.router.Output(t, "nft", `table ip cut { chain leave { type filter hook forward priority 0; udp dport 45672 drop; }; }`)
	p.ask(true)
	if p.ask(false); p.end.public != public {
		t.Error("the key was replaced at once")
	}
	p.end.opened = time.Now().Add(-keyTrial)
	if p.ask(false); p.end.public == public {
		t.Error("the key stays although there is no handshake")
	}
	p.router.Output(t, "nft", "delete", "table", "ip", "cut")
	p.ask(true)
	p.works("with another key")
}

func TestWireGuardFollowsThePath(t *testing.T) {
	p := newPair(t)
	p.router.Output(t, "ip", "link", "set", "eth1", "mtu", "1400")
	p.ask(true)
	// 1400 less 60 of headers, and a multiple of 16 (see wireguard.InnerMTU).
	p.hasMTU("over a path of 1400 bytes", "1328")
	p.works("over a narrow path")
	route := func(mtu string) {
		t.Helper()
		p.client.Output(t, "ip", "route", "flush", "cache")
		p.client.Output(t, "ip", "route", "replace", "default", "via", "192.0.2.1", "mtu", mtu)
		p.client.Output(t, "ip", "route", "replace", "192.0.2.0/24", "dev", "eth0", "mtu", mtu)
	}
	for mtu, want := range map[string]string{"1380": "1312", "1350": "1280"} {
		route(mtu)
		p.hasMTU("over a path of "+mtu+" bytes", want)
		p.works("over a path that has changed")
	}
	route("1500")
	p.router.Output(t, "ip", "link", "set", "eth1", "mtu", "1500")
	p.hasMTU("over a path that is wide again", "1420") // the waypoint's bound
	p.works("over a path that is wide again")
	route("1300")
	if addrs, why := p.look(); len(addrs) > 0 || !strings.Contains(why, "IPv6 needs at least 1280") {
		t.Errorf("over a path of 1300 bytes there are %v, %q", addrs, why)
	}
	route("1500")
	p.works("once more")
}

// The path to one member has a smaller MTU than those to the others.
func TestWireGuardMemberIsFollowed(t *testing.T) {
	p := newPair(t)
	grant := p.ask(true)
	p.works("at first")
	toMember := func() string {
		return p.waypoint.Output(t, "ip", "route", "show", "table", "main", "root", grant.Addresses[0].Addr().String()+"/32")
	}
	p.waypoint.Output(t, "ip", "route", "replace", "default", "via", "198.51.100.1", "mtu", "1400")
	p.works("over a narrow path")
	p.look()
	if got := toMember(); !strings.Contains(got, "mtu 1328") {
		t.Errorf("to the member leads %q", got)
	}
	if err := p.waypoint.Do(func() error { return p.giver.Expel("alice") }); err != nil {
		t.Fatal(err)
	}
	p.look()
	if got := toMember(); got != "" {
		t.Errorf("to a member that has gone leads %q", got)
	}
}

// Interfaces that another program removes are created again, at both ends.
func TestWireGuardInterfacesAreMadeAnew(t *testing.T) {
	p := newPair(t)
	p.ask(true)
	p.works("at first")
	p.client.Output(t, "ip", "link", "del", "dcolwg0")
	p.works("without the client's interface")
	p.waypoint.Output(t, "ip", "link", "del", "dcolwg")
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if p.look(); strings.Contains(p.waypoint.Output(t, "ip", "-o", "address"), wireguardInterface) {
			break
		}
	}
	p.ask(true)
	p.works("without the waypoint's interface")
}

// A restarted waypoint does not know the WireGuard session. Another one begins at once, and the tunnel is not given up
// meanwhile.
func TestWireGuardWaypointRestarts(t *testing.T) {
	p := newPair(t)
	p.ask(true)
	p.works("at first")
	p.stop()
	p.serve()
	restarted := time.Now()
	p.ask(true)
	if addrs, why := p.look(); len(addrs) != 2 {
		t.Errorf("right after it: %v, %q", addrs, why)
	}
	p.works("after a restart of the waypoint")
	p.client.Must(t, func() error {
		peers, err := p.end.device.Peers()
		if len(peers) != 1 || peers[0].LastHandshake.Before(restarted) {
			t.Errorf("there was no handshake since %v: %+v", restarted, peers)
		}
		return err
	})
	// A waypoint that did not restart keeps the WireGuard session when the grant is renewed.
	before := p.handshake()
	p.ask(false)
	if p.handshake() != before {
		t.Error("a renewal made another handshake")
	}

	// Without the waypoint, the tunnel is given up in the end.
	p.stop()
	p.client.Must(t, func() error { return p.end.meet(p.end.peer, true) })
	p.end.grace = time.Now().Add(-time.Second)
	p.serve()
	if addrs, why := p.look(); len(addrs) > 0 || !strings.Contains(why, "no WireGuard handshake with 192.0.2.1:4500/udp") {
		t.Errorf("without a waypoint there are %v, %q", addrs, why)
	}
}

func (p *pair) handshake() (last time.Time) {
	p.t.Helper()
	p.client.Must(p.t, func() error {
		peers, err := p.end.device.Peers()
		if len(peers) == 1 {
			last = peers[0].LastHandshake
		}
		return err
	})
	return last
}
