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
	"strconv"
	"strings"
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
	if err := n.bob.Do(func() error { return errors.Join(makeTUN("try"), removeTUN("try")) }); err != nil {
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
	tick, tending := time.NewTicker(time.Second), make(chan struct{})
	n.t.Cleanup(func() {
		tick.Stop()
		close(tending)
		if err := s.Stop(); err != nil {
			n.t.Errorf("take the server down: %v", err)
		}
	})
	go func() {
		for {
			select {
			case <-tick.C:
				s.Tend()
				_ = s.CheckGuard()
			case <-tending:
				return
			}
		}
	}()
	addresses(n.t, n.bob, c.Interface, c.MTU, bobTunnel, bobTunnel6)
	return s
}

// clients are the connected members.
func (s *Server) clients() map[string]session {
	s.mu.Lock()
	defer s.mu.Unlock()
	clients := make(map[string]session)
	for _, have := range s.sessions {
		clients[have.member] = *have
	}
	return clients
}

func addresses(t *testing.T, ns *netnstest.NS, iface string, mtu int, addrs ...string) {
	t.Helper()
	for _, a := range addrs {
		args := []string{"addr", "add", a, "dev", iface}
		if strings.Contains(a, ":") {
			args = append(args, "nodad")
		}
		ns.Output(t, "ip", args...)
	}
	ns.Output(t, "ip", "link", "set", iface, "mtu", strconv.Itoa(mtu), "up")
}

func (n *network) clientConfig(name string, remote netip.AddrPort) ClientConfig {
	return ClientConfig{
		Interface: clientIf, Remote: remote, ServerName: "bob", Files: issue(n.t, n.ca, name), MTU: tunnelMTU,
		Log: logTo(n.t, name),
	}
}

// tunnel is a running client.
type tunnel struct {
	*Client
	t *testing.T
}

// start begins to connect.
func (n *network) start(ns *netnstest.NS, c ClientConfig) *tunnel {
	n.t.Helper()
	tun := &tunnel{t: n.t}
	ns.Must(n.t, func() (err error) {
		tun.Client, err = StartClient(n.t.Context(), c)
		return err
	})
	n.t.Cleanup(func() {
		if err := tun.Stop(); err != nil {
			n.t.Errorf("take the client down: %v", err)
		}
	})
	return tun
}

// connect connects, and gives the client its addresses.
func (n *network) connect(ns *netnstest.NS, c ClientConfig, addrs []netip.Prefix) *tunnel {
	n.t.Helper()
	tun := n.start(ns, c)
	tun.untilConnected()
	for _, a := range addrs {
		addresses(n.t, ns, c.Interface, c.MTU, a.String())
	}
	return tun
}

func (tun *tunnel) until(what string, is func(State) bool) State {
	tun.t.Helper()
	var s State
	for late := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if s = tun.State(); is(s) {
			return s
		}
		if time.Now().After(late) {
			tun.t.Fatalf("waited 60 s for the client to be %s: it is %+v", what, s)
		}
	}
}

func (tun *tunnel) untilConnected() {
	tun.t.Helper()
	tun.until("connected", func(s State) bool { return s.Connected })
}

func (tun *tunnel) untilDown() {
	tun.t.Helper()
	tun.until("down", func(s State) bool { return !s.Connected })
}

func (tun *tunnel) untilReason(want string) {
	tun.t.Helper()
	tun.until(fmt.Sprintf("down because of %q", want), func(s State) bool { return strings.Contains(s.Reason, want) })
}

// settled waits until the client is connected or says why not.
func (tun *tunnel) settled() State {
	tun.t.Helper()
	return tun.until("connected or not", func(s State) bool { return s != State{} })
}

// echo serves TCP at addr: it sends back what comes.
func echo(t *testing.T, ns *netnstest.NS, addr string) {
	t.Helper()
	netnstest.Serve(t, ns.Listen(t, addr), netnstest.Echo)
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
