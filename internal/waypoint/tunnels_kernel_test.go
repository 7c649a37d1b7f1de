package waypoint

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
)

func TestTunnelTraffic(t *testing.T) {
	t.Parallel()
	n, w := startTunnel(t)
	for name, c := range map[string]struct {
		client, egress netip.Addr
		listen         string
	}{
		"IPv4": {tunnel4, egress4, "10.2.0.1:443"},
		"IPv6": {tunnel6, egress6, "[fd02::1]:443"},
	} {
		server := n.echo(t, c.listen)
		conn, err := n.from(t, c.client, server)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		greeting := make([]byte, 100)
		size, err := conn.Read(greeting)
		seen, _ := netip.ParseAddrPort(strings.TrimSpace(string(greeting[:size])))
		if err != nil || seen.Addr() != c.egress {
			t.Errorf("%s: the server sees %v (%v), want %v", name, seen, err, c.egress)
		}
		flow := n.waitEntry(t, "flow-opened", func(e attribution.Entry) bool {
			return e.Event == attribution.FlowOpened && e.Tunnel == c.client
		})
		if flow.Member != "alice" || flow.Kind != "wireguard" || flow.Server != server || flow.Egress != seen || flow.Port != 0 ||
			netip.AddrPortFrom(flow.Tunnel, flow.ClientPort).String() != conn.LocalAddr().String() {
			t.Errorf("%s: %+v", name, flow)
		}
		granted := n.waitEntry(t, "admission-granted", func(e attribution.Entry) bool {
			return e.Event == attribution.AdmissionGranted && e.Tunnel == c.client
		})
		if granted.Member != "alice" || granted.Client != client4 || granted.Kind != "wireguard" || granted.LeaseSeconds != 60 {
			t.Errorf("%s: %+v", name, granted)
		}
	}
	if s, err := w.Snapshot(); err != nil || s.Members[0].Tunnels != 1 || s.Members[0].Flows != 2 {
		t.Errorf("snapshot %+v, %v", s, err)
	}
}

// Packets of a tunnel that belong to no admitted connection are not forwarded: TCP is reset, so that a join fails
// at once, and the rest is dropped.
func TestWhatTunnelsMayNot(t *testing.T) {
	t.Parallel()
	n, _ := startTunnel(t)
	server := n.echo(t, "10.2.0.1:443")
	n.echo(t, "10.2.0.1:25")
	n.waypoint.Listen(t, "0.0.0.0:22")
	stranger := netip.MustParseAddr("10.77.0.3")
	for what, c := range map[string]struct {
		from netip.Addr
		to   string
	}{
		"from an address that is nobody's": {stranger, server.String()},
		"to a forbidden port":              {tunnel4, "10.2.0.1:25"},
		"to a forbidden server":            {tunnel4, "192.0.2.1:443"},
	} {
		if _, err := n.from(t, c.from, netip.MustParseAddrPort(c.to)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: %v", what, err)
		}
	}
	n.ping(t, tunnel4, gateway4)
	n.ping(t, tunnel6, gateway6)
	for to, chain := range map[string]string{egress4.String(): "tunnel_to_host", server.Addr().String(): "from_tunnels"} {
		before := n.dropped(t, chain)
		n.sendPing(t, tunnel4, netip.MustParseAddr(to))
		eventually(t, "the echo request to "+to+" is dropped", func() bool { return n.dropped(t, chain) > before })
	}
	// The waypoint's own services are not reached by this way, whatever their address.
	for _, to := range []string{"10.77.0.1:22", "10.1.0.2:22", "10.2.0.2:22"} {
		before := n.dropped(t, "tunnel_to_host")
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- n.client.Do(func() error {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: tunnel4.AsSlice()}, Control: bindTo(tunnelName)}
				c, err := d.DialContext(ctx, "tcp", to)
				if err == nil {
					_ = c.Close()
				}
				return err
			})
		}()
		eventually(t, "the SYN is dropped", func() bool { return n.dropped(t, "tunnel_to_host") > before })
		cancel()
		if err := <-done; err == nil {
			t.Errorf("%s is reached", to)
		}
	}
}

// Only answers enter a tunnel: nothing else from outside, from a neighbour in the tunnel, or by another kind of
// detour though the policy allows the address.
func TestNothingEntersATunnel(t *testing.T) {
	t.Parallel()
	n, w := startTunnel(t)
	netnstest.Serve(t, n.client.Listen(t, "10.77.0.2:80"), func(c *net.TCPConn) { t.Errorf("reached from %v", c.RemoteAddr()) })
	mustMap(t, w, overSession("mallory", client4, 2), netip.MustParseAddrPort("10.77.0.2:80"), 80)
	if _, err := n.from(t, client4, netip.AddrPortFrom(waypoint4, 80)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("by a mapping: %v", err)
	}
	n.server.Route(t, "10.77.0.0/24", "10.2.0.2")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := n.server.Dial(ctx, netip.MustParseAddrPort("10.77.0.2:80"))
		done <- err
	}()
	eventually(t, "the SYN from outside is dropped", func() bool {
		list := n.waypoint.Output(t, "nft", "list", "chain", "inet", "dcol", "forward")
		_, counter, found := strings.Cut(list, "oifname @tunnel_interfaces counter packets ")
		return found && !strings.HasPrefix(counter, "0 ")
	})
	cancel()
	if err := <-done; err == nil {
		t.Error("reached from outside")
	}
}

// When an address is taken back, its connections end, for the server too. The same happens when its lease ends,
// and when another member gets the address.
func TestTunnelAddressesEnd(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *Waypoint){
		"revoked": func(t *testing.T, w *Waypoint) {
			if err := w.RevokeTunnel([]netip.Addr{tunnel4, tunnel6, netip.MustParseAddr("10.77.9.9")}); err != nil {
				t.Error(err)
			}
		},
		"expired":  func(t *testing.T, w *Waypoint) { admit(t, w, time.Second) },
		"expelled": func(t *testing.T, w *Waypoint) { _ = w.Expel("alice") },
		"another's": func(t *testing.T, w *Waypoint) {
			if refusal := w.AdmitTunnel(t.Context(), overSession("bob", client4, 2), wire.OpenVPN, []netip.Addr{tunnel4}, time.Minute); refusal != nil {
				t.Error(refusal)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, w := startTunnel(t)
			listener := n.server.Listen(t, "10.2.0.1:443")
			if _, err := n.from(t, tunnel4, netip.MustParseAddrPort("10.2.0.1:443")); err != nil {
				t.Fatal(err)
			}
			conn, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			end(t, w)
			eventually(t, "the connection is gone", func() bool {
				return strings.Contains(n.waypoint.Output(t, "conntrack", "-L", "-m", "0x80000001/0x9f0000ff"), " 0 flow entries")
			})
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			_, _ = conn.Write([]byte("x"))
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("the server: %v", err)
			}
			n.waitEntry(t, "admission-ended", func(e attribution.Entry) bool {
				return e.Event == attribution.AdmissionEnded && e.Member == "alice" && e.Tunnel == tunnel4 && e.Kind == "wireguard"
			})
			again, err := n.from(t, tunnel4, netip.MustParseAddrPort("10.2.0.1:443"))
			switch {
			case name != "another's" && !errors.Is(err, unix.ECONNREFUSED):
				t.Errorf("a new connection: %v", err)
			case name == "another's" && err != nil:
				t.Errorf("bob's connection: %v", err)
			case name == "another's":
				flow := n.waitEntry(t, "bob's flow", func(e attribution.Entry) bool { return e.Member == "bob" && e.Event == attribution.FlowOpened })
				if flow.Kind != "openvpn" || netip.AddrPortFrom(flow.Tunnel, flow.ClientPort).String() != again.LocalAddr().String() {
					t.Errorf("%+v", flow)
				}
			}
		})
	}
}

// A restart of the agent breaks nothing, and a reload of the firewall does not either.
func TestTunnelsSurvive(t *testing.T) {
	t.Parallel()
	n, w := startTunnel(t)
	server := n.echo(t, "10.2.0.1:443")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.from(t, tunnel4, server); err != nil {
		t.Errorf("without an agent: %v", err)
	}
	w, _ = n.start(t)
	if _, err := n.from(t, tunnel4, server); err != nil {
		t.Errorf("with the next agent: %v", err)
	}
	if s, err := w.Snapshot(); err != nil || s.Members[0].Name != "alice" || s.Members[0].Tunnels != 1 {
		t.Errorf("snapshot %+v, %v", s, err)
	}
	n.waypoint.Output(t, "nft", "flush", "ruleset")
	eventually(t, "the table is back", func() bool {
		_, err := n.from(t, tunnel4, server)
		return err == nil
	})
}

// Connections to the waypoint's own services that were opened while the table was missing end.
func TestWhatOpenedWithoutTheTableEnds(t *testing.T) {
	t.Parallel()
	n, w := startTunnel(t)
	l := n.waypoint.Listen(t, "10.77.0.1:22")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	n.waypoint.Output(t, "nft", "table ip other { chain in { type filter hook input priority 0; ct state established counter; }; }; delete table inet dcol")
	member, err := n.from(t, tunnel4, netip.MustParseAddrPort("10.77.0.1:22"))
	if err != nil {
		t.Fatal(err)
	}
	service, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer service.Close()
	got := make(chan int, 2)
	read := func() {
		n, _ := service.Read(make([]byte, 100))
		got <- n
	}
	if _, err := member.Write([]byte("before")); err != nil {
		t.Fatal(err)
	}
	if read(); <-got == 0 {
		t.Fatal("without the table nothing comes through")
	}
	w, _ = n.start(t)
	if err := w.SetTunnelInterfaces([]string{tunnelName}); err != nil {
		t.Fatal(err)
	}
	before := n.dropped(t, "tunnel_to_host")
	if _, err := member.Write([]byte("after")); err != nil {
		t.Fatal(err)
	}
	go read()
	eventually(t, "what the member sends is dropped", func() bool {
		if len(got) > 0 {
			t.Fatal("the member goes on talking to the service")
		}
		return n.dropped(t, "tunnel_to_host") > before
	})
}

// The quota is one for all kinds together.
func TestConnectionQuotaOverAllKinds(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.join(t, tunnelName, "10.77.0.2/24", "10.77.0.1/24")
	n.client.Output(t, "ip", "route", "add", "default", "via", "10.77.0.1")
	n.config.ConnectionsPerMember = 2
	server := n.echo(t, "10.2.0.1:443")
	w, _ := n.start(t)
	if err := w.SetTunnelInterfaces([]string{tunnelName}); err != nil {
		t.Fatal(err)
	}
	admit(t, w, time.Minute)
	mustMap(t, w, overSession("alice", client4, 1), server, 443)
	if _, err := n.from(t, tunnel4, server); err != nil {
		t.Fatal(err)
	}
	n.mustDial(t, netip.AddrPortFrom(waypoint4, 443))
	if _, err := n.from(t, tunnel4, server); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("one too many, by the tunnel: %v", err)
	}
	if _, err := n.dial(t, netip.AddrPortFrom(waypoint4, 443)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("one too many, by the mapping: %v", err)
	}
}

// A table that an operator saved and restores works.
func TestSavedTableWorks(t *testing.T) {
	t.Parallel()
	n, w := startTunnel(t)
	server := n.echo(t, "10.2.0.1:443")
	saved := filepath.Join(t.TempDir(), "saved.nft")
	if err := os.WriteFile(saved, []byte("flush ruleset\n"+n.waypoint.Output(t, "nft", "list", "ruleset")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	n.waypoint.Output(t, "nft", "-f", saved)
	if _, err := n.from(t, tunnel4, server); err != nil {
		t.Errorf("restored: %v", err)
	}
	if _, err := n.from(t, tunnel4, netip.MustParseAddrPort("192.0.2.1:443")); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("forbidden: %v", err)
	}
}
