package wireguard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// kinds runs a test with the embedded WireGuard, and with the kernel's where there is one, beside
// other tests.
func kinds(t *testing.T, test func(t *testing.T, c Config)) {
	t.Helper()
	t.Parallel()
	t.Run("userspace", func(t *testing.T) {
		t.Parallel()
		test(t, Config{ForceUserspace: true})
	})
	t.Run("kernel", func(t *testing.T) {
		t.Parallel()
		needKernel(t)
		test(t, Config{})
	})
}

func needKernel(t *testing.T) {
	t.Helper()
	err := netnstest.New(t).Do(func() error {
		link, err := netstate.AddWireGuard("dcolwg", 1420)
		if err == nil {
			err = link.Remove()
			link.Close()
		}
		return err
	})
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("this kernel has no WireGuard")
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestTunnel(t *testing.T) {
	kinds(t, func(t *testing.T, c Config) {
		for _, outer := range []string{waypoint4, waypoint6} {
			t.Run(outer, func(t *testing.T) {
				n := newNetwork(t)
				client, waypoint := n.join(t, c, outer)
				for i, host := range []string{server4, server6} {
					to := n.echo(t, host)
					own := clientInner[i].String()
					through := dial(t, n.client, own, to)
					if through.Seen != own {
						t.Errorf("through the tunnel the server sees %s", through.Seen)
					}
					through.exchange(t, 1<<20)

					before := client.state(t)
					direct := dial(t, n.client, "", to)
					if want := []string{client4, client6}[i]; direct.Seen != want {
						t.Errorf("beside the tunnel the server sees %s, not %s", direct.Seen, want)
					}
					direct.exchange(t, 1<<20)
					if after := client.state(t); after.Sent-before.Sent > 1<<16 {
						t.Errorf("beside the tunnel %d bytes went through it", after.Sent-before.Sent)
					}
				}
				for _, e := range []*end{client, waypoint} {
					if s := e.state(t); !s.Alive(time.Now()) || s.Received < 1<<20 || s.Sent < 1<<20 || !s.Endpoint.IsValid() {
						t.Errorf("state %+v", s)
					}
				}
			})
		}
	})
}

// The kernel's and the embedded WireGuard understand each other.
func TestKindsMixed(t *testing.T) {
	t.Parallel()
	needKernel(t)
	n := newNetwork(t)
	waypoint := open(t, n.waypoint, Config{Interface: "dcolwg", ListenPort: testPort})
	waypoint.setTunnel(t, netstate.Tunnel{Interface: "dcolwg", Addresses: waypointInner})
	client := open(t, n.client, Config{Interface: "dcolwg0", ForceUserspace: true})
	if waypoint.Kind() != "kernel" || client.Kind() != "userspace" {
		t.Fatalf("kinds %s and %s", waypoint.Kind(), client.Kind())
	}
	meet(t, client, waypoint, waypoint4)
	dial(t, n.client, clientInner[0].String(), n.echo(t, server4)).exchange(t, 1<<20)
}

// An end with a keepalive makes the handshake by itself, so that it is there before the first
// connection; one without its peer never gets it.
func TestHandshake(t *testing.T) {
	kinds(t, func(t *testing.T, c Config) {
		n := newNetwork(t)
		client, waypoint := n.join(t, c, waypoint4)
		eventually(t, "a handshake", func() bool { return client.state(t).Alive(time.Now()) })
		if client.state(t).Alive(time.Now().Add(rejectAfter)) {
			t.Error("a session lives for ever")
		}
		if s := client.state(t); s.Keepalive != 25*time.Second || !slices.Equal(s.Allowed, everything) || s.PublicKey != waypoint.PublicKey() ||
			s.Endpoint != netip.MustParseAddrPort("198.51.100.2:51820") {
			t.Errorf("state %+v", s)
		}

		_, other, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		wrong := client.state(t).Peer
		if err := client.RemovePeer(wrong.PublicKey); err != nil {
			t.Fatal(err)
		}
		if err := client.RemovePeer(wrong.PublicKey); err != nil {
			t.Errorf("removed twice: %v", err)
		}
		wrong.PublicKey = other
		client.setPeer(t, wrong)
		eventually(t, "two tries", func() bool { return client.state(t).Sent >= 2*148 })
		if s := client.state(t); s.Alive(time.Now()) || !s.LastHandshake.IsZero() || s.Received != 0 {
			t.Errorf("with a wrong key: %+v", s)
		}
		if k, err := tryDial(n.client, clientInner[0].String(), n.echo(t, server4), time.Second); err == nil {
			t.Errorf("with a wrong key the server sees %s", k.Seen)
		}
	})
}

// Prefixes come and go; what another peer was allowed is this one's now.
func TestAllowed(t *testing.T) {
	kinds(t, func(t *testing.T, c Config) {
		c.Interface = "dcolwg"
		d := open(t, netnstest.New(t), c)
		a, b := Peer{PublicKey: [32]byte{1}}, Peer{PublicKey: [32]byte{2}}
		allowed := func(want string) {
			t.Helper()
			peers, err := d.Peers()
			if err != nil {
				t.Fatal(err)
			}
			got := make(map[[32]byte][]string)
			for _, p := range peers {
				for _, x := range p.Allowed {
					got[p.PublicKey] = append(got[p.PublicKey], x.String())
				}
				slices.Sort(got[p.PublicKey])
			}
			if s := fmt.Sprint(got[a.PublicKey], got[b.PublicKey]); s != want {
				t.Errorf("got %s, want %s", s, want)
			}
		}
		a.Allowed = hostPrefixes(clientInner...)
		d.setPeer(t, a)
		d.setPeer(t, a)
		d.setPeer(t, b)
		allowed("[10.7.0.9/32 fd07::9/128] []")
		b.Allowed = a.Allowed[:1]
		d.setPeer(t, b)
		allowed("[fd07::9/128] [10.7.0.9/32]")
		d.setPeer(t, a)
		allowed("[10.7.0.9/32 fd07::9/128] []")
		a.Allowed = hostPrefixes(netip.MustParseAddr("10.7.0.10"))
		d.setPeer(t, a)
		allowed("[10.7.0.10/32] []")
	})
}

func TestManyPeers(t *testing.T) {
	kinds(t, func(t *testing.T, c Config) {
		const peers = 20
		n := newNetwork(t)
		c.Interface, c.ListenPort = "dcolwg", testPort
		waypoint := open(t, n.waypoint, c)
		waypoint.setTunnel(t, netstate.Tunnel{Interface: "dcolwg", Addresses: waypointInner})
		to := n.echo(t, server4)
		c.ListenPort = 0
		talks := make([]*talk, peers)
		for i := range talks {
			own := netip.AddrFrom4([4]byte{10, 7, 1, byte(i)})
			c.Interface = fmt.Sprintf("dcolwg%d", i)
			client := open(t, n.client, c)
			waypoint.setPeer(t, Peer{PublicKey: client.PublicKey(), Allowed: hostPrefixes(own)})
			client.setPeer(t, Peer{
				PublicKey: waypoint.PublicKey(), Allowed: everything,
				Endpoint: netip.MustParseAddrPort("198.51.100.2:51820"),
			})
			client.setTunnel(t, netstate.Tunnel{Interface: c.Interface, Addresses: hostPrefixes(own), Sources: []netip.Addr{own}})
			if talks[i] = dial(t, n.client, own.String(), to); talks[i].Seen != own.String() {
				t.Errorf("from %v the server sees %s", own, talks[i].Seen)
			}
		}
		for _, k := range talks {
			k.exchange(t, 1<<16)
		}
		states, err := waypoint.Peers()
		if err != nil || len(states) != peers || slices.ContainsFunc(states, func(s PeerState) bool { return !s.Alive(time.Now()) || s.Received < 1<<16 }) {
			t.Errorf("peers %+v, %v", states, err)
		}
	})
}

func TestInterfaceRemoved(t *testing.T) {
	kinds(t, func(t *testing.T, c Config) {
		ns := netnstest.New(t)
		c.Interface = "dcolwg"
		d := open(t, ns, c)
		ns.Output(t, "ip", "link", "del", "dcolwg")
		eventually(t, "it is noticed", func() bool { _, err := d.Peers(); return errors.Is(err, ErrGone) })
		if err := d.SetPeer(Peer{PublicKey: [32]byte{1}}); !errors.Is(err, ErrGone) {
			t.Errorf("set a peer: %v", err)
		}
		if err := d.SetMTU(1300); err == nil {
			t.Error("an MTU is set")
		}
		if err := errors.Join(d.Close(), d.Close()); err != nil {
			t.Error(err)
		}
		open(t, ns, c) // the name is free
	})
}

func TestOpenErrors(t *testing.T) {
	kinds(t, func(t *testing.T, c Config) {
		ns := netnstest.New(t)
		c.Interface = "dcolwg"
		first := open(t, ns, c)
		udp := func() (l net.PacketConn) {
			ns.Must(t, func() (err error) { l, err = net.ListenPacket("udp4", ":0"); return err })
			return l
		}()
		defer udp.Close()
		taken := udp.LocalAddr().(*net.UDPAddr).Port
		c.PrivateKey, c.MTU, c.Log = first.private, 1420, testLog(t)
		for name, tt := range map[string]struct {
			change func(*Config)
			want   string
		}{
			"same interface": {func(*Config) {}, "dcol down"},
			"port in use":    {func(c *Config) { c.Interface, c.ListenPort = "dcolwg2", taken }, "choose another port"},
			"foreign name":   {func(c *Config) { c.Interface = "wg0" }, "dcol"},
			"long name":      {func(c *Config) { c.Interface = "dcol" + strings.Repeat("x", 20) }, "dcolxxx"},
			"no key":         {func(c *Config) { c.PrivateKey = [32]byte{} }, "the private key is missing"},
			"no port":        {func(c *Config) { c.ListenPort = 1 << 16 }, "65536"},
		} {
			bad := c
			tt.change(&bad)
			err := ns.Do(func() error { _, err := Open(bad); return err })
			var unavailable *UnavailableError
			if err == nil || !strings.Contains(err.Error(), tt.want) || errors.As(err, &unavailable) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if links := ns.Output(t, "ip", "-br", "link"); strings.Contains(links, "dcolwg2") {
			t.Errorf("left behind:\n%s", links)
		}
		for _, bad := range []time.Duration{time.Millisecond, -time.Second, 1 << 16 * time.Second} {
			if err := first.SetPeer(Peer{PublicKey: [32]byte{1}, Keepalive: bad}); err == nil {
				t.Errorf("a keepalive of %v is taken", bad)
			}
		}
	})
}

func TestUnavailable(t *testing.T) {
	private, _, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	config := Config{Interface: "dcolwg", PrivateKey: private, MTU: 1420, ForceUserspace: true, Log: testLog(t)}
	for name, tt := range map[string]struct {
		spoil func() error
		fix   string
	}{
		"without TUN": {func() error {
			// On this thread only, which ends with the function.
			return errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
				unix.Mount("none", "/dev", "tmpfs", 0, ""))
		}, "modprobe tun"},
		"without rights": {func() error {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			return unix.Capset(&header, &make([]unix.CapUserData, 2)[0])
		}, "CAP_NET_ADMIN"},
	} {
		t.Run(name, func(t *testing.T) {
			err := netnstest.New(t).Do(func() error {
				if err := tt.spoil(); err != nil {
					return err
				}
				_, err := Open(config)
				return err
			})
			var unavailable *UnavailableError
			if !errors.As(err, &unavailable) || !strings.Contains(unavailable.Fix, tt.fix) {
				t.Errorf("%v", err)
			}
		})
	}
}
