package relay

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/gateway"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// gatewayMarks are the bits of marks that the gateway has.
const gatewayMarks = 7

// behindRouter makes a LAN's host, its router and a server in the network beyond.
func behindRouter(t *testing.T) (host, router, server *netnstest.NS) {
	t.Helper()
	host, router, server = netnstest.New(t), netnstest.New(t), netnstest.New(t)
	netnstest.Veth(t,
		netnstest.End{NS: host, Name: "eth0", Addresses: []string{"10.1.0.2/24", "fd01::2/64"}},
		netnstest.End{NS: router, Name: "lan0", Addresses: []string{"10.1.0.1/24", "fd01::1/64"}})
	netnstest.Veth(t,
		netnstest.End{NS: server, Name: "eth0", Addresses: []string{"10.2.0.2/24", "fd02::2/64"}},
		netnstest.End{NS: router, Name: "wan0", Addresses: []string{"10.2.0.1/24", "fd02::1/64"}})
	host.Output(t, "ip", "route", "add", "default", "via", "10.1.0.1")
	host.Output(t, "ip", "-6", "route", "add", "default", "via", "fd01::1")
	return host, router, server
}

// lead has the LAN's connections led to the relay of this status, by rules that stay. It returns to where.
func lead(t *testing.T, router *netnstest.NS, status Status, config gateway.Config) gateway.Want {
	t.Helper()
	config.Interfaces, config.Marks = []string{"lan0"}, gatewayMarks
	want := gateway.Want{Mode: choice.Always, Converters: true}
	want.Port4 = netip.MustParseAddrPort(status.Parts[PartGateway4].Listen).Port()
	want.Port6 = netip.MustParseAddrPort(status.Parts[PartGateway6].Listen).Port()
	router.Must(t, func() error {
		g, err := gateway.Open(config, want)
		if err != nil {
			return err
		}
		return g.Close()
	})
	return want
}

// The connections of a LAN's host come in as TPROXY leads them, also after another relay has taken over the listeners.
// When the relay is no gateway any more, they end, although it goes on as a converter.
func TestGateway(t *testing.T) {
	t.Parallel()
	host, router, server := behindRouter(t)
	dir := t.TempDir()
	netnstest.Serve(t, server.Listen(t, ":80"), netnstest.Echo)

	// Nothing is forwarded, so that a connection comes through only if it is taken.
	first, _ := started(t, router, dir, "1")
	state := State{Serve: &Serve{Port: port, Key: key}, Use: &Use{Mode: choice.Always, Gateway: []string{"lan0"}}}
	status, err := first.Set(state)
	if err != nil {
		t.Fatal(err)
	}
	to := lead(t, router, status, gateway.Config{})
	for _, addr := range []string{"10.2.0.2", "fd02::2"} {
		c, err := host.Dial(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(addr), 80))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if err := talk(c, "before"); err != nil {
			t.Errorf("to %s: %v", addr, err)
		}
	}
	// Who calls the listener itself gets no further.
	own, err := router.Dial(t.Context(), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), to.Port4))
	if err == nil {
		defer own.Close()
		if err := talk(own, "hello"); err == nil {
			t.Error("the listener relays to itself")
		}
	}

	second, _ := started(t, router, dir, "2")
	if _, err := second.Set(state); err != nil {
		t.Fatal(err)
	}
	c, err := host.Dial(t.Context(), netip.MustParseAddrPort("10.2.0.2:80"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := talk(c, "after"); err != nil {
		t.Errorf("after the handover: %v", err)
	}
	if _, err := second.Set(State{Serve: state.Serve}); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection has not been reset: %v", err)
	}
	if _, err := second.Status(); err != nil {
		t.Errorf("the relay has ended: %v", err)
	}
}

// A server that a LAN's host reaches without a converter sees the host's own IPv6 address, and the gateway's IPv4
// address. nftables learns from such connections, too.
func TestGatewayKeepsIPv6(t *testing.T) {
	t.Parallel()
	host, router, server := behindRouter(t)
	server.Output(t, "ip", "-6", "route", "add", "fd01::/64", "via", "fd02::1")
	// With forwarding, an answer that the rules do not give to the relay goes to the host.
	router.Output(t, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	callers := make(chan netip.Addr, 4) // one for each connection
	netnstest.Serve(t, server.Listen(t, ":80"), func(c *net.TCPConn) {
		callers <- netip.MustParseAddrPort(c.RemoteAddr().String()).Addr().Unmap()
		netnstest.Echo(c)
	})
	r, _ := started(t, router, t.TempDir(), "1")
	status, err := r.Set(State{Use: &Use{Mode: choice.Always, Gateway: []string{"lan0"}, KeepIPv6: true}})
	if err != nil {
		t.Fatal(err)
	}
	lead(t, router, status, gateway.Config{KeepIPv6: true})
	for addr, caller := range map[string]string{"10.2.0.2": "10.2.0.1", "fd02::2": "fd01::2"} {
		for range 2 {
			c, err := host.Dial(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(addr), 80))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			if err := talk(c, "hello"); err != nil {
				t.Errorf("to %s: %v\n%s", addr, err, router.Output(t, "nft", "list", "ruleset"))
				continue
			}
			if got := <-callers; got != netip.MustParseAddr(caller) {
				t.Errorf("%s sees %v, want %s", addr, got, caller)
			}
		}
	}
	if status, err = r.Status(); err != nil || status.Parts[PartGateway6].Counters.Pairs != 2 {
		t.Errorf("the relay has %+v, %v", status.Parts[PartGateway6], err)
	}
	if rules := router.Output(t, "nft", "list", "set", "inet", "dcol_gateway", "speaks6"); !strings.Contains(rules, "fd02::2 . 80") {
		t.Errorf("nothing was learned: %s", rules)
	}
}
