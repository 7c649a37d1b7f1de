package wireguard

import (
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

const sharedPort = 45672

// onePort is a firewall that lets in one UDP port, and answers to what went out.
const onePort = `table inet firewall {
	chain input {
		type filter hook input priority filter; policy drop;
		meta l4proto { icmp, ipv6-icmp } accept
		ct state invalid drop
		ct state established,related accept
		iifname "eth0" udp dport 45672 accept
		counter comment "dropped"
	}
	chain output {
		type filter hook output priority filter; policy drop;
		meta l4proto { icmp, ipv6-icmp } accept
		oifname "eth0" ct state established udp sport 45672 accept
		oifname != "eth0" accept
	}
}`

// neighbour is the QUIC server on the port: it echoes what it gets.
type neighbour struct {
	packets, messages atomic.Int64 // all, and those that begin as WireGuard's do
}

func (n network) neighbour(t *testing.T, at string) *neighbour {
	t.Helper()
	var socket *net.UDPConn
	n.waypoint.Must(t, func() (err error) {
		socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
		return err
	})
	var q neighbour
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 1<<16)
		for {
			size, from, err := socket.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			q.packets.Add(1)
			if size >= 4 && buffer[0] >= 1 && buffer[0] <= 4 && [3]byte(buffer[1:4]) == [3]byte{} {
				q.messages.Add(1)
			}
			_, _ = socket.WriteToUDPAddrPort(buffer[:size], from)
		}
	}()
	t.Cleanup(func() { _ = socket.Close(); <-done })
	return &q
}

func share(t *testing.T, waypoint *end, public string) *nft.Kept {
	t.Helper()
	var s *nft.Kept
	waypoint.ns.Must(t, func() (err error) {
		s, err = SharePort(netip.MustParseAddrPort(public), waypoint.ListenPort())
		return err
	})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// shared is a waypoint whose device has any port, and a client that knows the shared one.
func (n network) shared(t *testing.T, c Config, public, outer string) (client, waypoint *end, s *nft.Kept) {
	t.Helper()
	c.Interface, c.ListenPort = "dcolwg", 0
	waypoint = open(t, n.waypoint, c)
	waypoint.setTunnel(t, netstate.Tunnel{Interface: "dcolwg", Addresses: waypointInner})
	s = share(t, waypoint, public)
	c.Interface = "dcolwg0"
	client = open(t, n.client, c)
	meet(t, client, waypoint, outer)
	peer := client.state(t).Peer
	peer.Endpoint = netip.AddrPortFrom(peer.Endpoint.Addr(), sharedPort)
	client.setPeer(t, peer)
	return client, waypoint, s
}

// One UDP port is all that a firewall has to let in, for WireGuard and QUIC.
func TestSharedPort(t *testing.T) {
	kinds(t, func(t *testing.T, c Config) {
		for _, tt := range []struct{ public, at, outer, server string }{
			{"[::]:45672", "[::]:45672", waypoint4, server4},
			{"0.0.0.0:45672", "[::]:45672", waypoint6, server6},
			{waypoint4 + ":45672", waypoint4 + ":45672", waypoint4, server4},
			{"[" + waypoint6 + "]:45672", "[" + waypoint6 + "]:45672", waypoint6, server6},
		} {
			t.Run(tt.public+" "+tt.outer, func(t *testing.T) {
				t.Parallel()
				n := newNetwork(t)
				n.waypoint.Output(t, "nft", onePort)
				quic := n.neighbour(t, tt.at)
				client, waypoint, _ := n.shared(t, c, tt.public, tt.outer)
				k := dial(t, n.client, inner(tt.outer), n.echo(t, tt.server))
				k.exchange(t, 1<<20)
				if got := client.state(t).Endpoint.Port(); got != sharedPort {
					t.Errorf("the waypoint answers from port %d", got)
				}
				// Where the session's port is changed on the way, so is WireGuard's.
				answersQUIC(t, n.client, netip.AddrPortFrom(netip.MustParseAddr(tt.outer), sharedPort))
				if quic.messages.Load() > 0 || quic.packets.Load() == 0 {
					t.Errorf("QUIC got %d packets, %d of them WireGuard's", quic.packets.Load(), quic.messages.Load())
				}
				if waypoint.ListenPort() == sharedPort {
					t.Error("the device has the shared port itself")
				}
			})
		}
	})
}

func inner(outer string) string {
	if strings.Contains(outer, ":") {
		return clientInner[1].String()
	}
	return clientInner[0].String()
}

// answersQUIC demands that what may be a QUIC packet, or is none of WireGuard's, gets to QUIC.
func answersQUIC(t *testing.T, from *netnstest.NS, to netip.AddrPort) {
	t.Helper()
	var c net.Conn
	from.Must(t, func() (err error) { c, err = net.Dial("udp", to.String()); return err })
	defer c.Close()
	var packets [][]byte
	for first := 0x40; first <= 0xff; first++ { // long and short headers, whatever follows
		packets = append(packets, []byte{byte(first), 0, 0, 0}, []byte{byte(first)})
	}
	packets = append(packets, []byte{1}, []byte{2, 0, 0}, []byte{4, 0, 1, 0}, []byte{3, 1, 0, 0}, []byte{1, 0, 0, 1}, []byte{0, 0, 0, 0}, []byte{5, 0, 0, 0})
	answer := make([]byte, 64)
	for _, p := range packets {
		if _, err := c.Write(p); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if size, err := c.Read(answer); err != nil || string(answer[:size]) != string(p) {
			t.Fatalf("to % x QUIC answers % x, %v", p, answer[:size], err)
		}
	}
}

// A forwarding from another port, by a NAT that also hides the client, is one for both.
func TestSharedPortBehindNAT(t *testing.T) {
	kinds(t, func(t *testing.T, c Config) {
		n := newNetwork(t)
		n.router.Output(t, "nft", strings.ReplaceAll(natRules(""), "51820", "45672"))
		n.neighbour(t, "[::]:45672")
		client, _, _ := n.shared(t, c, "[::]:45672", waypoint4)
		peer := client.state(t).Peer
		peer.Endpoint = netip.MustParseAddrPort("192.0.2.1:4500")
		client.setPeer(t, peer)
		dial(t, n.client, clientInner[0].String(), n.echo(t, server4)).exchange(t, 1<<20)
		answersQUIC(t, n.client, peer.Endpoint)
	})
}

// A client that knocked while the rules were not there comes in once they are, though its packets
// never pause.
func TestSharedPortIsRestored(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.waypoint.Output(t, "nft", onePort) // which tracks connections
	quic := n.neighbour(t, "[::]:45672")
	client, waypoint, s := n.shared(t, Config{}, "[::]:45672", waypoint4)
	k := dial(t, n.client, clientInner[0].String(), n.echo(t, server4))
	check := func(want bool) {
		t.Helper()
		if restored, err := s.Check(); err != nil || restored != want {
			t.Fatalf("restored %v, %v", restored, err)
		}
	}
	check(false)
	n.waypoint.Output(t, "nft", "flush ruleset")
	n.waypoint.Output(t, "nft", onePort)
	// A handshake on the same port.
	anew := func() {
		t.Helper()
		peer := client.state(t).Peer
		if err := client.RemovePeer(peer.PublicKey); err != nil {
			t.Fatal(err)
		}
		client.setPeer(t, peer)
	}
	anew()
	eventually(t, "a message goes astray", func() bool { return quic.messages.Load() > 0 })
	check(true)
	k.exchange(t, 1<<20)

	// The device begins anew, at another port, after a crash.
	private := waypoint.private
	if err := waypoint.Close(); err != nil {
		t.Fatal(err)
	}
	waypoint = open(t, n.waypoint, Config{Interface: "dcolwg", PrivateKey: private})
	waypoint.setTunnel(t, netstate.Tunnel{Interface: "dcolwg", Addresses: waypointInner})
	waypoint.setPeer(t, Peer{PublicKey: client.PublicKey(), Allowed: hostPrefixes(clientInner...)})
	share(t, waypoint, "[::]:45672")
	anew()
	k.exchange(t, 1<<20)
}

func TestSharedPortLeavesNothing(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	_, _, s := n.shared(t, Config{}, "[::]:45672", waypoint4)
	if rules := n.waypoint.Output(t, "nft", "list", "ruleset"); !strings.Contains(rules, "udp dport 45672") {
		t.Errorf("nft reads\n%s", rules)
	}
	for range 2 {
		n.waypoint.Must(t, CleanUpSharedPort)
		if rules := n.waypoint.Output(t, "nft", "list", "ruleset"); rules != "" {
			t.Errorf("left behind:\n%s", rules)
		}
	}
	if restored, err := s.Check(); err != nil || !restored {
		t.Errorf("restored %v, %v", restored, err)
	}
}
