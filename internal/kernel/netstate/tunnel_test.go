package netstate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// tunnelHost is a host with a network, a default route and an interface dcol0 that leads nowhere.
func tunnelHost(t *testing.T) *netnstest.NS {
	t.Helper()
	ns, _ := twoHosts(t)
	ns.Output(t, "ip", "route", "add", "default", "via", "10.1.0.2")
	ns.Output(t, "ip", "-6", "route", "add", "default", "via", "fd01::2")
	addTUN(t, ns, "dcol0")
	return ns
}

func addTUN(t *testing.T, ns *netnstest.NS, name string) {
	t.Helper()
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("needs TUN: %v", err)
	}
	ns.Output(t, "ip", "tuntap", "add", name, "mode", "tun")
}

func mustSetTunnel(t *testing.T, ns *netnstest.NS, tunnel Tunnel) {
	t.Helper()
	ns.Must(t, func() error { return SetTunnel(tunnel) })
}

func clientTunnel(addrs ...string) Tunnel {
	t := Tunnel{Interface: "dcol0", MTU: 1420}
	for _, a := range addrs {
		addr := netip.MustParseAddr(a)
		t.Addresses = append(t.Addresses, netip.PrefixFrom(addr, addr.BitLen()))
		t.Sources = append(t.Sources, addr)
	}
	return t
}

// state is everything that a tunnel may change, as text, but for link-local addresses.
func state(t *testing.T, ns *netnstest.NS) string {
	t.Helper()
	var b strings.Builder
	for _, args := range [][]string{
		{"-br", "link"}, {"-o", "address"}, {"-4", "rule"}, {"-6", "rule"},
		{"-4", "route", "show", "table", "all"}, {"-6", "route", "show", "table", "all"},
	} {
		fmt.Fprintf(&b, "# ip %v\n", args)
		for line := range strings.Lines(ns.Output(t, "ip", args...)) {
			if !strings.Contains(line, "fe80::") { // eth0 gets its own when it has made sure that nobody else has it
				b.WriteString(line)
			}
		}
	}
	return b.String()
}

// wayOut is the interface by which packets leave; from may be empty.
func wayOut(t *testing.T, ns *netnstest.NS, dst, from string) string {
	t.Helper()
	args := []string{"route", "get", dst}
	if from != "" {
		args = append(args, "from", from)
	}
	fields := strings.Fields(ns.Output(t, "ip", args...))
	return fields[slices.Index(fields, "dev")+1]
}

func TestTunnelOfClient(t *testing.T) {
	ns := tunnelHost(t)
	before := state(t, ns)
	tunnel := clientTunnel("10.7.0.9", "fd07::9")
	mustSetTunnel(t, ns, tunnel)
	for dst, from := range map[string]string{"198.51.100.1": "10.7.0.9", "2001:db8:1::1": "fd07::9", "10.1.0.2": "10.7.0.9"} {
		if got := wayOut(t, ns, dst, from); got != "dcol0" {
			t.Errorf("from %s to %s leaves by %s", from, dst, got)
		}
	}
	for dst, from := range map[string]string{"198.51.100.1": "", "2001:db8:1::1": "", "10.7.0.1": "", "fd07::1": "", "198.51.100.2": "10.1.0.1"} {
		if got := wayOut(t, ns, dst, from); got != "eth0" {
			t.Errorf("from %q to %s leaves by %s", from, dst, got)
		}
	}
	if s := ns.Output(t, "ip", "address", "show", "dcol0"); strings.Contains(s, "fe80::") {
		t.Error("the tunnel has a link-local address:\n" + s)
	}

	// Other addresses take the place of the first ones.
	mustSetTunnel(t, ns, clientTunnel("10.7.0.10"))
	if got := wayOut(t, ns, "198.51.100.1", "10.7.0.10"); got != "dcol0" {
		t.Errorf("new address: leaves by %s", got)
	}
	if s := state(t, ns); strings.Contains(s, "10.7.0.9") || strings.Contains(s, "fd07::9") || strings.Contains(ns.Output(t, "ip", "-6", "route", "show", "table", "all"), "unreachable default") {
		t.Error("the first addresses are left:\n" + s)
	}

	ns.Must(t, func() error { return RemoveTunnel("dcol0") })
	ns.Must(t, func() error { return RemoveTunnel("dcol0") })
	addTUN(t, ns, "dcol0")
	if after := state(t, ns); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// Conntrack would keep the connections of an address that is gone for five days. Those of a tunnel that is removed are
// kept for some minutes, because the next one may have its address.
func TestFlowsOfTunnelEndWithItsAddress(t *testing.T) {
	ns := tunnelHost(t)
	mustSetTunnel(t, ns, clientTunnel("10.7.0.9", "fd07::9"))
	for _, src := range []string{"10.7.0.9", "fd07::9", "10.7.0.10", "10.1.0.1"} {
		dst := "198.51.100.1"
		if strings.Contains(src, ":") {
			dst = "2001:db8:1::1"
		}
		ns.Output(t, "conntrack", "-I", "-p", "tcp", "-s", src, "-d", dst, "--sport", "40000", "--dport", "80",
			"--state", "ESTABLISHED", "-u", "ASSURED", "-t", "100000")
	}
	check := func(want ...string) {
		t.Helper()
		var got []string
		ns.Must(t, func() error {
			ct, err := OpenConntrack()
			if err != nil {
				return err
			}
			defer ct.Close()
			return ct.Flows(MarkMatch{}, func(f Flow) { got = append(got, f.Origin.Src.Addr().String()) })
		})
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("tracked are connections from %v, want %v", got, want)
		}
	}
	check("10.1.0.1", "10.7.0.10", "10.7.0.9", "fd07::9")
	mustSetTunnel(t, ns, clientTunnel("10.7.0.10"))
	check("10.1.0.1", "10.7.0.10")
	ns.Must(t, func() error { return RemoveTunnel("dcol0") })
	check("10.1.0.1", "10.7.0.10")
	list := ns.Output(t, "conntrack", "-L", "-s", "10.7.0.10")
	_, entry, _ := strings.Cut(list, "tcp ")
	var seconds int
	if _, err := fmt.Sscanf(strings.TrimSpace(entry), "6 %d ESTABLISHED", &seconds); err != nil || seconds > 600 || seconds < 300 {
		t.Errorf("conntrack keeps what a removed tunnel had for %d s: %v\n%s", seconds, err, list)
	}
	addTUN(t, ns, "dcol0")
	mustSetTunnel(t, ns, clientTunnel("10.7.0.10"))
	ns.Must(t, CleanUpTunnels)
	check("10.1.0.1")
}

// What is so already is not set again: it would wake all who watch routes, and that may be us.
func TestTunnelIsSetOnce(t *testing.T) {
	ns := tunnelHost(t)
	tunnel := clientTunnel("10.7.0.9", "fd07::9")
	mustSetTunnel(t, ns, tunnel)
	ctx, cancel := context.WithCancel(context.Background())
	var changes <-chan []Address
	ns.Must(t, func() (err error) { changes, err = WatchAddresses(ctx); return err })
	<-changes
	mustSetTunnel(t, ns, tunnel)
	ns.Output(t, "ip", "address", "add", "10.1.0.99/24", "dev", "eth0")
	if set := <-changes; !slices.Contains(addrs(set), "10.1.0.99") {
		t.Errorf("setting the same tunnel again is a change: %v", addrs(set))
	}
	cancel()
	for range changes {
	}
}

// With the interface down its packets go nowhere, least of all out with an address of the tunnel's.
func TestTunnelDown(t *testing.T) {
	ns := tunnelHost(t)
	tunnel := clientTunnel("10.7.0.9", "fd07::9")
	mustSetTunnel(t, ns, tunnel)
	for _, how := range [][]string{{"link", "set", "dcol0", "down"}, {"link", "del", "dcol0"}} {
		ns.Output(t, "ip", how...)
		for dst, from := range map[string]string{"198.51.100.1": "10.7.0.9", "2001:db8:1::1": "fd07::9"} {
			err := ns.Do(func() error {
				// The address is not on the host any more, or not usable: bind it all the same.
				lc := net.ListenConfig{Control: transparent}
				c, err := lc.ListenPacket(context.Background(), "udp", net.JoinHostPort(from, "0"))
				if err != nil {
					return fmt.Errorf("bind: %w", err)
				}
				defer c.Close()
				_, err = c.WriteTo([]byte{1}, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(dst), 9)))
				return err
			})
			if err == nil || strings.Contains(err.Error(), "bind") || !strings.Contains(err.Error(), "route") {
				t.Errorf("after ip %v: from %s: %v", how, from, err)
			}
		}
	}
	// The interface is back, with another index.
	addTUN(t, ns, "dcol0")
	mustSetTunnel(t, ns, tunnel)
	if got := wayOut(t, ns, "198.51.100.1", "10.7.0.9"); got != "dcol0" {
		t.Errorf("made anew: leaves by %s", got)
	}
	ns.Output(t, "ip", "link", "del", "dcol0")
	// Another interface's removal takes along what is left of the one that is gone.
	ns.Must(t, func() error { return RemoveTunnel("dcol1") })
	if s := state(t, ns); strings.Contains(s, "10.7.0.9") || strings.Contains(s, "unreachable") {
		t.Error("left behind:\n" + s)
	}
	addTUN(t, ns, "dcol0")
	mustSetTunnel(t, ns, tunnel)
	ns.Output(t, "ip", "link", "set", "dcol0", "down")
	mustSetTunnel(t, ns, tunnel)
	if got := wayOut(t, ns, "198.51.100.1", "10.7.0.9"); got != "dcol0" {
		t.Errorf("up again: leaves by %s", got)
	}
}

// The waypoint's end is an interface like others: its subnet is behind it.
func TestTunnelOfWaypoint(t *testing.T) {
	ns := tunnelHost(t)
	mustSetTunnel(t, ns, Tunnel{Interface: "dcol0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.7.0.1/22"), netip.MustParsePrefix("fd07::1/64")}})
	for _, dst := range []string{"10.7.3.200", "fd07::1234"} {
		if got := wayOut(t, ns, dst, ""); got != "dcol0" {
			t.Errorf("to %s leaves by %s", dst, got)
		}
	}
	mustSetTunnel(t, ns, Tunnel{Interface: "dcol0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.7.0.1/22"), netip.MustParsePrefix("10.8.0.1/22")}})
	for dst, want := range map[string]string{"10.7.3.200": "dcol0", "10.8.0.2": "dcol0", "fd07::1234": "eth0"} {
		if got := wayOut(t, ns, dst, ""); got != want {
			t.Errorf("to %s leaves by %s", dst, got)
		}
	}
}

// Each member is reached by a route of its own, and nobody beside it. One member's path is narrower
// than the others'.
func TestTunnelPeer(t *testing.T) {
	ns := tunnelHost(t)
	before := state(t, ns)
	mustSetTunnel(t, ns, Tunnel{Interface: "dcol0", MTU: 1420, Addresses: []netip.Prefix{netip.MustParsePrefix("10.7.0.1/32"), netip.MustParsePrefix("fd07::1/128")}})
	ns.Output(t, "ip", "route", "add", "10.7.1.1", "dev", "dcol0") // somebody else's
	var hosts []netip.Addr
	for host, neighbour := range map[string]string{"10.7.0.9": "10.7.0.10", "fd07::9": "fd07::10"} {
		addr := netip.MustParseAddr(host)
		hosts = append(hosts, addr)
		for _, mtu := range []int{0, 1340, 1300, 0, 0} {
			ns.Must(t, func() error { return SetTunnelPeer("dcol0", addr, mtu) })
			if got, beside := wayOut(t, ns, host, ""), wayOut(t, ns, neighbour, ""); got != "dcol0" || beside != "eth0" {
				t.Errorf("to %s leaves by %s, to %s by %s", host, got, neighbour, beside)
			}
			ns.Must(t, func() error {
				got, err := PathMTU(addr)
				if want := cmp.Or(mtu, 1420); got != want {
					t.Errorf("set to %d: to %s %d, want %d", mtu, host, got, want)
				}
				return err
			})
		}
	}
	listed := func() (list []netip.Addr) {
		ns.Must(t, func() (err error) { list, err = TunnelPeers("dcol0"); return err })
		return slices.SortedFunc(slices.Values(list), netip.Addr.Compare)
	}
	slices.SortFunc(hosts, netip.Addr.Compare)
	if got := listed(); !slices.Equal(got, hosts) {
		t.Errorf("the tunnel leads to %v, want %v", got, hosts)
	}
	for range 2 {
		ns.Must(t, func() error { return RemoveTunnelPeer("dcol0", hosts[0]) })
	}
	if got, way := listed(), wayOut(t, ns, hosts[0].String(), ""); !slices.Equal(got, hosts[1:]) || way != "eth0" {
		t.Errorf("without %v the tunnel leads to %v, and there leads %s", hosts[0], got, way)
	}
	ns.Must(t, CleanUpTunnels)
	ns.Must(t, func() error { return RemoveTunnelPeer("dcol0", hosts[1]) })
	addTUN(t, ns, "dcol0")
	if after := state(t, ns); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func TestCleanUpTunnels(t *testing.T) {
	ns := tunnelHost(t)
	ns.Output(t, "ip", "rule", "add", "from", "10.9.9.9", "lookup", "100", "priority", "200")
	ns.Output(t, "ip", "link", "del", "dcol0")
	before := state(t, ns)
	for i := range 3 {
		name := fmt.Sprintf("dcol%d", i)
		addTUN(t, ns, name)
		tunnel := clientTunnel(fmt.Sprintf("10.7.%d.9", i), fmt.Sprintf("fd07:%d::9", i))
		tunnel.Interface = name
		mustSetTunnel(t, ns, tunnel)
	}
	ns.Output(t, "ip", "link", "del", "dcol1")            // its process was killed
	ns.Output(t, "ip", "rule", "del", "from", "10.7.2.9") // somebody has tidied up
	for range 2 {
		ns.Must(t, CleanUpTunnels)
		if after := state(t, ns); after != before {
			t.Fatalf("before:\n%s\nafter:\n%s", before, after)
		}
	}
}

func TestTunnelErrors(t *testing.T) {
	ns := tunnelHost(t)
	if err := ns.Do(func() error { return SetTunnel(Tunnel{Interface: "dcol7"}) }); err == nil || !strings.Contains(err.Error(), "dcol7") {
		t.Errorf("no interface: %v", err)
	}
	ns.Must(t, func() error { return SetSysctl("net/ipv6/conf/dcol0/disable_ipv6", "1") })
	if err := ns.Do(func() error { return SetTunnel(clientTunnel("10.7.0.9", "fd07::9")) }); !errors.Is(err, ErrNoIPv6) {
		t.Errorf("IPv6 switched off: %v", err)
	}
	works := func() {
		t.Helper()
		if got := wayOut(t, ns, "198.51.100.1", "10.7.0.9"); got != "dcol0" {
			t.Errorf("IPv4 leaves by %s", got)
		}
	}
	works()
	small := clientTunnel("10.7.0.9", "fd07::9")
	small.MTU = 1200
	if err := ns.Do(func() error { return SetTunnel(small) }); !errors.Is(err, ErrNoIPv6) {
		t.Errorf("MTU 1200 with IPv6: %v", err)
	}
	works()

	ns.Output(t, "ip", "rule", "add", "from", "all", "lookup", "main", "priority", "10")
	if err := ns.Do(func() error { return SetTunnel(clientTunnel("10.7.0.9")) }); err == nil || !strings.Contains(err.Error(), "ip rule") {
		t.Errorf("another's rule before ours: %v", err)
	}
}

func TestUsedPrefixes(t *testing.T) {
	ns := tunnelHost(t)
	for _, route := range []string{"172.16.0.0/13", "192.168.7.0/24", "172.17.0.0/16", "198.51.100.0/24", "0.0.0.0/1", "128.0.0.0/1"} {
		ns.Output(t, "ip", "route", "add", route, "via", "10.1.0.2")
	}
	ns.Output(t, "ip", "route", "add", "10.200.0.0/16", "via", "10.1.0.2", "table", "77")
	ns.Output(t, "ip", "route", "add", "blackhole", "10.201.0.0/16")
	ns.Output(t, "ip", "-6", "route", "add", "unreachable", "fc00::/8")
	ns.Output(t, "ip", "-6", "route", "add", "fc00::/7", "via", "fd01::2", "table", "78")
	ns.Output(t, "ip", "route", "add", "203.0.113.0/24", "via", "10.202.0.1", "dev", "eth0", "onlink")
	mustSetTunnel(t, ns, clientTunnel("10.7.0.9", "fd07::9"))
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); { // the kernel adds it a little later
		if strings.Contains(ns.Output(t, "ip", "-6", "route", "show", "table", "local"), "fd07::9") {
			break
		}
	}
	for _, tt := range []struct {
		except []string
		want   string
	}{
		{nil, "[172.16.0.0/13 10.200.0.0/16 10.1.0.0/24 192.168.7.0/24 10.7.0.9/32 10.202.0.1/32 fc00::/7]"},
		{[]string{"dcol0", "dcol9"}, "[172.16.0.0/13 10.200.0.0/16 10.1.0.0/24 192.168.7.0/24 10.202.0.1/32 fc00::/7]"},
	} {
		ns.Must(t, func() error {
			got, err := UsedPrefixes(tt.except...)
			slices.SortStableFunc(got, func(a, b netip.Prefix) int { return a.Addr().BitLen() - b.Addr().BitLen() })
			if fmt.Sprint(got) != tt.want {
				t.Errorf("except %v:\n got %v\nwant %s", tt.except, got, tt.want)
			}
			return err
		})
	}
}

// An IPv4 route may have an IPv6 router, which no other route names.
func TestUsedRouterOfTheOtherFamily(t *testing.T) {
	ns := tunnelHost(t)
	ns.Output(t, "ip", "route", "add", "203.0.113.0/24", "via", "inet6", "fd03::1", "dev", "eth0", "onlink")
	ns.Output(t, "ip", "route", "add", "198.51.100.0/24", "nexthop", "via", "10.1.0.2", "nexthop", "via", "inet6", "fd04::1", "dev", "eth0", "onlink")
	ns.Must(t, func() error {
		used, err := UsedPrefixes()
		for _, router := range []string{"fd03::1/128", "fd04::1/128"} {
			if !slices.Contains(used, netip.MustParsePrefix(router)) {
				t.Errorf("%s is not in %v", router, used)
			}
		}
		return err
	})
}

func TestPathMTU(t *testing.T) {
	client, router, server := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	netnstest.Veth(t, netnstest.End{NS: client, Name: "eth0", Addresses: []string{"192.0.2.1/24", "2001:db8:2::1/64"}},
		netnstest.End{NS: router, Name: "eth0", Addresses: []string{"192.0.2.2/24", "2001:db8:2::2/64"}})
	netnstest.Veth(t, netnstest.End{NS: router, Name: "eth1", Addresses: []string{"198.51.100.1/24", "2001:db8:3::1/64"}},
		netnstest.End{NS: server, Name: "eth0", Addresses: []string{"198.51.100.2/24", "2001:db8:3::2/64"}})
	router.Must(t, func() error {
		return errors.Join(SetSysctl("net/ipv4/ip_forward", "1"), SetSysctl("net/ipv6/conf/all/forwarding", "1"))
	})
	client.Route(t, "0.0.0.0/0", "192.0.2.2")
	client.Route(t, "::/0", "2001:db8:2::2")
	server.Route(t, "0.0.0.0/0", "198.51.100.1")
	server.Route(t, "::/0", "2001:db8:3::1")
	for _, dst := range []string{"198.51.100.2", "2001:db8:3::2"} {
		addr := netip.MustParseAddr(dst)
		is := func(when string, want int, mtu func() (int, error)) {
			t.Helper()
			client.Must(t, func() error {
				got, err := mtu()
				if got != want {
					t.Errorf("%s, %s: %d, want %d", dst, when, got, want)
				}
				return err
			})
		}
		known := func() (int, error) { return PathMTU(addr) }
		probed := func() (int, error) {
			return ProbePathMTU(context.Background(), netip.AddrPortFrom(addr, 51820), 50*time.Millisecond)
		}
		router.Output(t, "ip", "link", "set", "eth1", "mtu", "1500")
		is("wide, probed", 1500, probed)
		router.Output(t, "ip", "link", "set", "eth1", "mtu", "1400")
		is("narrow, not noticed", 1500, known)
		// IPv6 neighbours are silent for a second after an interface has come up.
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
			if client.Do(func() error {
				got, err := probed()
				if err == nil && got == 1500 {
					err = errors.New("not yet")
				}
				return err
			}) == nil {
				break
			}
		}
		is("narrow, known since", 1400, known)
		is("narrow, probed again", 1400, probed)
	}
	nowhere := netnstest.New(t)
	if err := nowhere.Do(func() error { _, err := PathMTU(netip.MustParseAddr("198.51.100.2")); return err }); err == nil {
		t.Error("a path MTU without a route")
	}
}

// transparent lets a socket have an address that the host has not.
func transparent(network, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) {
		if network == "udp6" {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT, 1)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1)
		}
	}); e != nil {
		return e
	}
	return err
}
