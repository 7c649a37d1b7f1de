package option

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/tcpopt"
)

func TestMain(m *testing.M) {
	if os.Getenv(holder) != "" {
		if err := hold(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if address := os.Getenv(manyDialer); address != "" {
		if err := dialMany(address); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// hosts are two hosts with a link.
type hosts struct{ client, server *netnstest.NS }

const (
	clientAddress = "192.0.2.1"
	serverAddress = "192.0.2.2"
)

func newHosts(t *testing.T) hosts {
	h := hosts{client: netnstest.New(t), server: netnstest.New(t)}
	netnstest.Veth(t, netnstest.End{NS: h.client, Name: "v", Addresses: []string{clientAddress + "/24", "2001:db8::1/64"}},
		netnstest.End{NS: h.server, Name: "v", Addresses: []string{serverAddress + "/24", "2001:db8::2/64"}})
	return h
}

// mostCalls is the most calls for what a connection sends or receives, if no other program needs them: PATIENCE of
// framework.h, in which an option finds room or is awaited, and COPIES that are written.
const mostCalls = 64 + 2

// lacking reports whether an error is for want of a cgroup. All kernels that are tested have the rest.
func lacking(err error) bool {
	e, ok := errors.AsType[*UnavailableError](err)
	return ok && strings.Contains(e.Fix, "cgroup2")
}

// observed is an exchange whose reports are collected.
type observed struct {
	*Exchange
	reports chan Report
	done    chan struct{}
}

// open attaches the program in a namespace until the test ends.
func open(t *testing.T, ns *netnstest.NS, c Config) *observed {
	t.Helper()
	o := &observed{reports: make(chan Report, 100000), done: make(chan struct{})}
	var opened error
	ns.Must(t, func() error { o.Exchange, opened = Open(c); return nil })
	if lacking(opened) {
		t.Skip(opened)
	}
	if opened != nil {
		t.Fatal(opened)
	}
	go func() {
		defer close(o.done)
		for {
			r, err := o.Read()
			if err != nil {
				if !errors.Is(err, os.ErrClosed) {
					t.Error(err)
				}
				return
			}
			o.reports <- r
		}
	}()
	t.Cleanup(func() {
		if err := o.Exchange.Close(); err != nil {
			t.Error(err)
		}
		<-o.done
	})
	return o
}

// await returns the next report of an option.
func (o *observed) await(t *testing.T, option tcpopt.Option) Report {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case r := <-o.reports:
			if r.Request.Option == option {
				return r
			}
		case <-deadline:
			t.Fatalf("no report of %v", option)
		}
	}
}

// none fails if there was a report. It is for after what would have caused one.
func (o *observed) none(t *testing.T) {
	t.Helper()
	select {
	case r := <-o.reports:
		t.Errorf("reported %+v", r)
	default:
	}
}

func listen(t *testing.T, ns *netnstest.NS, address string, mptcp bool) net.Listener {
	t.Helper()
	var l net.Listener
	ns.Must(t, func() (err error) {
		var config net.ListenConfig
		config.SetMultipathTCP(mptcp)
		l, err = config.Listen(context.Background(), "tcp", net.JoinHostPort(address, "0"))
		return err
	})
	t.Cleanup(func() { l.Close() })
	return l
}

func connect(t *testing.T, ns *netnstest.NS, l net.Listener, mptcp bool) (client, server net.Conn) {
	t.Helper()
	ns.Must(t, func() (err error) {
		var dialer net.Dialer
		dialer.SetMultipathTCP(mptcp)
		client, err = dialer.DialContext(t.Context(), "tcp", l.Addr().String())
		return err
	})
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// download has the server send to the client, which answers with ACKs.
func download(t *testing.T, client, server net.Conn, size int64) {
	t.Helper()
	written := make(chan error, 1)
	go func() {
		_, err := server.Write(make([]byte, size))
		written <- err
	}()
	if _, err := io.CopyN(io.Discard, client, size); err != nil {
		t.Error(err)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
}

func getsockopt(t *testing.T, c net.Conn, name int) (value int) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if e := raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, name) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	return value
}

func congestionOf(t *testing.T, c net.Conn) (name string) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if e := raw.Control(func(fd uintptr) { name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	return strings.TrimRight(name, "\x00")
}

func windowOf(t *testing.T, c net.Conn) uint32 {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	if e := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	return info.Snd_cwnd
}

var bounds = tcpopt.Bounds{UserTimeoutMin: 10 * time.Second, UserTimeoutMax: 100 * time.Second, Congestions: []string{"reno", "cubic"}, WindowMax: 40, RateMin: 12}

var everybody = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

func granting() Config {
	return Config{Accept: tcpopt.Options, Bounds: bounds, Trusted: everybody}
}

// A download by which each option is asked and granted, over TCP and MPTCP, IPv4 and IPv6.
func TestExchange(t *testing.T) {
	const reno = 1
	delay := tcpopt.Strategy{Fraction: 64, Segments: 2}
	for _, c := range []struct {
		name, address string
		mptcp         bool
	}{
		{"tcp4", serverAddress, false}, {"tcp6", "2001:db8::2", false}, {"mptcp4", serverAddress, true}, {"mptcp6", "2001:db8::2", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHosts(t)
			asking := open(t, h.client, Config{Ask: []tcpopt.Request{
				{Option: tcpopt.UserTimeout, Value: 30}, {Option: tcpopt.Congestion, Value: reno},
				{Option: tcpopt.InitialWindow, Value: 25}, {Option: tcpopt.DelayedACK, Value: delay.Value()},
			}})
			granted := open(t, h.server, granting())
			l := listen(t, h.server, c.address, c.mptcp)
			client, server := connect(t, h.client, l, c.mptcp)
			if r := granted.await(t, tcpopt.InitialWindow); r.Verdict != tcpopt.Granted || r.Granted != 25 {
				t.Errorf("%+v", r)
			}
			if !c.mptcp {
				if got := windowOf(t, server); got != 25 {
					t.Errorf("the initial window is %d", got)
				}
			}
			download(t, client, server, 4<<20)
			for _, want := range []Report{
				{Request: tcpopt.Request{Option: tcpopt.Congestion, Value: reno}, Verdict: tcpopt.Granted, Granted: reno},
				{Request: tcpopt.Request{Option: tcpopt.DelayedACK, Value: delay.Value()}, Verdict: tcpopt.Capped, Granted: 8000},
				{Request: tcpopt.Request{Option: tcpopt.UserTimeout, Value: 30}, Verdict: tcpopt.Granted, Granted: 30},
			} {
				got := granted.await(t, want.Request.Option)
				local, remote := netip.MustParseAddrPort(server.LocalAddr().String()), netip.MustParseAddrPort(client.LocalAddr().String())
				if got.Local != local || got.Remote != remote {
					t.Errorf("%v of %v to %v", want.Request, got.Remote, got.Local)
				}
				got.Local, got.Remote = netip.AddrPort{}, netip.AddrPort{}
				if want.Request.Option == tcpopt.DelayedACK && got.Granted >= 8000 { // by the round trip, and by the kernel's tick
					want.Granted = got.Granted
					if got.Verdict == tcpopt.Granted && got.Granted > 8000 { // a long round trip of a busy machine
						want.Verdict = got.Verdict
					}
				}
				if got != want {
					t.Errorf("got %+v, want %+v", got, want)
				}
			}
			for _, o := range []tcpopt.Option{tcpopt.InitialWindow, tcpopt.Congestion, tcpopt.DelayedACK, tcpopt.UserTimeout} {
				if r := asking.await(t, o); r.Verdict != tcpopt.Sent {
					t.Errorf("%+v", r)
				}
			}
			if !c.mptcp { // an MPTCP socket does not show its subflow's
				if got := congestionOf(t, server); got != "reno" {
					t.Errorf("the server has %s", got)
				}
				if got := getsockopt(t, server, unix.TCP_USER_TIMEOUT); got != 30000 {
					t.Errorf("the server has a user timeout of %d ms", got)
				}
			}
			download(t, client, server, 4<<20)
			granted.none(t)
		})
	}
}

// An upload, for which the server asks.
func TestServerAsks(t *testing.T) {
	h := newHosts(t)
	granted := open(t, h.client, granting())
	open(t, h.server, Config{Ask: []tcpopt.Request{
		{Option: tcpopt.Congestion, Value: 1}, {Option: tcpopt.InitialWindow, Value: 20}, {Option: tcpopt.UserTimeout, Value: 20},
	}})
	client, server := connect(t, h.client, listen(t, h.server, serverAddress, false), false)
	if r := granted.await(t, tcpopt.InitialWindow); r.Verdict != tcpopt.Granted || r.Granted != 20 {
		t.Errorf("%+v", r)
	}
	if got := windowOf(t, client); got != 20 {
		t.Errorf("the initial window is %d", got)
	}
	download(t, server, client, 4<<20)
	if r := granted.await(t, tcpopt.Congestion); r.Verdict != tcpopt.Granted {
		t.Errorf("%+v", r)
	}
	if r := granted.await(t, tcpopt.UserTimeout); r.Granted != 20 {
		t.Errorf("%+v", r)
	}
	if got := congestionOf(t, client); got != "reno" {
		t.Errorf("the client has %s", got)
	}
}

// What one side does not grant is not asked of it, but for RFC 5482's option.
func TestNotGranted(t *testing.T) {
	ask := []tcpopt.Request{{Option: tcpopt.Congestion, Value: 1}, {Option: tcpopt.InitialWindow, Value: 25}}
	for _, c := range []struct {
		name   string
		server Config
	}{
		{"none", Config{}},
		{"another", Config{Accept: []tcpopt.Option{tcpopt.UserTimeout}, Bounds: bounds}},
		{"not to this peer", Config{Accept: tcpopt.Options, Bounds: bounds, Peers: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHosts(t)
			asking, server := open(t, h.client, Config{Ask: ask}), open(t, h.server, c.server)
			a, b := connect(t, h.client, listen(t, h.server, serverAddress, false), false)
			download(t, a, b, 4<<20)
			asking.none(t)
			server.none(t)
		})
	}
	t.Run("no program", func(t *testing.T) {
		h := newHosts(t)
		asking := open(t, h.client, Config{Ask: ask})
		a, b := connect(t, h.client, listen(t, h.server, serverAddress, false), false)
		download(t, a, b, 4<<20)
		asking.none(t)
	})
	t.Run("peers that are not asked", func(t *testing.T) {
		h := newHosts(t)
		asking := open(t, h.client, Config{Ask: ask, Peers: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}})
		server := open(t, h.server, granting())
		a, b := connect(t, h.client, listen(t, h.server, serverAddress, false), false)
		download(t, a, b, 4<<20)
		asking.none(t)
		server.none(t)
	})
}

// Values beyond the bounds, from the program's own peer.
func TestBoundsAreKept(t *testing.T) {
	for _, c := range []struct {
		name    string
		ask     tcpopt.Request
		config  func(*Config)
		verdict tcpopt.Verdict
		granted uint32
	}{
		{"a window of 65535", tcpopt.Request{Option: tcpopt.InitialWindow, Value: 65535}, nil, tcpopt.Capped, 40},
		{"a window from a stranger", tcpopt.Request{Option: tcpopt.InitialWindow, Value: 20}, func(c *Config) {
			c.Trusted = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		}, tcpopt.Untrusted, 0},
		{"a window of 0", tcpopt.Request{Option: tcpopt.InitialWindow}, nil, tcpopt.OutOfBounds, 0},
		{"a congestion control that is not granted", tcpopt.Request{Option: tcpopt.Congestion, Value: 4}, nil, tcpopt.Unknown, 0},
		{"an unknown number", tcpopt.Request{Option: tcpopt.Congestion, Value: 65535}, nil, tcpopt.Unknown, 0},
		{"a congestion control that is gone", tcpopt.Request{Option: tcpopt.Congestion, Value: 1}, func(c *Config) {
			c.CongestionNames = map[string]string{"reno": "no_such_cc"}
		}, tcpopt.Refused, 1},
		{"a timeout of a second", tcpopt.Request{Option: tcpopt.UserTimeout, Value: 1}, nil, tcpopt.Capped, 10},
		{"a timeout of a day", tcpopt.Request{Option: tcpopt.UserTimeout, Value: 86400}, nil, tcpopt.Capped, 100},
		{"a timeout of 0", tcpopt.Request{Option: tcpopt.UserTimeout}, nil, tcpopt.OutOfBounds, 0},
		{"no delay", tcpopt.Request{Option: tcpopt.DelayedACK, Value: 2}, nil, tcpopt.OutOfBounds, 0},
		{"the lowest rate of the option", tcpopt.Request{Option: tcpopt.Rate, Value: tcpopt.RateValue(1)}, nil, tcpopt.Capped, 12},
		{"a rate of 0", tcpopt.Request{Option: tcpopt.Rate}, nil, tcpopt.OutOfBounds, 0},
		{"no segments", tcpopt.Request{Option: tcpopt.DelayedACK, Value: 64 << 8}, nil, tcpopt.OutOfBounds, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHosts(t)
			config := granting()
			if c.config != nil {
				c.config(&config)
			}
			open(t, h.client, Config{Ask: []tcpopt.Request{c.ask}})
			server := open(t, h.server, config)
			a, b := connect(t, h.client, listen(t, h.server, serverAddress, false), false)
			size := int64(4 << 20)
			if c.ask.Option == tcpopt.Rate {
				size = 20 << 10
			}
			download(t, a, b, size)
			if r := server.await(t, c.ask.Option); r.Verdict != c.verdict || r.Granted != c.granted || r.Request != c.ask {
				t.Errorf("%+v, want %v of %d", r, c.verdict, c.granted)
			}
			if c.verdict == tcpopt.Refused {
				return
			}
			// The program decides as the model does, of what does not depend on the peer.
			granted, v := bounds.Bound(c.ask)
			if c.verdict != tcpopt.Untrusted && (v != c.verdict || granted != c.granted) {
				t.Errorf("the model says %v of %d", v, granted)
			}
		})
	}
}

// The calls end when the options are done, and for connections without any at once.
func TestCallsEnd(t *testing.T) {
	const size = 32 << 20
	calls := func(t *testing.T, asking, granting Config) (client, server uint64) {
		h := newHosts(t)
		a, b := open(t, h.client, asking), open(t, h.server, granting)
		c, s := connect(t, h.client, listen(t, h.server, serverAddress, false), false)
		download(t, c, s, size)
		client, err := a.Calls()
		if err != nil {
			t.Fatal(err)
		}
		if server, err = b.Calls(); err != nil {
			t.Fatal(err)
		}
		return client, server
	}
	for name, c := range map[string][2]Config{
		"nothing in common": {{Ask: []tcpopt.Request{{Option: tcpopt.InitialWindow, Value: 20}}}, {}},
		"all":               {{Ask: []tcpopt.Request{{Option: tcpopt.InitialWindow, Value: 20}, {Option: tcpopt.Congestion, Value: 1}, {Option: tcpopt.UserTimeout, Value: 30}}}, granting()},
		"none comes":        {{}, granting()},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := calls(t, c[0], c[1])
			// The segments are some 500 of 64 KB, and more where the interface cannot take those.
			if client > 200 || server > 200 {
				t.Errorf("the client's program ran %d times, the server's %d", client, server)
			}
		})
	}
}

func TestConfigErrors(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{Ask: []tcpopt.Request{{Option: tcpopt.Congestion, Value: 1}, {Option: tcpopt.Congestion, Value: 2}}}, "twice"},
		{Config{Bounds: tcpopt.Bounds{Congestions: []string{"fastest"}}}, "has no number"},
		{Config{Peers: slices.Repeat(everybody, 200)}, "400 networks"},
	} {
		if e, err := Open(c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.config, err)
			if err == nil {
				e.Close()
			}
		}
	}
}

// The packaged service has no more.
func TestTwoCapabilitiesAreEnough(t *testing.T) {
	netnstest.New(t).Must(t, func() error {
		if err := netnstest.LimitRights(unix.CAP_BPF, unix.CAP_NET_ADMIN); err != nil {
			return err
		}
		e, err := Open(granting())
		if lacking(err) {
			t.Skip(err)
		}
		if err != nil {
			return err
		}
		return e.Close()
	})
	netnstest.New(t).Must(t, func() error {
		if err := netnstest.LimitRights(unix.CAP_NET_ADMIN); err != nil {
			return err
		}
		_, err := Open(granting())
		if e, ok := errors.AsType[*UnavailableError](err); !ok || !strings.Contains(e.Fix, "CAP_BPF") {
			t.Errorf("without CAP_BPF: %v", err)
		}
		return nil
	})
}
