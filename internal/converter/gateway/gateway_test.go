package gateway

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Ports of the server.
const (
	plainPort    = 80
	speaksPort   = 81
	excludedPort = 82
)

// home is a LAN's host, its gateway with a relay, and a server in the Internet.
type home struct {
	*testing.T
	host, router, server *netnstest.NS
	gateway              *Gateway
	relays               []net.Listener
	want                 Want // with the relay's ports
}

func newHome(t *testing.T, want Want) *home {
	t.Helper()
	h := &home{T: t, host: netnstest.New(t), router: netnstest.New(t), server: netnstest.New(t)}
	netnstest.Veth(t,
		netnstest.End{NS: h.host, Name: "eth0", Addresses: []string{"10.1.0.2/24", "fd01::2/64"}},
		netnstest.End{NS: h.router, Name: "lan0", Addresses: []string{"10.1.0.1/24", "fd01::1/64"}})
	netnstest.Veth(t,
		netnstest.End{NS: h.server, Name: "eth0", Addresses: []string{"10.2.0.2/24", "10.3.0.2/24", "fd02::2/64", "fd03::2/64"}},
		netnstest.End{NS: h.router, Name: "wan0", Addresses: []string{"10.2.0.1/24", "10.3.0.1/24", "fd02::1/64", "fd03::1/64"}})
	for _, r := range []struct {
		ns      *netnstest.NS
		v4, via string
	}{{h.host, "10.1.0.1", "fd01::1"}, {h.server, "10.2.0.1", "fd02::1"}} {
		r.ns.Output(t, "ip", "route", "add", "default", "via", r.v4)
		r.ns.Output(t, "ip", "-6", "route", "add", "default", "via", r.via)
	}
	h.router.Output(t, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	for port, mptcp := range map[string]bool{":80": false, ":81": true, ":82": false} {
		h.serve(h.server, port, mptcp, "server")
	}
	want.Port4 = h.relay("127.0.0.1:0", unix.SOL_IP, unix.IP_TRANSPARENT)
	want.Port6 = h.relay("[::1]:0", unix.SOL_IPV6, unix.IPV6_TRANSPARENT)
	h.want = want
	h.open()
	t.Cleanup(func() { _ = h.gateway.Close() })
	return h
}

func (h *home) open() {
	h.Helper()
	h.router.Must(h.T, func() (err error) {
		h.gateway, err = Open(Config{
			Interfaces: []string{"lan0"}, ExcludePorts: []uint16{excludedPort}, Marks: 0xff0000ff,
			Exclude: []netip.Prefix{netip.MustParsePrefix("10.3.0.0/16"), netip.MustParsePrefix("10.3.0.0/24"), netip.MustParsePrefix("fd03::/64")},
		}, h.want)
		return err
	})
}

// serve sends each connection a name, and then sends back what it gets.
func (h *home) serve(ns *netnstest.NS, address string, mptcp bool, name string, options ...int) net.Listener {
	h.Helper()
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if len(options) == 2 {
			_ = c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), options[0], options[1], 1) })
		}
		return err
	}}
	config.SetMultipathTCP(mptcp)
	var l net.Listener
	ns.Must(h.T, func() (err error) { l, err = config.Listen(context.Background(), "tcp", address); return err })
	netnstest.Serve(h.T, l, func(c *net.TCPConn) {
		fmt.Fprintln(c, name, c.LocalAddr()) // the address that was called is the server's for both
		netnstest.Echo(c)
	})
	return l
}

func (h *home) relay(address string, option ...int) (port uint16) {
	h.Helper()
	l := h.serve(h.router, address, true, "relay", option...)
	h.relays = append(h.relays, l)
	return netip.MustParseAddrPort(l.Addr().String()).Port()
}

// connect connects from a host and returns who answers.
func (h *home) connect(from *netnstest.NS, mptcp bool, to netip.AddrPort) string {
	h.Helper()
	c, who := h.begin(from, mptcp, to)
	c.Close()
	return who
}

// begin connects from a host, and returns who answers, too.
func (h *home) begin(from *netnstest.NS, mptcp bool, to netip.AddrPort) (net.Conn, string) {
	h.Helper()
	d := net.Dialer{Timeout: 10 * time.Second}
	d.SetMultipathTCP(mptcp)
	var c net.Conn
	from.Must(h.T, func() (err error) { c, err = d.DialContext(h.Context(), "tcp", to.String()); return err })
	h.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(60 * time.Second))
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		h.Fatal(err)
	}
	who, called, _ := strings.Cut(strings.TrimSpace(line), " ")
	if called != to.String() {
		h.Errorf("%s was called at %s, want %v", who, called, to)
	}
	return c, who
}

func (h *home) set(w Want) {
	h.Helper()
	w.Port4, w.Port6 = h.want.Port4, h.want.Port6
	h.router.Must(h.T, func() error { return h.gateway.Set(w) })
}

var families46 = []string{"10.2.0.2", "fd02::2"}

// expect checks who answers a LAN's host, in both families.
func (h *home) expect(who string, mptcp bool, port uint16) {
	h.Helper()
	for _, addr := range families46 {
		if got := h.connect(h.host, mptcp, netip.AddrPortFrom(netip.MustParseAddr(addr), port)); got != who {
			h.Errorf("MPTCP %t to %s, port %d: the %s answers, want the %s\n%s", mptcp, addr, port, got, who,
				h.router.Output(h.T, "nft", "list", "table", "inet", table.Name))
		}
	}
}

func (h *home) excludedPasses() {
	h.Helper()
	h.expect("server", false, excludedPort)
	for _, addr := range []string{"10.3.0.2", "fd03::2"} {
		if got := h.connect(h.host, false, netip.AddrPortFrom(netip.MustParseAddr(addr), plainPort)); got != "server" {
			h.Errorf("the %s answers at the excluded %s", got, addr)
		}
	}
}

func TestAuto(t *testing.T) {
	t.Parallel()
	h := newHome(t, Want{Mode: choice.Auto, Converters: true})
	h.expect("server", false, plainPort) // nothing is known yet
	h.expect("server", false, speaksPort)
	h.expect("server", true, plainPort) // teaches
	h.expect("relay", true, plainPort)
	h.expect("relay", false, plainPort)
	h.expect("server", true, speaksPort)
	h.expect("server", true, speaksPort)
	h.expect("relay", false, speaksPort) // the relay's connection is MPTCP
	h.excludedPasses()
	h.set(Want{Mode: choice.Auto}) // no converter
	h.expect("server", true, plainPort)
	h.expect("server", false, plainPort)
	h.expect("relay", false, speaksPort)
	h.set(Want{Mode: choice.Auto, Converters: true}) // knows it still
	h.expect("relay", false, plainPort)
	h.set(Want{})
	h.expect("server", false, plainPort)
	h.expect("server", false, speaksPort)
}

func TestAlways(t *testing.T) {
	t.Parallel()
	h := newHome(t, Want{Mode: choice.Always, Converters: true})
	h.expect("relay", false, plainPort)
	h.expect("relay", false, speaksPort)
	h.expect("server", true, plainPort)
	h.expect("relay", true, plainPort)
	h.expect("server", true, speaksPort)
	h.expect("server", true, speaksPort)
	h.excludedPasses()
}

// Other servers and ports are excluded at once. Connections that the relay has continue, what was learned stays, and no
// connection to a server that is excluded before and after is taken meanwhile.
func TestExclude(t *testing.T) {
	t.Parallel()
	h := newHome(t, Want{Mode: choice.Auto, Converters: true})
	h.expect("server", true, plainPort) // teaches
	exclude := func(ports []uint16, networks ...string) {
		t.Helper()
		var list []netip.Prefix
		for _, n := range append(networks, "10.3.0.0/16", "fd03::/64") {
			list = append(list, netip.MustParsePrefix(n))
		}
		h.router.Must(t, func() error { return h.gateway.Exclude(list, ports) })
	}
	var group sync.WaitGroup
	for _, addr := range families46 {
		c, who := h.begin(h.host, false, netip.AddrPortFrom(netip.MustParseAddr(addr), plainPort))
		if who != "relay" {
			t.Fatalf("the %s answers at first", who)
		}
		group.Go(func() {
			if err := echo(c, 64<<20); err != nil {
				t.Errorf("to %s: %v", addr, err)
			}
		})
	}
	exclude([]uint16{excludedPort}, "10.2.0.2/32", "fd02::/64")
	h.expect("server", false, plainPort)
	h.excludedPasses()
	exclude([]uint16{plainPort})
	h.expect("server", false, plainPort)
	stop := make(chan struct{})
	group.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				h.expect("server", false, plainPort)
			}
		}
	})
	for i := range uint16(100) {
		exclude([]uint16{plainPort, 1000 + i}, fmt.Sprintf("10.9.%d.0/24", i))
	}
	close(stop)
	group.Wait()
	exclude(nil)
	h.expect("relay", false, plainPort)
	h.router.Output(t, "nft", "flush ruleset")
	h.router.Must(t, func() error { _, err := h.gateway.Check(); return err })
	for _, addr := range []string{"10.3.0.2", "fd03::2"} {
		if got := h.connect(h.host, false, netip.AddrPortFrom(netip.MustParseAddr(addr), plainPort)); got != "server" {
			t.Errorf("restored, the %s answers at the excluded %s", got, addr)
		}
	}
}

// The gateway's own connections are never taken, and teach: also that a server has changed.
func TestOwnConnectionsTeach(t *testing.T) {
	t.Parallel()
	h := newHome(t, Want{Mode: choice.Auto, Converters: true})
	for _, addr := range families46 {
		if got := h.connect(h.router, true, netip.AddrPortFrom(netip.MustParseAddr(addr), plainPort)); got != "server" {
			t.Errorf("the %s answers the gateway itself", got)
		}
	}
	h.expect("relay", true, plainPort)
	h.server.Output(t, "sysctl", "-qw", "net.mptcp.enabled=0")
	h.serve(h.server, ":83", false, "server")
	h.server.Output(t, "sysctl", "-qw", "net.mptcp.enabled=1")
	h.expect("server", true, 83)
	h.expect("relay", true, 83)
}

// If SYNs with MPTCP are lost, the kernel sends one without. The answer to that shows nothing about the server.
func TestFallbackOfRetransmission(t *testing.T) {
	t.Parallel()
	if netnstest.KernelBefore(t, 6, 12) {
		t.Skip("this kernel repeats SYNs with MPTCP for at least 20 s")
	}
	h := newHome(t, Want{Mode: choice.Auto, Converters: true})
	h.server.Output(t, "nft", "table inet cut { chain input { type filter hook input priority 0; tcp flags syn tcp option mptcp exists counter drop; }; }")
	for i, from := range []*netnstest.NS{h.host, h.router} { // the first calls over IPv4, the second over IPv6
		from.Output(t, "sysctl", "-qw", "net.mptcp.blackhole_timeout=0") // else the kernel offers no MPTCP any more
		if got := h.connect(from, true, netip.AddrPortFrom(netip.MustParseAddr(families46[i]), plainPort)); got != "server" {
			t.Errorf("the %s answers", got)
		}
	}
	if rules := h.server.Output(t, "nft", "list", "chain", "inet", "cut", "input"); strings.Contains(rules, "packets 0 ") {
		t.Errorf("no SYN with MPTCP was lost: %s", rules)
	}
	h.server.Output(t, "nft", "delete table inet cut")
	h.expect("server", true, plainPort) // not known yet
	h.expect("relay", true, plainPort)
}

// Without a listener, connections pass at once.
func TestRelayGone(t *testing.T) {
	t.Parallel()
	h := newHome(t, Want{Mode: choice.Always, Converters: true})
	h.expect("server", true, plainPort)
	h.expect("relay", true, plainPort)
	for _, l := range h.relays {
		l.Close()
	}
	began := time.Now()
	h.expect("server", false, plainPort)
	h.expect("server", true, plainPort)
	if took := time.Since(began); took > 900*time.Millisecond { // a lost SYN costs a second
		t.Errorf("it took %v", took)
	}
}

// What others remove comes back, and nothing is left at the end.
func TestRestored(t *testing.T) {
	t.Parallel()
	h := newHome(t, Want{Mode: choice.Always, Converters: true})
	check := func(want bool) {
		t.Helper()
		h.router.Must(t, func() error {
			restored, err := h.gateway.Check()
			if restored != want {
				t.Errorf("restored: %t, want %t", restored, want)
			}
			return err
		})
		h.expect("relay", false, plainPort)
	}
	check(false)
	for _, command := range []string{
		"flush ruleset", "delete table inet dcol_gateway", "flush table inet dcol_gateway", "flush chain inet dcol_gateway prerouting",
		"flush chain inet dcol_gateway single", "flush set inet dcol_gateway lan",
	} {
		h.router.Output(t, "nft", command)
		select {
		case <-h.gateway.Removed():
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: not reported", command)
		}
		h.expect("server", false, plainPort)
		check(true)
		check(false)
	}
	h.router.Output(t, "ip", "rule", "del", "priority", "199")
	h.router.Output(t, "ip", "-6", "rule", "del", "priority", "199")
	check(false)
	h.router.Must(t, h.gateway.Remove)
	for range 2 {
		h.expect("server", false, plainPort)
		if left := h.router.Output(t, "nft", "list", "tables") + h.router.Output(t, "ip", "route", "show", "table", "all", "proto", "220"); left != "" {
			t.Errorf("left behind: %s", left)
		}
		h.router.Must(t, CleanUp)
	}
}

// The next process takes over what the previous one has learned.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	h := newHome(t, Want{Mode: choice.Auto, Converters: true})
	h.expect("server", true, plainPort)
	h.router.Must(t, h.gateway.Close)
	h.expect("relay", false, plainPort) // nobody has the table open
	h.open()
	h.expect("relay", false, plainPort)
}

// What a converter on the same host sends for a member leaves the host, whatever the number in its mark.
func TestConverterBeside(t *testing.T) {
	t.Parallel()
	h := newHome(t, Want{Mode: choice.Always, Converters: true})
	for _, to := range []string{"10.2.0.2", "fd02::2"} {
		for _, mark := range []string{"0xc0000001", "0xc0000003", "0xcf0000fd"} {
			if route := h.router.Output(t, "ip", "route", "get", to, "mark", mark); !strings.Contains(route, "dev wan0") {
				t.Errorf("%s with the mark %s: %s", to, mark, route)
			}
		}
		if route := h.router.Output(t, "ip", "route", "get", to, "mark", "1"); !strings.Contains(route, "dev lo") {
			t.Errorf("%s with the relay's mark: %s", to, route)
		}
	}
}

// UDP passes, whatever its port.
func TestUDP(t *testing.T) {
	t.Parallel()
	h := newHome(t, Want{Mode: choice.Always, Converters: true})
	var server net.PacketConn
	h.server.Must(t, func() (err error) { server, err = net.ListenPacket("udp", ":80"); return err })
	defer server.Close()
	for _, addr := range families46 {
		h.host.Must(t, func() error {
			c, err := net.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr(addr), 80).String())
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte("hello"))
			return err
		})
		_ = server.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, _, err := server.ReadFrom(make([]byte, 9)); n != 5 || err != nil {
			t.Errorf("%d bytes came to %s, %v", n, addr, err)
		}
	}
}

// TestTable compares the table with what nft prints, so that a person can read it.
func TestTable(t *testing.T) {
	t.Parallel()
	for name, w := range map[string]Want{
		"always": {Mode: choice.Always, Converters: true, Port4: 5001, Port6: 5002},
		"auto":   {Mode: choice.Auto, Converters: true, Port4: 5001, Port6: 5002},
		"alone":  {Mode: choice.Auto, Port4: 5001},
		"keeps":  {Mode: choice.Auto, Port6: 5002},
	} {
		ns := netnstest.New(t)
		ns.Must(t, func() error {
			g, err := Open(Config{
				Interfaces: []string{"lan0", "lan1"}, ExcludePorts: []uint16{25}, Marks: 0xff0000ff, KeepIPv6: name == "keeps",
				Exclude: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fc00::/7")},
			}, w)
			if err != nil {
				return err
			}
			return g.Close()
		})
		netnstest.CompareTable(t, "testdata/"+name+".nft", ns.Table(t, table.Name), *update)
	}
}
