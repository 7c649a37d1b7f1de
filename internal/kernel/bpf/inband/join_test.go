package inband

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cgrouptest"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/mptcptest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/packet"
)

// internet is a client, a waypoint and a server around a router. The server
// echoes; the waypoint leads SYNs with the member's mark to the server that
// their option names.
type internet struct {
	client, router, waypoint, server *netnstest.NS
	kernel                           *mptcp.Namespace // the client's
	events                           chan mptcp.Event
	atRouter, atServer               *capture
	sender                           *Sender
	receiver                         *Receiver
}

var (
	internetClient   = netip.MustParseAddr("10.0.1.2")
	internetWaypoint = netip.MustParseAddr("10.0.2.2")
	internetServer   = netip.MustParseAddrPort("10.0.3.2:443")
)

// connectFunc joins two namespaces.
type connectFunc func(t testing.TB, a, b netnstest.End)

func newInternet(t *testing.T, connect connectFunc, config SenderConfig) *internet {
	t.Helper()
	n := newNetwork(t, connect)
	n.open(t, config)
	return n
}

// newNetwork makes the hosts and links.
func newNetwork(t *testing.T, connect connectFunc) *internet {
	t.Helper()
	n := &internet{client: netnstest.New(t), router: netnstest.New(t), waypoint: netnstest.New(t), server: netnstest.New(t)}
	for _, l := range []struct {
		host   *netnstest.NS
		name   string
		number string
	}{{n.client, "client", "1"}, {n.waypoint, "waypoint", "2"}, {n.server, "server", "3"}} {
		connect(t,
			netnstest.End{NS: n.router, Name: l.name, Addresses: []string{"10.0." + l.number + ".1/24"}},
			netnstest.End{NS: l.host, Name: "eth0", Addresses: []string{"10.0." + l.number + ".2/24"}})
		l.host.Route(t, "10.0.0.0/16", "10.0."+l.number+".1")
	}
	for _, ns := range []*netnstest.NS{n.router, n.waypoint} {
		ns.Must(t, func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) })
	}
	n.waypoint.Output(t, "nft", `
table ip detours {
	chain pre {
		type nat hook prerouting priority dstnat
		meta mark 0xdc010007 tcp option @254,16,16 0xdc01 tcp option @254,32,32 0x0a000302 dnat to 10.0.3.2
	}
	chain post {
		type nat hook postrouting priority srcnat
		ct status dnat masquerade
	}
}`)
	serveEcho(t, n.server, internetServer)
	n.atRouter, n.atServer = newCapture(t, n.router), newCapture(t, n.server)
	n.watch(t)
	return n
}

// open attaches what is tested.
func (n *internet) open(t *testing.T, config SenderConfig) {
	t.Helper()
	n.sender = openSender(t, n.client, config)
	if err := n.sender.Attach([]int{indexOf(t, n.client, "eth0")}); err != nil {
		t.Fatal(err)
	}
	n.waypoint.Must(t, func() (err error) {
		n.receiver, err = OpenReceiver(testMask)
		return err
	})
	t.Cleanup(func() { n.receiver.Close() })
	if err := n.receiver.Attach([]int{indexOf(t, n.waypoint, "eth0")}); err != nil {
		t.Fatal(err)
	}
	set(t, n.receiver, internetClient, Slot{Key: memberKey, Mark: memberMark, ClientPort: true, Expires: inAnHour()})
}

// watch makes the test the client's path manager.
func (n *internet) watch(t *testing.T) {
	t.Helper()
	n.events = make(chan mptcp.Event, 256)
	n.client.Must(t, func() (err error) {
		n.kernel, err = mptcp.Open(slog.New(slog.DiscardHandler))
		if err == nil {
			err = mptcptest.UserspacePM(n.kernel)
		}
		return err
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- n.kernel.Listen(ctx, n.events) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, n.kernel.Close()); err != nil {
			t.Error(err)
		}
	})
}

// event is the next event of one of these kinds; others are skipped.
func (n *internet) event(t testing.TB, kinds ...mptcp.EventKind) mptcp.Event {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case e := <-n.events:
			for _, kind := range kinds {
				if e.Kind == kind {
					return e
				}
			}
		case <-deadline:
			t.Fatalf("no event %v", kinds)
		}
	}
}

// join creates a subflow through the waypoint and returns what becomes of it.
func (n *internet) join(t testing.TB, token uint32, j Join) mptcp.Event {
	t.Helper()
	// An id for each port, as a join that fails takes the id of its address away.
	id := uint8(j.Local.Port() - 40000 + 1)
	err := n.kernel.CreateSubflow(mptcp.NewSubflow{Token: token, Local: j.Local, LocalID: id, Remote: j.Remote})
	if err != nil {
		t.Fatal(err)
	}
	return n.event(t, mptcp.SubflowEstablished, mptcp.SubflowClosed)
}

func internetJoin(port uint16) Join {
	return withAuth(Join{
		Local:  netip.AddrPortFrom(internetClient, port),
		Remote: netip.AddrPortFrom(internetWaypoint, internetServer.Port()),
		Server: internetServer.Addr(),
	})
}

// dialMPTCP opens a connection by a socket of the given family.
func dialMPTCP(family int, to string) (net.Conn, error) {
	address, err := netip.ParseAddrPort(to)
	if err != nil {
		return nil, err
	}
	const protocolMPTCP = 262
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocolMPTCP)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), to)
	defer file.Close()
	var remote unix.Sockaddr = &unix.SockaddrInet4{Addr: address.Addr().As4(), Port: int(address.Port())}
	if family == unix.AF_INET6 {
		remote = &unix.SockaddrInet6{Addr: address.Addr().As16(), Port: int(address.Port())}
	}
	if err := unix.Connect(fd, remote); err != nil {
		return nil, err
	}
	return net.FileConn(file)
}

// dial opens a connection to the server and has a word come back.
func (n *internet) dial(t testing.TB, family int) (c net.Conn, token uint32) {
	t.Helper()
	n.client.Must(t, func() (err error) {
		c, err = dialMPTCP(family, internetServer.String())
		return err
	})
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, "word"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	return c, n.event(t, mptcp.Established).Token
}

func TestJoin(t *testing.T) {
	for name, connect := range map[string]connectFunc{"veth": netnstest.Veth, "TUN": tun} {
		for family, socket := range map[int]string{unix.AF_INET: "IPv4 socket", unix.AF_INET6: "IPv6 socket"} {
			t.Run(name+"/"+socket, func(t *testing.T) {
				n := newInternet(t, connect, SenderConfig{})
				c, token := n.dial(t, family)
				checkPlain(t, n.atRouter.syn(t, 0, 443))

				j := internetJoin(40000)
				expect(t, n.sender, j)
				if e := n.join(t, token, j); e.Kind != mptcp.SubflowEstablished {
					t.Fatalf("the join failed: %v", e)
				}
				checkSYN(t, n.atRouter.syn(t, 40000, 443), j)
				joined := n.atServer.next(t, "the join at the server", func(s segment) bool {
					return s.from.Addr() == internetWaypoint && s.flags&packet.SYN != 0
				})
				if _, tsecr := joined.timestamps(t); tsecr != 0 {
					t.Errorf("the server gets TSecr %#x", tsecr)
				}
				if got, want := counters(t, n.receiver), (Counters{Accepted: 1}); got != want {
					t.Errorf("counters %+v, want %+v", got, want)
				}
				// Data flows over it when the first subflow is gone.
				if err := n.kernel.SetBackup(token, n.first(t, token), internetServer, true); err != nil {
					t.Fatal(err)
				}
				if _, err := io.WriteString(c, strings.Repeat("x", 1000)); err != nil {
					t.Fatal(err)
				}
				data := n.atRouter.next(t, "data through the waypoint", func(s segment) bool {
					return s.from == j.Local && s.flags&packet.SYN == 0
				})
				checkPlain(t, data)

				// One that is not expected ends at the waypoint, where nobody listens.
				if e := n.join(t, token, internetJoin(40001)); e.Kind != mptcp.SubflowClosed {
					t.Errorf("an ordinary SYN was led on: %v", e)
				}
				checkPlain(t, n.atRouter.syn(t, 40001, 443))
				// So does one with an authenticator of another key.
				j = internetJoin(40002)
				j.Auth.Key[3]++
				expect(t, n.sender, j)
				if e := n.join(t, token, j); e.Kind != mptcp.SubflowClosed {
					t.Errorf("a SYN that is not authentic was led on: %v", e)
				}
				if got, want := counters(t, n.receiver), (Counters{Accepted: 1, BadAuthenticator: 1}); got != want {
					t.Errorf("counters %+v, want %+v", got, want)
				}
			})
		}
	}
}

// first is the local end of the connection's subflow to the server itself.
func (n *internet) first(t testing.TB, token uint32) (local netip.AddrPort) {
	t.Helper()
	err := n.kernel.Subflows(func(s *mptcp.Subflow) bool {
		if s.Token == token && s.Remote == internetServer {
			local = s.Local
		}
		return !local.IsValid()
	})
	if err != nil || !local.IsValid() {
		t.Fatalf("no subflow to the server: %v", err)
	}
	return local
}

// Behind a NAT that rewrites ports the authenticator leaves the port out, and
// covers the address that the waypoint sees.
func TestJoinThroughNAT(t *testing.T) {
	n := newInternet(t, netnstest.Veth, SenderConfig{})
	n.router.Output(t, "nft", `
table ip nat {
	chain post {
		type nat hook postrouting priority srcnat
		ip saddr 10.0.1.0/24 ip protocol tcp masquerade to :50000-50100
	}
}`)
	public := netip.MustParseAddr("10.0.2.1")
	set(t, n.receiver, public, Slot{Key: memberKey, Mark: memberMark, Expires: inAnHour()})
	_, token := n.dial(t, unix.AF_INET)
	for port, c := range map[uint16]struct {
		auth Auth
		want mptcp.EventKind
	}{
		40000: {Auth{Key: memberKey, Client: public}, mptcp.SubflowEstablished},
		40001: {Auth{Key: memberKey, Client: public, ClientPort: true}, mptcp.SubflowClosed},
		40002: {Auth{Key: memberKey, Client: internetClient}, mptcp.SubflowClosed},
	} {
		j := internetJoin(port)
		j.Auth = &c.auth
		expect(t, n.sender, j)
		if e := n.join(t, token, j); e.Kind != c.want {
			t.Errorf("authenticator over %+v: %v, want %v", c.auth, e, c.want)
		}
	}
	if got, want := counters(t, n.receiver), (Counters{Accepted: 1, BadAuthenticator: 2}); got != want {
		t.Errorf("counters %+v, want %+v", got, want)
	}
}

// A join belongs to the cgroup of the program whose connection it joins, not to
// the agent's, which asks for it.
func TestJoinOfACgroup(t *testing.T) {
	group := cgrouptest.New(t)
	n := newInternet(t, netnstest.Veth, SenderConfig{Cgroup: group})
	client := start(t, n.client, group, "client", internetServer.String())
	inside := n.event(t, mptcp.Established).Token
	_, outside := n.dial(t, unix.AF_INET)
	for port, c := range map[uint16]struct {
		token uint32
		want  mptcp.EventKind
	}{40000: {inside, mptcp.SubflowEstablished}, 40001: {outside, mptcp.SubflowClosed}} {
		j := internetJoin(port)
		expect(t, n.sender, j)
		if e := n.join(t, c.token, j); e.Kind != c.want {
			t.Errorf("port %d: %v, want %v", port, e, c.want)
		}
		if unmarked := n.sender.Forget(j.Local, j.Remote); unmarked != (c.want == mptcp.SubflowClosed) {
			t.Errorf("port %d: SYNs without the option: %v", port, unmarked)
		}
	}

	// Once the join is up, its segments do not run the program any more.
	if err := n.kernel.SetBackup(inside, n.first(t, inside), internetServer, true); err != nil {
		t.Fatal(err)
	}
	statistics, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		t.Fatal(err)
	}
	defer statistics.Close()
	before := runs(t, n.sender.objects.SendOption)
	for range 10 {
		client.again(t)
	}
	n.atRouter.next(t, "data over the join", func(s segment) bool {
		return s.from == internetJoin(40000).Local && s.flags&packet.PSH != 0
	})
	if after := runs(t, n.sender.objects.SendOption); after != before {
		t.Errorf("the program ran %d times for the segments of a connection that is up", after-before)
	}
}

// Another program, which was attached before, goes on to be called for what a join sends.
func TestJoinBesideAForeignProgram(t *testing.T) {
	n := newNetwork(t, netnstest.Veth)
	foreign := cgrouptest.NewForeign(t, n.client, cgrouptest.ForeignSettings{SpareSYNs: true})
	n.open(t, SenderConfig{})
	c, token := n.dial(t, unix.AF_INET)
	j := internetJoin(40000)
	expect(t, n.sender, j)
	if e := n.join(t, token, j); e.Kind != mptcp.SubflowEstablished {
		t.Fatalf("the join failed: %v", e)
	}
	checkSYN(t, n.atRouter.syn(t, 40000, 443), j)
	if err := n.kernel.SetBackup(token, n.first(t, token), internetServer, true); err != nil {
		t.Fatal(err)
	}
	echo := func(size int) {
		done := make(chan error, 1)
		go func() {
			_, err := c.Write(make([]byte, size))
			done <- err
		}()
		_, err := io.ReadFull(c, make([]byte, size))
		if err = errors.Join(err, <-done); err != nil {
			t.Fatal(err)
		}
	}
	echo(64 << 10) // until then the first subflow may be used
	before, _ := foreign.Segments(t)
	echo(4 << 20)
	// Acknowledgements have room for its option, unlike data.
	if after, _ := foreign.Segments(t); after < before+10 {
		t.Errorf("its option was written in %d segments of the join", after-before)
	}
}

func runs(t testing.TB, p *ebpf.Program) uint64 {
	t.Helper()
	stats, err := p.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return stats.RunCount
}

func serveEcho(t testing.TB, ns *netnstest.NS, at netip.AddrPort) {
	t.Helper()
	var l net.Listener
	ns.Must(t, func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(true)
		l, err = lc.Listen(context.Background(), "tcp", at.String())
		return err
	})
	netnstest.Serve(t, l, netnstest.Echo)
}

// tun joins two namespaces by TUN devices, which have no link-layer header.
func tun(t testing.TB, a, b netnstest.End) {
	t.Helper()
	ends := [2]*os.File{a.TUN(t), b.TUN(t)}
	var pumps sync.WaitGroup
	for i := range ends {
		pumps.Go(func() {
			packet := make([]byte, 65536)
			for {
				n, err := ends[i].Read(packet)
				if err != nil {
					return
				}
				_, _ = ends[1-i].Write(packet[:n])
			}
		})
	}
	t.Cleanup(func() {
		ends[0].Close()
		ends[1].Close()
		pumps.Wait()
	})
}
