package waypoint

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/waypoint/flows"
)

// reconnectWithin is how soon a host has to get through. SYNs are sent at 0, 1, 3 and 7 s.
const reconnectWithin = 10 * time.Second

func acceptSoon(t testing.TB, l net.Listener) net.Conn {
	t.Helper()
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(reconnectWithin))
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

// loses makes a host lose a connection as a power cut does: without a packet.
func loses(t testing.TB, host *netnstest.NS, c net.Conn) {
	t.Helper()
	host.Output(t, "nft", "table inet cut { chain output { type filter hook output priority 0; meta l4proto tcp drop; }; }")
	if err := errors.Join(c.(*net.TCPConn).SetLinger(0), c.Close()); err != nil {
		t.Fatal(err)
	}
	host.Output(t, "nft", "delete table inet cut")
}

// waitWatched lets the only connection talk until the numbers of both directions have been noted.
func (n *network) waitWatched(t testing.TB, w *Waypoint, c talker) {
	t.Helper()
	if w.loop.connections.fast == nil {
		t.Skip("this kernel has no fast path")
	}
	eventually(t, "the connection is watched", func() bool {
		if err := c.talk(10); err != nil {
			t.Fatal(err)
		}
		list := n.tracked(t)
		if len(list) != 1 {
			t.Fatalf("conntrack has %+v", list)
		}
		state, err := w.loop.connections.fast.Look(flows.Key(list[0]))
		if err != nil {
			t.Fatal(err)
		}
		return state.Seen.Origin.Begun > 0 && state.Seen.Reply.Begun > 0
	})
}

// dialFrom connects from a local address within some time.
func (n *network) dialFrom(t testing.TB, from, to netip.AddrPort, within time.Duration) (net.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	var c net.Conn
	err := n.client.Do(func() (err error) {
		dialer := net.Dialer{
			LocalAddr:     net.TCPAddrFromAddrPort(from),
			FallbackDelay: -1,
			Control: func(_, _ string, raw syscall.RawConn) (err error) {
				controlErr := raw.Control(func(fd uintptr) {
					err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
				})
				return errors.Join(controlErr, err)
			},
		}
		c, err = dialer.DialContext(ctx, "tcp", to.String())
		return err
	})
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
	}
	return c, err
}

// A host that has lost a connection, and tries again from the same port, gets through within a few seconds:
// by the fast path, while the connection is watched, and where a limit keeps it with netfilter. The server
// learns that the old connection is over, or has lost it as well.
func TestLostConnectionIsReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		change     func(*Config)
		fast       bool
		serverLost bool
	}{
		"on the fast path":          {func(*Config) {}, true, false},
		"on the fast path, by both": {func(*Config) {}, true, true},
		"watched":                   {func(*Config) {}, false, false},
		"with a limit":              {func(c *Config) { c.BandwidthPerMember = 1 << 30 }, false, false},
		"with a limit, by both":     {func(c *Config) { c.BandwidthPerMember = 1 << 30 }, false, true},
		"without a fast path":       {func(c *Config) { c.FastPath = false }, false, false},
	} {
		for family, a := range map[string]struct {
			client, waypoint netip.Addr
			listen           string
		}{
			"IPv4": {client4, waypoint4, "10.2.0.1:443"},
			"IPv6": {client6, waypoint6, "[fd02::1]:443"},
		} {
			t.Run(name+"/"+family, func(t *testing.T) {
				t.Parallel()
				n := newNetwork(t)
				c.change(&n.config)
				listener := n.server.Listen(t, a.listen)
				w, _ := n.start(t)
				mustMap(t, w, peer("alice", a.client), netip.MustParseAddrPort(a.listen), 443)
				to := netip.AddrPortFrom(a.waypoint, 443)
				client, err := n.client.Dial(t.Context(), to)
				if err != nil {
					t.Fatal(err)
				}
				lost := ends{client, acceptSoon(t, listener)}
				n.waitWatched(t, w, lost)
				if c.fast {
					waitFast(t, w, 1, lost)
				}
				from := netip.MustParseAddrPort(client.LocalAddr().String())
				loses(t, n.client, client)
				if c.serverLost {
					loses(t, n.server, lost.server)
				}

				begin := time.Now()
				again, err := n.dialFrom(t, from, to, reconnectWithin)
				if err != nil {
					t.Fatalf("from the same port: %v", err)
				}
				t.Logf("connected after %v", time.Since(begin))
				now := ends{again, acceptSoon(t, listener)}
				if err := now.talk(1000); err != nil {
					t.Error(err)
				}
				if !c.serverLost {
					_ = lost.server.SetDeadline(time.Now().Add(reconnectWithin))
					if _, err := lost.server.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
						t.Errorf("the server sees of the lost connection: %v", err)
					}
				}
				if c.fast { // the new one gets there, too
					waitFast(t, w, 1, now)
					if err := now.talk(10000); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// With an in-band detour such a host may connect to another server from the same port. The SYN does not go to the
// server of the earlier connection, which would read another server's address in it.
func TestLostConnectionIsReplacedInBand(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.config.InBand = InBandAuthenticated
	n.server.Output(t, "ip", "address", "add", "10.2.0.3/24", "dev", "eth0")
	w, _ := n.start(t)
	if ok, why := w.OffersInBand(); !ok {
		t.Skip(why)
	}
	alice := overSession("alice", client4, 1)
	w.SessionUp(alice)
	grant := mustInBand(t, w, alice)
	var sender *inband.Sender
	n.client.Must(t, func() (err error) {
		if sender, err = inband.OpenSender(inband.SenderConfig{}); err != nil {
			return err
		}
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return sender.Attach([]int{eth0.Index})
	})
	defer sender.Close()
	from, to := netip.AddrPortFrom(client4, 45678), netip.AddrPortFrom(waypoint4, 443)
	dial := func(server net.Listener) (ends, time.Duration) {
		t.Helper()
		expect := inband.Join{Local: from, Remote: to, Server: netip.MustParseAddrPort(server.Addr().String()).Addr(),
			Auth: &inband.Auth{Key: inband.Key(grant.Key), Client: grant.Client, ClientPort: grant.ClientPort}}
		if err := sender.Expect(expect); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		client, err := n.dialFrom(t, from, to, reconnectWithin)
		if err != nil {
			t.Fatal(err)
		}
		return ends{client, acceptSoon(t, server)}, time.Since(begin)
	}
	first, second := n.server.Listen(t, "10.2.0.1:443"), n.server.Listen(t, "10.2.0.3:443")
	lost, _ := dial(first)
	waitFast(t, w, 1, lost)
	tap := newTap(t, n.server)
	loses(t, n.client, lost.client)
	now, took := dial(second)
	t.Logf("connected after %v", took)
	if err := now.talk(1000); err != nil {
		t.Error(err)
	}
	_ = lost.server.SetDeadline(time.Now().Add(reconnectWithin))
	if _, err := lost.server.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the first server sees of the lost connection: %v", err)
	}
	if got := tap.all(func(p seenPacket) bool { return p.dst.String() == "10.2.0.1:443" && p.flags&packet.SYN != 0 }); len(got) > 0 {
		t.Errorf("the first server gets SYNs: %+v", got)
	}
}
