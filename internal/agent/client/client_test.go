package client

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/agent/relaying"
	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/mptcptest"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/lab/testbed"
)

func TestMain(m *testing.M) {
	testbed.Stage()
	os.Exit(m.Run())
}

const serverPort, mappedPort = 8080, 30001

// lab is client - router - server with a waypoint beside the router, and the client role running on the client with a
// session of ours in place of QUIC.
type lab struct {
	*testbed.Network
	t        *testing.T
	client   *Client
	server   netip.AddrPort
	bob      detour.Via
	spare    detour.Via // another waypoint; not used if it is zero
	subflows int        // that a connection is to have
	asked    *fakeSession
	log      *slog.Logger
	deafness chan bool
	stop     func() // the client
}

type fakeSession struct{ fail error }

func (f *fakeSession) Map(context.Context, netip.AddrPort, bool) (detour.Grant, error) {
	return detour.Grant{Port: mappedPort, Lease: time.Minute}, f.fail
}
func (f *fakeSession) Refusal(err error) detour.Refusal { return detour.Refusal{Why: err.Error()} }
func (f *fakeSession) Describe() api.Waypoint           { return api.Waypoint{Name: "bob", State: "up"} }
func (f *fakeSession) Measured() figures                { return figures{} }
func (f *fakeSession) Ping()                            {}
func (f *fakeSession) NetworkChanged()                  {}

func newLab(t *testing.T, port uint16) *lab {
	t.Helper()
	l := buildLab(t, port)
	l.serve()
	l.startClient()
	return l
}

// buildLab is newLab, with nothing running yet.
func buildLab(t *testing.T, port uint16) *lab {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	n, err := testbed.Build(t.Context(), testbed.Spec{
		Backend: "veth",
		Hosts: []testbed.HostSpec{
			{Name: "client"}, {Name: "router", Forward: true}, {Name: "waypoint", Forward: true}, {Name: "server"},
			{Name: "other", Forward: true},
		},
		Links: []testbed.LinkSpec{
			{Name: "1", A: "client", B: "router"}, {Name: "2", A: "router", B: "server"}, {Name: "3", A: "router", B: "waypoint"},
			{Name: "4", A: "client", B: "router", Cost: 10}, {Name: "5", A: "router", B: "other"},
		},
	}, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	l := &lab{Network: n, t: t, server: netip.AddrPortFrom(n.Host("server").Addr4(), port), asked: &fakeSession{}, log: log, subflows: 2, deafness: make(chan bool)}
	l.bob = detour.Via{Waypoint: "bob", Addr: n.Host("waypoint").Addr4()}
	for _, host := range []string{"waypoint", "other"} {
		l.nftOn(host, fmt.Sprintf(`
		table ip test {
			chain pre { type nat hook prerouting priority dstnat; tcp dport %d dnat to %v; }
			chain post { type nat hook postrouting priority srcnat; ct status dnat masquerade; }
		}`, mappedPort, l.server))
	}
	return l
}

func (l *lab) nft(rules string) {
	l.t.Helper()
	l.nftOn("waypoint", rules)
}

func (l *lab) nftOn(host, rules string) {
	l.t.Helper()
	cmd := l.Host(host).Command(l.t.Context(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		l.t.Fatalf("nft: %v\n%s", err, out)
	}
}

// loads are what the server sends without an end when it is asked: blocks, each some time after
// the one before.
var loads = map[string]struct {
	block int
	every time.Duration
}{
	"download": {64 << 10, 0},
	"requests": {512 << 10, 400 * time.Millisecond},
}

// serve answers each line with the same line, and the name of a load with that, on an MPTCP
// listener.
func (l *lab) serve() {
	var listener net.Listener
	l.do("server", func() (err error) {
		lc := net.ListenConfig{}
		lc.SetMultipathTCP(true)
		listener, err = lc.Listen(l.t.Context(), "tcp", l.server.String())
		return err
	})
	netnstest.Serve(l.t, listener, func(conn *net.TCPConn) {
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			_, err := fmt.Fprintln(conn, lines.Text())
			load, endless := loads[lines.Text()]
			for block := make([]byte, load.block); endless && err == nil; time.Sleep(load.every) {
				_, err = conn.Write(block)
			}
		}
	})
}

func (l *lab) do(host string, f func() error) {
	l.t.Helper()
	if err := l.Host(host).Do(f); err != nil {
		l.t.Fatal(err)
	}
}

// noRelay is a Relay that does not run.
type noRelay struct{}

func (noRelay) Change(func(*relay.State))   {}
func (noRelay) Settle(context.Context)      {}
func (noRelay) Standing() relaying.Standing { return relaying.Standing{} }
func (noRelay) Servers(list []relay.Ends) ([]netip.AddrPort, error) {
	return make([]netip.AddrPort, len(list)), nil
}

// startClient runs the client role until the test or stop ends it.
func (l *lab) startClient() {
	log := l.log
	var settings config.Config
	for _, k := range policy.Kinds() {
		settings.Client.Kinds = append(settings.Client.Kinds, config.Kind(k.String()))
	}
	h := &host{log: log}
	c := &Client{
		config: Config{Settings: &settings, Log: log, Relay: noRelay{}}, log: log, host: h, tunnels: emptyTunnels(log), roster: newRoster(&settings),
		inbox: newInbox(64), converters: newConverters(withConverters(config.ConvertNever)),
	}
	c.roster.sessions[l.bob] = l.asked
	if l.spare.Addr.IsValid() {
		c.roster.sessions[l.spare] = l.asked
	}
	ctx, cancel := context.WithCancel(context.Background())
	events := make(chan mptcp.Event, 1024)
	var kernel *mptcp.Namespace
	l.do("client", func() (err error) {
		if kernel, err = mptcp.Open(log); err != nil {
			return err
		}
		if err := mptcptest.UserspacePM(kernel); err != nil {
			return err
		}
		if h.ports, err = newPortPicker(); err != nil {
			return err
		}
		if h.addresses, err = netstate.WatchAddresses(ctx); err != nil {
			return err
		}
		if h.listeners, err = netstate.OpenListeners(); err != nil {
			return err
		}
		h.routes, err = netstate.OpenAddresses()
		return err
	})
	h.kernel, h.pathManager, h.events = counting{kernel, l}, kernel.CheckUserspacePM, events
	c.sampler = sampler{log: log, kernel: h.kernel, prober: l.openProber()}
	c.manager = path.New(path.Config{Policy: policy.Detours{Subflows: l.subflows}, TLSPorts: []uint16{443}})
	c.book = detour.New(nil)
	done := make(chan error, 2)
	heard := make(chan mptcp.Event, 1024)
	go func() { done <- kernel.Listen(ctx, heard) }()
	go l.relay(ctx, heard, events)
	go func() { done <- c.loop(ctx) }()
	l.client = c
	for v := range c.roster.sessions {
		c.sessionChanged(ctx, v, session.State{Up: true, Offers: []wire.Kind{wire.Mapped}})
	}
	l.stop = func() {
		if ctx.Err() != nil {
			return
		}
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				l.t.Error(err)
			}
		}
		kernel.Close()
	}
	l.t.Cleanup(l.stop)
}

// relay passes the kernel's events on, except while the client is made deaf.
func (l *lab) relay(ctx context.Context, from <-chan mptcp.Event, to chan<- mptcp.Event) {
	deaf := false
	for {
		select {
		case ev := <-from:
			if !deaf {
				to <- ev
			}
		case deaf = <-l.deafness:
			if !deaf {
				to <- mptcp.Event{Kind: mptcp.EventsLost}
			}
		case <-ctx.Done():
			return
		}
	}
}

func (l *lab) deaf(on bool) {
	time.Sleep(50 * time.Millisecond) // what is under way arrives
	l.deafness <- on
}

// dial opens an MPTCP connection from the client to the server.
func (l *lab) dial() net.Conn {
	l.t.Helper()
	var conn net.Conn
	l.do("client", func() (err error) {
		d := net.Dialer{}
		d.SetMultipathTCP(true)
		conn, err = d.DialContext(l.t.Context(), "tcp", l.server.String())
		return err
	})
	l.t.Cleanup(func() { conn.Close() })
	return conn
}

// echo sends a line and waits for it to come back.
func echo(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	text += "\n"
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Fatalf("echo of %q: %q, %v", text, got, err)
	}
}

// eventually waits for the client's status to be as wanted.
func (l *lab) eventually(what string, ok func(*api.Using) bool) *api.Using {
	l.t.Helper()
	deadline := time.Now().Add(40 * time.Second)
	for {
		u, err := l.client.describe(l.t.Context())
		if err != nil {
			l.t.Fatal(err)
		}
		if ok(u) {
			return u
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("never: %s\n%+v", what, u)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// paths renders the subflows of the only connection, such as "direct up, mapped up".
func paths(u *api.Using) string {
	if len(u.Connections) != 1 {
		return fmt.Sprintf("%d connections", len(u.Connections))
	}
	var parts []string
	for _, s := range u.Connections[0].Subflows {
		parts = append(parts, s.Kind+" "+string(s.State))
	}
	return strings.Join(parts, ", ")
}

func (l *lab) hasPaths(want string) *api.Using {
	l.t.Helper()
	return l.eventually(want, func(u *api.Using) bool { return paths(u) == want })
}

func TestConnectionGetsADetour(t *testing.T) {
	l := newLab(t, serverPort)
	conn := l.dial()
	echo(t, conn, "hello")
	u := l.hasPaths("direct up, mapped up")
	if via := u.Connections[0].Subflows[1]; via.Remote != netip.AddrPortFrom(l.bob.Addr, mappedPort) || via.Waypoint != "bob" {
		t.Errorf("the detour is %+v", via)
	}
	conn.Close()
	l.hasPaths("0 connections")
}

func TestTLSPortJoinsAsBackupUntilTheServerSpoke(t *testing.T) {
	l := newLab(t, 443)
	conn := l.dial()
	if _, err := io.WriteString(conn, "client "); err != nil {
		t.Fatal(err)
	}
	l.hasPaths("direct up, mapped backup")
	time.Sleep(300 * time.Millisecond)
	l.hasPaths("direct up, mapped backup")
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		t.Fatal(err)
	}
	l.hasPaths("direct up, mapped up")
}

func TestRestartAdoptsLiveConnections(t *testing.T) {
	l := newLab(t, serverPort)
	conn := l.dial()
	echo(t, conn, "hello")
	before := l.hasPaths("direct up, mapped up")
	l.stop()
	echo(t, conn, "nobody is there")
	l.startClient()
	after := l.hasPaths("direct up, mapped up")
	if before.Connections[0].Token != after.Connections[0].Token {
		t.Error("another connection")
	}
	for i, s := range after.Connections[0].Subflows {
		if old := before.Connections[0].Subflows[i]; s.Local != old.Local || s.Remote != old.Remote {
			t.Errorf("subflow %d was %v, is %v", i, old.Remote, s.Remote)
		}
	}
	echo(t, conn, "still there")
}

func (l *lab) sh(host, script string) {
	l.t.Helper()
	if out, err := l.Host(host).Command(l.t.Context(), "sh", "-ec", script).CombinedOutput(); err != nil {
		l.t.Fatalf("%s: %s: %v\n%s", host, script, err, out)
	}
}

func TestOwnAddressChanges(t *testing.T) {
	l := newLab(t, serverPort)
	conn := l.dial()
	echo(t, conn, "hello")
	l.hasPaths("direct up, mapped up")
	router, _ := l.Host("router").AddrOn("4")
	now, _ := l.Host("client").AddrOn("4")
	l.sh("client", fmt.Sprintf("ip addr flush dev %s; ip route replace default via %v dev %s",
		l.Host("client").Interface("1"), router, l.Host("client").Interface("4")))
	moved := func(u *api.Using) bool {
		if len(u.Connections) != 1 || len(u.Connections[0].Subflows) != 2 {
			return false
		}
		for _, s := range u.Connections[0].Subflows {
			if s.State != "up" || s.Local.Addr() != now {
				return false
			}
		}
		return true
	}
	l.eventually("both paths from the new address", moved)
	time.Sleep(700 * time.Millisecond) // a server that is full would close the detour again
	l.eventually("both paths stay", moved)
	if u, _ := l.client.describe(t.Context()); !moved(u) {
		t.Errorf("the detour did not stay: %s", paths(u))
	}
	echo(t, conn, "from elsewhere")
}

func TestWaypointThatSwallowsJoins(t *testing.T) {
	l := newLab(t, serverPort)
	l.nft(fmt.Sprintf("table ip block { chain in { type filter hook prerouting priority raw; tcp dport %d drop; }; }", mappedPort))
	conn := l.dial()
	echo(t, conn, "hello")
	l.hasPaths("direct up, mapped joining")
	l.hasPaths("direct up") // given up
	echo(t, conn, "the direct path goes on")
	l.nft("delete table ip block")
	l.hasPaths("direct up, mapped up") // tried again
	echo(t, conn, "hello again")
}

func TestLostEventsAreFoundAgain(t *testing.T) {
	l := newLab(t, serverPort)
	first := l.dial()
	echo(t, first, "hello")
	l.hasPaths("direct up, mapped up")
	// What an overrun looks like: the loop hears of nothing for a while, then that it missed something.
	l.deaf(true)
	first.Close()
	second := l.dial()
	echo(t, second, "hello")
	l.deaf(false)
	l.eventually("a loss is noticed", func(u *api.Using) bool { return u.Counters.EventsLost == 1 })
	u := l.hasPaths("direct up, mapped up")
	if u.Connections[0].Local.String() != second.LocalAddr().String() {
		t.Errorf("the connection is from %v, not %v", u.Connections[0].Local, second.LocalAddr())
	}
}
