package openvpn

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(agentRole); text != "" {
		beAgent(text)
		return
	}
	flag.Parse()
	// Nearly all the time of these tests is OpenVPN's timers, not the processor's.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// The tests' network: a server with two clients, each on a wire of its own, and a stranger.
//
//	alice 192.0.2.2/24, 2001:db8:2::2 --- bob's 192.0.2.1, .3 (he has two addresses there)
//	carol 198.51.100.2/24             --- bob's 198.51.100.1
//	mallory 203.0.113.2/24            --- bob's 203.0.113.1
const (
	serverPort = 1194
	serverIf   = "dcolov"
	clientIf   = "dcolov0"
	tunnelMTU  = 1464
	bobTunnel  = "10.77.0.1/26"
	bobTunnel6 = "fd77::1/64"
)

var (
	bobAtAlice = netip.MustParseAddrPort("192.0.2.1:1194")
	bobAtCarol = netip.MustParseAddrPort("198.51.100.1:1194")
	aliceIn    = []netip.Prefix{netip.MustParsePrefix("10.77.0.2/26"), netip.MustParsePrefix("fd77::2/64")}
	carolIn    = []netip.Prefix{netip.MustParsePrefix("10.77.0.3/26")}
)

type network struct {
	t                          *testing.T
	bob, alice, carol, mallory *netnstest.NS
	ca                         *collective.CA
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	if _, _, err := Find(); err != nil {
		t.Skipf("needs OpenVPN: %v", err)
	}
	n := &network{t: t, bob: netnstest.New(t), alice: netnstest.New(t), carol: netnstest.New(t), mallory: netnstest.New(t), ca: newCA(t)}
	if err := n.bob.Do(func() error { return errors.Join(makeTUN("try", 1500), removeTUN("try")) }); err != nil {
		t.Skipf("needs TUN: %v", err)
	}
	netnstest.Veth(t,
		netnstest.End{NS: n.bob, Name: "alice", Addresses: []string{"192.0.2.1/24", "192.0.2.3/24", "2001:db8:2::1/64"}},
		netnstest.End{NS: n.alice, Name: "eth0", Addresses: []string{"192.0.2.2/24", "2001:db8:2::2/64"}})
	netnstest.Veth(t,
		netnstest.End{NS: n.bob, Name: "carol", Addresses: []string{"198.51.100.1/24"}},
		netnstest.End{NS: n.carol, Name: "eth0", Addresses: []string{"198.51.100.2/24"}})
	netnstest.Veth(t,
		netnstest.End{NS: n.bob, Name: "mallory", Addresses: []string{"203.0.113.1/24"}},
		netnstest.End{NS: n.mallory, Name: "eth0", Addresses: []string{"203.0.113.2/24"}})
	return n
}

func newCA(t *testing.T) *collective.CA {
	t.Helper()
	ca, err := collective.InitCA(t.TempDir(), "test collective")
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// issue makes a member's files, as `dcol ca issue` does.
func issue(t *testing.T, ca *collective.CA, name string) Files {
	t.Helper()
	i, err := ca.Issue(collective.Request{Name: name, Validity: time.Hour, Reissue: true})
	if err != nil {
		t.Fatal(err)
	}
	return Files{Certificate: i.CertFile, Key: i.KeyFile, CA: ca.CertFile(), CRL: ca.CRLFile()}
}

func (n *network) serverConfig() ServerConfig {
	return ServerConfig{
		Interface: serverIf, Port: serverPort, Files: issue(n.t, n.ca, "bob"), MTU: tunnelMTU,
		Dir: filepath.Join(n.t.TempDir(), "run", "server"), Log: logTo(n.t, "bob"),
	}
}

// serve starts bob's server with a TCP service behind it.
func (n *network) serve() *Server {
	n.t.Helper()
	return n.serveWith(n.serverConfig())
}

func (n *network) serveWith(c ServerConfig) *Server {
	n.t.Helper()
	var s *Server
	n.bob.Must(n.t, func() (err error) {
		s, err = StartServer(n.t.Context(), c)
		return err
	})
	n.t.Cleanup(func() {
		s.Stop()
		if err := s.Err(); err != nil {
			n.t.Errorf("take the server down: %v", err)
		}
	})
	addresses(n.t, n.bob, c.Interface, bobTunnel, bobTunnel6)
	return s
}

func addresses(t *testing.T, ns *netnstest.NS, iface string, addrs ...string) {
	t.Helper()
	for _, a := range addrs {
		args := []string{"addr", "add", a, "dev", iface}
		if strings.Contains(a, ":") {
			args = append(args, "nodad")
		}
		ns.Output(t, "ip", args...)
	}
	ns.Output(t, "ip", "link", "set", iface, "up")
}

func (n *network) clientConfig(name string, remote netip.AddrPort) ClientConfig {
	return ClientConfig{
		Interface: clientIf, Remote: remote, ServerName: "bob", Files: issue(n.t, n.ca, name), MTU: tunnelMTU,
		Dir: filepath.Join(n.t.TempDir(), "run", name), Log: logTo(n.t, name),
	}
}

// tunnel is a running client and the news it has told.
type tunnel struct {
	*Client
	t    *testing.T
	news chan struct{}
}

// start begins to connect.
func (n *network) start(ns *netnstest.NS, c ClientConfig) *tunnel {
	n.t.Helper()
	tun := &tunnel{t: n.t, news: make(chan struct{}, 1)}
	c.Changed = func() {
		select {
		case tun.news <- struct{}{}:
		default:
		}
	}
	ns.Must(n.t, func() (err error) {
		tun.Client, err = StartClient(n.t.Context(), c)
		return err
	})
	n.t.Cleanup(tun.Stop)
	return tun
}

// connect connects, and gives the client its addresses.
func (n *network) connect(ns *netnstest.NS, c ClientConfig, addrs []netip.Prefix) *tunnel {
	n.t.Helper()
	tun := n.start(ns, c)
	tun.until(Connected)
	for _, a := range addrs {
		addresses(n.t, ns, c.Interface, a.String())
	}
	return tun
}

// until waits for a phase, on the client's news alone.
func (tun *tunnel) until(phases ...Phase) State {
	tun.t.Helper()
	late := time.After(60 * time.Second)
	for {
		s := tun.State()
		if slices.Contains(phases, s.Phase) {
			return s
		}
		select {
		case <-tun.news:
		case <-late:
			tun.t.Fatalf("the client did not come to be %v in 60 s: it is %+v", phases, s)
		}
	}
}

// echo serves TCP at addr: it sends back what comes.
func echo(t *testing.T, ns *netnstest.NS, addr string) {
	t.Helper()
	l := ns.Listen(t, addr)
	var serving sync.WaitGroup
	stop := make(chan struct{})
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { _, _ = io.Copy(c, c); c.Close() })
			serving.Go(func() { <-stop; c.Close() })
		}
	})
	t.Cleanup(func() { close(stop); l.Close(); serving.Wait() })
}

// dial connects from an address of the namespace.
func dial(ns *netnstest.NS, from netip.Addr, to string) (net.Conn, error) {
	return dialFor(ns, 10*time.Second, from, to)
}

func dialFor(ns *netnstest.NS, patience time.Duration, from netip.Addr, to string) (net.Conn, error) {
	var c net.Conn
	err := ns.Do(func() (err error) {
		d := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: from.AsSlice()}}
		d.SetMultipathTCP(false)
		c, err = d.DialContext(context.Background(), "tcp", to)
		return err
	})
	return c, err
}

// bounce sends bytes to an echo and reads them back.
func bounce(c net.Conn, size int) error {
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, size))
		failed <- err
	}()
	if _, err := io.ReadFull(c, make([]byte, size)); err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	return <-failed
}

// works checks that TCP goes through the tunnel, from a client's address.
func works(t *testing.T, ns *netnstest.NS, from netip.Addr, to string) {
	t.Helper()
	c, err := dial(ns, from, to)
	if err != nil {
		t.Fatalf("through the tunnel from %v: %v", from, err)
	}
	defer c.Close()
	if err := bounce(c, 100_000); err != nil {
		t.Fatalf("through the tunnel from %v: %v", from, err)
	}
}

// logTo shows a member's log when the test fails.
func logTo(t *testing.T, name string) *slog.Logger {
	return slog.New(slog.NewTextHandler(&testWriter{t: t}, &slog.HandlerOptions{Level: slog.LevelDebug})).With("host", name)
}

type testWriter struct{ t *testing.T }

func (w *testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}
