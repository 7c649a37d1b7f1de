package portmap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// household is a host behind a home router with miniupnpd, and a stranger outside.
type household struct {
	host, router, stranger *netnstest.NS
	network                Network
}

// outside is a public address, because miniupnpd rejects addresses for documentation. No packet to it leaves the
// namespaces.
const outside = "62.0.0.9"

func newHousehold(t *testing.T) *household {
	t.Helper()
	if _, err := exec.LookPath("miniupnpd"); err != nil {
		t.Skip("needs miniupnpd: apt-get install miniupnpd-nftables")
	}
	h := &household{
		host: netnstest.New(t), router: netnstest.New(t), stranger: netnstest.New(t),
		network: Network{Gateway: netip.MustParseAddr("192.168.1.1"), Own: netip.MustParseAddr("192.168.1.2")},
	}
	netnstest.Veth(t, netnstest.End{NS: h.host, Name: "eth0", Addresses: []string{"192.168.1.2/24"}},
		netnstest.End{NS: h.router, Name: "lan", Addresses: []string{"192.168.1.1/24"}})
	netnstest.Veth(t, netnstest.End{NS: h.router, Name: "wan", Addresses: []string{outside + "/24"}},
		netnstest.End{NS: h.stranger, Name: "eth0", Addresses: []string{"62.0.0.1/24"}})
	h.host.Route(t, "0.0.0.0/0", "192.168.1.1")
	h.router.Output(t, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	h.router.Output(t, "nft", `table inet filter {
		chain forward { type filter hook forward priority 0; policy drop; jump miniupnpd; iifname "lan" accept; ct state established accept; }
		chain miniupnpd {}
		chain prerouting { type nat hook prerouting priority -100; jump prerouting_miniupnpd; }
		chain postrouting { type nat hook postrouting priority 100; jump postrouting_miniupnpd; oifname "wan" masquerade; }
		chain prerouting_miniupnpd {}
		chain postrouting_miniupnpd {}
	}`)
	return h
}

// miniupnpd runs with these lines of configuration until stop is called or the test ends.
func (h *household) miniupnpd(t *testing.T, lines ...string) (stop func()) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "conf")
	text := strings.Join(append([]string{
		"ext_ifname=wan", "listening_ip=lan", "http_port=5000", "ipv6_disable=yes", "system_uptime=no",
		"upnp_table_name=filter", "upnp_nat_table_name=filter", "upnp_forward_chain=miniupnpd",
		"upnp_nat_chain=prerouting_miniupnpd", "upnp_nat_postrouting_chain=postrouting_miniupnpd",
		"uuid=3c6e6b1a-1c0f-4f9e-9d3b-0d6f0c1f0001", "lease_file=" + filepath.Join(dir, "leases"),
	}, lines...), "\n") + "\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "miniupnpd", "-d", "-f", config, "-P", filepath.Join(dir, "pid"))
	cmd.Stdout, cmd.Stderr = log, log
	h.router.Must(t, cmd.Start)
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		_ = cmd.Wait()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("miniupnpd:\n%s", text)
		}
	}
	t.Cleanup(stop)
	for range 60 {
		if out := h.router.Output(t, "ss", "-Hlun"); strings.Contains(out, ":1900") || strings.Contains(out, ":5351") {
			return stop
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("miniupnpd does not start")
	return nil
}

// find detects the router from the host.
func (h *household) find(ctx context.Context) (r router, err error) {
	err = h.host.Do(func() error {
		r, err = find(ctx, h.network, [12]byte{1, 2, 3})
		return err
	})
	return r, err
}

// on sends requests to the router from a thread in the host's namespace, because each request creates a socket.
type on struct {
	router
	host *netnstest.NS
}

func (o on) open(ctx context.Context, w Want, proposed uint16) (g granted, err error) {
	err = o.host.Do(func() error { g, err = o.router.open(ctx, w, proposed); return err })
	return g, err
}

func (o on) close(ctx context.Context, w Want, external uint16) error {
	return o.host.Do(func() error { return o.router.close(ctx, w, external) })
}

// gets reports whether packets from the stranger to the external port arrive at the host's port.
func (h *household) gets(t *testing.T, w Want, external netip.AddrPort) bool {
	t.Helper()
	var in, out *net.UDPConn
	h.host.Must(t, func() (err error) {
		in, err = net.ListenUDP("udp4", &net.UDPAddr{Port: int(w.Port)})
		return err
	})
	defer in.Close()
	h.stranger.Must(t, func() (err error) {
		out, err = net.ListenUDP("udp4", nil)
		return err
	})
	defer out.Close()
	if _, err := out.WriteToUDPAddrPort([]byte("hello"), external); err != nil {
		t.Fatal(err)
	}
	in.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	var b [16]byte
	n, _, err := in.ReadFromUDPAddrPort(b[:])
	return err == nil && string(b[:n]) == "hello"
}

// Each protocol opens, renews and closes a port of a real router.
func TestRealRouter(t *testing.T) {
	for _, c := range []struct {
		protocol string
		config   []string
	}{
		{"PCP", []string{"enable_natpmp=yes", "enable_upnp=no"}},
		{"UPnP", []string{"enable_natpmp=no", "enable_upnp=yes"}},
	} {
		t.Run(c.protocol, func(t *testing.T) {
			h := newHousehold(t)
			h.miniupnpd(t, c.config...)
			r, err := h.find(t.Context())
			if err != nil || r.String() != c.protocol {
				t.Fatalf("found %v, %v", r, err)
			}
			h.exercise(t, on{r, h.host})
		})
	}
	// A router that speaks PCP also speaks NAT-PMP, but is not asked by it.
	t.Run("NAT-PMP", func(t *testing.T) {
		h := newHousehold(t)
		h.miniupnpd(t, "enable_natpmp=yes", "enable_upnp=no")
		h.exercise(t, on{&natPMP{network: h.network}, h.host})
	})
}

func (h *household) exercise(t *testing.T, r router) {
	t.Helper()
	external := netip.MustParseAddrPort(outside + ":45672")
	if h.gets(t, session, external) {
		t.Fatal("the port is open already")
	}
	for range 2 { // the second time renews it
		g, err := r.open(t.Context(), session, 45672)
		if err != nil || g.external != external || g.lifetime < lifetime-5*time.Second || g.lifetime > lifetime {
			t.Fatalf("opened %+v, %v", g, err)
		}
		if !h.gets(t, session, external) {
			t.Errorf("what comes to %v does not arrive\n%s", external, h.router.Output(t, "nft", "list", "ruleset"))
		}
	}
	if err := r.close(t.Context(), session, external.Port()); err != nil {
		t.Errorf("close: %v", err)
	}
	if h.gets(t, session, external) {
		t.Errorf("the port stays open\n%s", h.router.Output(t, "nft", "list", "ruleset"))
	}
}

// If two hosts request the same port, the second gets another one.
func TestRealRouterPortTaken(t *testing.T) {
	for _, c := range []struct{ protocol, pcp, upnp string }{{"PCP", "yes", "no"}, {"UPnP", "no", "yes"}} {
		t.Run(c.protocol, func(t *testing.T) {
			h := newHousehold(t)
			h.host.Output(t, "ip", "address", "add", "192.168.1.3/24", "dev", "eth0")
			h.miniupnpd(t, "enable_natpmp="+c.pcp, "enable_upnp="+c.upnp, "secure_mode=yes")
			first, err := h.find(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := (on{first, h.host}).open(t.Context(), session, 45672); err != nil {
				t.Fatal(err)
			}
			h.network.Own = netip.MustParseAddr("192.168.1.3")
			second, err := h.find(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			g, err := on{second, h.host}.open(t.Context(), session, 45672)
			if err != nil || g.external.Port() == 45672 {
				t.Fatalf("%+v, %v", g, err)
			}
			// Here both ports are on the same host.
			if !h.gets(t, session, g.external) {
				t.Errorf("what comes to %v does not arrive", g.external)
			}
		})
	}
}

// A router without any of the protocols gives a clear error, after some seconds.
func TestRealRouterSpeaksNothing(t *testing.T) {
	h := newHousehold(t)
	begin := time.Now()
	_, err := h.find(t.Context())
	if !errors.Is(err, ErrNoProtocol) || time.Since(begin) > 12*time.Second {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := h.find(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled: %v", err)
	}
}

// The Keeper opens its ports, opens them again after the router's restart, and closes them.
func TestKeeperWithRealRouter(t *testing.T) {
	h := newHousehold(t)
	stop := h.miniupnpd(t, "enable_natpmp=yes", "enable_upnp=yes")
	var states []string
	k := NewKeeper(Config{
		Wants: []Want{session}, Network: func() (Network, error) { return h.network, nil }, Nonce: [12]byte{7},
		Changed: func(s State) { states = append(states, fmt.Sprintf("%s %v %d", s.Router, s.Mappings, s.Restarts)) },
		Log:     slog.New(slog.DiscardHandler),
	})
	k.find = func(ctx context.Context, n Network, nonce [12]byte) (r router, err error) {
		err = h.host.Do(func() error { r, err = find(ctx, n, nonce); return err })
		return on{r, h.host}, err
	}
	k.step(t.Context())
	external, open := k.State().External(session)
	if !open || !h.gets(t, session, external) {
		t.Fatalf("%+v", k.State())
	}
	stop()
	// After a restart, the router has forgotten its rules.
	h.router.Output(t, "nft", "flush", "chain", "inet", "filter", "prerouting_miniupnpd")
	h.router.Output(t, "nft", "flush", "chain", "inet", "filter", "miniupnpd")
	if h.gets(t, session, external) {
		t.Fatal("still open")
	}
	time.Sleep(5 * time.Second) // more than the clocks may differ, with whole seconds on both sides
	h.miniupnpd(t, "enable_natpmp=yes", "enable_upnp=yes")
	k.step(t.Context())
	if !h.gets(t, session, external) || k.State().Restarts != 1 {
		t.Errorf("%+v", k.State())
	}
	k.close(t.Context())
	if h.gets(t, session, external) {
		t.Error("it stays open")
	}
	t.Log(strings.Join(states, "\n"))
}
