package wireguard

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// A waypoint behind NAT, of which one UDP port reaches it; so is the client behind one.
func TestThroughNAT(t *testing.T) {
	kinds(t, func(t *testing.T, c Config) {
		n := newNetwork(t)
		n.router.Output(t, "nft", natRules(""))
		c.Interface, c.ListenPort = "dcolwg", testPort
		waypoint := open(t, n.waypoint, c)
		waypoint.setTunnel(t, netstate.Tunnel{Interface: "dcolwg", Addresses: waypointInner})
		c.Interface, c.ListenPort = "dcolwg0", 0
		client := open(t, n.client, c)
		meet(t, client, waypoint, waypoint4)
		client.setPeer(t, Peer{
			PublicKey: waypoint.PublicKey(), Allowed: everything, Endpoint: netip.MustParseAddrPort("192.0.2.1:4500"), Keepalive: 25 * time.Second,
		})
		k := dial(t, n.client, clientInner[0].String(), n.echo(t, server4))
		k.exchange(t, 1<<20)
		if got := waypoint.state(t).Endpoint.Addr().String(); got != "198.51.100.1" {
			t.Errorf("the waypoint sees the client at %s", got)
		}

		// The NAT forgets and gives another port. What the client sends next shows it.
		n.router.Output(t, "nft", "flush ruleset")
		n.router.Output(t, "nft", natRules(" to :7000-7100"))
		n.router.Output(t, "conntrack", "-F")
		k.exchange(t, 1<<20)
		if got := waypoint.state(t).Endpoint.Port(); got < 7000 || got > 7100 {
			t.Errorf("the waypoint sees the client at port %d", got)
		}
	})
}

// natRules lead one UDP port to the waypoint, and hide the client.
func natRules(ports string) string {
	return `table ip nat {
		chain arrive {
			type nat hook prerouting priority dstnat;
			ip daddr 192.0.2.1 udp dport 4500 dnat to 198.51.100.2:51820;
		}
		chain leave {
			type nat hook postrouting priority srcnat;
			oifname eth1 ip protocol udp masquerade` + ports + `;
		}
	}`
}

// TCP goes on when the client's address changes under it, and when the waypoint's does.
func TestRoaming(t *testing.T) {
	kinds(t, func(t *testing.T, c Config) {
		n := newNetwork(t)
		client, waypoint := n.join(t, c, waypoint4)
		k := dial(t, n.client, clientInner[0].String(), n.echo(t, server4))
		stop, moved := make(chan struct{}), make(chan struct{})
		var rounds atomic.Int64
		go func() {
			defer close(moved)
			for {
				select {
				case <-stop:
					return
				default:
					if err := k.tryExchange(1 << 16); err != nil {
						t.Error(err)
						return
					}
					rounds.Add(1)
				}
			}
		}()
		goesOn := func(when string) {
			t.Helper()
			before := rounds.Load()
			eventually(t, "TCP goes on "+when, func() bool { return rounds.Load() > before+5 })
		}
		goesOn("at first")

		for _, ns := range []*netnstest.NS{n.client, n.waypoint} {
			ns.Must(t, func() error { return netstate.SetSysctl("net/ipv4/conf/all/promote_secondaries", "1") })
		}
		n.client.Output(t, "ip", "address", "add", "192.0.2.77/24", "dev", "eth0")
		n.client.Output(t, "ip", "address", "del", client4+"/24", "dev", "eth0") // and with it the default route
		n.client.Output(t, "ip", "route", "replace", "default", "via", "192.0.2.1", "dev", "eth0")
		goesOn("from the client's new address")
		if got := waypoint.state(t).Endpoint.Addr().String(); got != "192.0.2.77" {
			t.Errorf("the waypoint sees the client at %s", got)
		}

		n.waypoint.Output(t, "ip", "address", "add", "198.51.100.99/24", "dev", "eth0")
		peer := client.state(t).Peer
		peer.Endpoint = netip.MustParseAddrPort("198.51.100.99:51820")
		client.setPeer(t, peer)
		n.waypoint.Output(t, "ip", "address", "del", waypoint4+"/24", "dev", "eth0")
		n.waypoint.Output(t, "ip", "route", "replace", "default", "via", "198.51.100.1", "dev", "eth0")
		n.router.Output(t, "ip", "route", "replace", "203.0.113.0/24", "via", "198.51.100.99")
		goesOn("to the waypoint's new address")
		if got := client.state(t).Endpoint; got != peer.Endpoint {
			t.Errorf("the client sees the waypoint at %v", got)
		}
		close(stop)
		<-moved
	})
}

// A new endpoint is told to the peer at once, by the keepalive that comes with it.
func TestMoveWithoutTraffic(t *testing.T) {
	kinds(t, func(t *testing.T, c Config) {
		n := newNetwork(t)
		client, waypoint := n.join(t, c, waypoint4)
		eventually(t, "a handshake", func() bool { return waypoint.state(t).Alive(time.Now()) })
		before := waypoint.state(t).Received
		n.waypoint.Output(t, "ip", "address", "add", "198.51.100.99/24", "dev", "eth0")
		peer := client.state(t).Peer
		client.setPeer(t, peer) // the same endpoint: nothing to tell
		peer.Endpoint = netip.MustParseAddrPort("198.51.100.99:51820")
		start := time.Now()
		client.setPeer(t, peer)
		eventually(t, "the waypoint hears", func() bool { return waypoint.state(t).Received > before })
		if took := time.Since(start); took >= 25*time.Second { // as long as without
			t.Errorf("it took %v", took)
		}
	})
}

// The waypoint's end starts again and knows nothing of sessions: the client notices by itself
// (WireGuard paper, section 6.5), and TCP goes on.
func TestRestart(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 seconds of WireGuard's own time")
	}
	kinds(t, func(t *testing.T, c Config) {
		n := newNetwork(t)
		client, waypoint := n.join(t, c, waypoint4)
		k := dial(t, n.client, clientInner[0].String(), n.echo(t, server4))
		k.exchange(t, 1<<16)
		first := client.state(t).LastHandshake
		if err := waypoint.Close(); err != nil {
			t.Fatal(err)
		}
		c.Interface, c.ListenPort, c.PrivateKey = "dcolwg", testPort, waypoint.private
		waypoint = open(t, n.waypoint, c)
		waypoint.setTunnel(t, netstate.Tunnel{Interface: "dcolwg", Addresses: waypointInner})
		waypoint.setPeer(t, Peer{PublicKey: client.PublicKey(), Allowed: hostPrefixes(clientInner...)})
		k.exchange(t, 1<<16)
		if !client.state(t).LastHandshake.After(first) {
			t.Error("no new handshake")
		}
	})
}

// The first handshakes are lost: it is tried again until the path is there.
func TestHandshakeLost(t *testing.T) {
	kinds(t, func(t *testing.T, c Config) {
		n := newNetwork(t)
		n.router.Output(t, "nft", `table ip lossy {
			chain passing {
				type filter hook forward priority filter;
				udp dport 51820 drop;
			}
		}`)
		client, _ := n.join(t, c, waypoint4)
		eventually(t, "tries", func() bool { return client.state(t).Sent > 0 })
		if client.state(t).Alive(time.Now()) {
			t.Error("alive without a path")
		}
		n.router.Output(t, "nft", "flush ruleset")
		eventually(t, "a handshake", func() bool { return client.state(t).Alive(time.Now()) })
	})
}

func TestInnerMTU(t *testing.T) {
	for _, tt := range []struct {
		path       int
		outer      string
		interfaces int
		want       int
	}{
		{1500, waypoint4, 1440, 1440},
		{1500, waypoint4, 1420, 1420},
		{1500, waypoint6, 1420, 1420},
		{1500, "::ffff:" + waypoint4, 9000, 1440},
		{1400, waypoint4, 1420, 1328},
		{1400, waypoint6, 1420, 1312},
		{9000, waypoint4, 1420, 1420},
	} {
		if got := InnerMTU(tt.path, netip.MustParseAddr(tt.outer), tt.interfaces); got != tt.want {
			t.Errorf("%+v: %d", tt, got)
		}
	}
}

func TestNoFragments(t *testing.T) {
	kinds(t, func(t *testing.T, c Config) {
		for _, outer := range []string{waypoint4, waypoint6} {
			t.Run(outer, func(t *testing.T) {
				n := newNetwork(t)
				n.setPathMTU(t, 1500)
				// The waypoint's interface serves all members, whatever they come over.
				c.MTU = n.pathMTU(t, n.client, outer) - Overhead(netip.IPv6Unspecified())
				client, waypoint := n.join(t, c, outer)
				fragments := n.countFragments(t)
				own := clientInner[0].String()
				to := n.echo(t, server4)
				old := dial(t, n.client, own, to)
				old.exchange(t, 1<<20)
				if got := fragments(); got != 0 {
					t.Errorf("%d fragments at 1500", got)
				}

				// A narrower link comes into the path. Both ends look, and go by it; the waypoint has
				// one interface for all members, so only for this one.
				n.setPathMTU(t, 1400)
				eventually(t, "the narrow link is found", func() bool {
					return n.pathMTU(t, n.client, outer) == 1400 && n.pathMTU(t, n.waypoint, waypoint.state(t).Endpoint.Addr().String()) == 1400
				})
				narrow := InnerMTU(1400, netip.MustParseAddr(outer), c.MTU)
				if err := client.SetMTU(narrow); err != nil {
					t.Fatal(err)
				}
				for _, addr := range clientInner {
					n.waypoint.Must(t, func() error { return netstate.SetTunnelPeer("dcolwg", addr, narrow) })
				}
				fragments() // those of before count for nothing
				old.exchange(t, 1<<20)
				dial(t, n.client, own, to).exchange(t, 1<<20)
				if got := fragments(); got != 0 {
					t.Errorf("%d fragments at 1400", got)
				}

				// And the test sees fragments where there are some.
				if err := client.SetMTU(1420); err != nil {
					t.Fatal(err)
				}
				n.client.Must(t, func() error {
					c, err := net.DialUDP("udp4", &net.UDPAddr{IP: clientInner[0].AsSlice()}, &net.UDPAddr{IP: net.ParseIP(server4), Port: 9})
					if err != nil {
						return err
					}
					defer c.Close()
					_, err = c.Write(make([]byte, 1420-28))
					return err
				})
				eventually(t, "fragments with an MTU too large", func() bool { return fragments() > 0 })
			})
		}
	})
}

// setPathMTU makes the link between router and waypoint so wide.
func (n network) setPathMTU(t *testing.T, mtu int) {
	t.Helper()
	n.router.Output(t, "ip", "link", "set", "eth1", "mtu", strconv.Itoa(mtu))
	n.waypoint.Output(t, "ip", "link", "set", "eth0", "mtu", strconv.Itoa(mtu))
}

func (n network) pathMTU(t *testing.T, from *netnstest.NS, to string) (mtu int) {
	t.Helper()
	from.Must(t, func() (err error) {
		mtu, err = netstate.ProbePathMTU(context.Background(), netip.AddrPortFrom(netip.MustParseAddr(to), testPort), 100*time.Millisecond)
		return err
	})
	return mtu
}

// countFragments returns the number of fragments that the router has seen since the last call.
func (n network) countFragments(t *testing.T) func() int64 {
	t.Helper()
	// A packet of its own tells that it has seen all that came before.
	const marker = 4242
	var count atomic.Int64
	var dump *exec.Cmd
	ready, marked, ended := make(chan struct{}), make(chan struct{}, 100), make(chan struct{})
	n.router.Must(t, func() error {
		dump = exec.Command("tcpdump", "-lnni", "any", "--immediate-mode", fmt.Sprintf("ip[6:2] & 0x3fff != 0 or ip6[6] == 44 or udp dst port %d", marker))
		out, err := dump.StdoutPipe()
		if err != nil {
			return err
		}
		said, err := dump.StderrPipe()
		if err != nil {
			return err
		}
		go func() {
			lines := bufio.NewScanner(said)
			for lines.Scan() && !strings.Contains(lines.Text(), "listening") {
			}
			close(ready)
			for lines.Scan() {
			}
		}()
		go func() {
			defer close(ended)
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if strings.Contains(lines.Text(), fmt.Sprintf(".%d:", marker)) {
					marked <- struct{}{}
				} else {
					count.Add(1)
				}
			}
		}()
		return dump.Start()
	})
	<-ready
	t.Cleanup(func() {
		_ = dump.Process.Kill()
		<-ended
		var exit *exec.ExitError
		if err := dump.Wait(); err != nil && !errors.As(err, &exit) {
			t.Error(err)
		}
	})
	return func() int64 {
		n.router.Must(t, func() error {
			c, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.ParseIP(client4), Port: marker})
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte{1})
			return err
		})
		select {
		case <-marked:
		case <-ended:
			t.Fatal("tcpdump has ended")
		}
		return count.Swap(0)
	}
}
