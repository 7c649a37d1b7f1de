package relay

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/converter/ask"
	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// plainSite is a host with a relay, and a server in another network that speaks no MPTCP.
type plainSite struct {
	host    *netnstest.NS
	servers [2]netip.AddrPort // IPv4 and IPv6
	dir     string
	relay   *Conn
}

func newPlainSite(t *testing.T) *plainSite {
	t.Helper()
	s := &plainSite{host: netnstest.New(t), dir: t.TempDir()}
	server := netnstest.New(t)
	netnstest.Veth(t,
		netnstest.End{NS: s.host, Name: "eth0", Addresses: []string{"10.2.0.1/24", "fd02::1/64"}},
		netnstest.End{NS: server, Name: "eth0", Addresses: []string{"10.2.0.2/24", "fd02::2/64"}})
	server.Output(t, "sysctl", "-qw", "net.mptcp.enabled=0")
	for i, at := range []string{"10.2.0.2:80", "[fd02::2]:80"} {
		s.servers[i] = netip.MustParseAddrPort(at)
		netnstest.Serve(t, server.Listen(t, at), netnstest.Echo)
	}
	s.relay, _ = started(t, s.host, s.dir, "1")
	return s
}

func (s *plainSite) set(t *testing.T, u *Use) {
	t.Helper()
	state := State{Serve: &Serve{Port: port, Key: key}, Use: u}
	if _, err := s.relay.Set(state); err != nil {
		t.Fatal(err)
	}
}

// call makes a connection that ends at once, with MPTCP.
func (s *plainSite) call(t *testing.T, server netip.AddrPort) {
	t.Helper()
	var d net.Dialer
	d.SetMultipathTCP(true)
	s.host.Must(t, func() error {
		c, err := d.DialContext(t.Context(), "tcp", server.String())
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// asker returns a client that remembers no answer.
func (s *plainSite) asker(t *testing.T) *ask.Client {
	t.Helper()
	c := ask.NewClient(filepath.Join(s.dir, ask.SocketName), ask.Timeout)
	t.Cleanup(c.Close)
	return c
}

// One short connection is enough for the next to be converted, even if nobody reports it. Until there is a converter,
// programs learn that the server is plain.
func TestPlainServersAreTold(t *testing.T) {
	t.Parallel()
	s := newPlainSite(t)
	use := Use{Mode: choice.Auto}
	bob := []Converter{{Name: "bob", At: netip.MustParseAddrPort("192.0.2.1:5124"), Cookie: []byte("cookie")}}
	s.set(t, &use)
	for _, server := range s.servers {
		if a := s.asker(t).Ask(server); a.Convert != nil || a.Plain {
			t.Errorf("%v, of which nothing is known: %+v", server, a)
		}
		s.call(t, server)
		if a := s.asker(t).Ask(server); a.Convert != nil || !a.Plain {
			t.Errorf("%v, and no converter: %+v", server, a)
		}
	}
	use.Converters = bob
	s.set(t, &use)
	plain := s.servers[0]
	c := s.asker(t)
	if a := c.Ask(plain); a.Convert == nil || a.Plain {
		t.Errorf("a server without MPTCP, and a converter: %+v", a)
	}
	// The latest finding counts: first a converter's, then a connection's. The kernel notes the time of a connection's with a
	// clock that ticks at least every 10 ms.
	time.Sleep(20 * time.Millisecond)
	c.Learned(plain, true)
	if a := c.Ask(plain); a.Convert != nil || a.Plain {
		t.Errorf("a server that speaks MPTCP now: %+v", a)
	}
	time.Sleep(20 * time.Millisecond)
	s.call(t, plain)
	if a := s.asker(t).Ask(plain); a.Convert == nil {
		t.Errorf("a server that is plain again: %+v", a)
	}
}

// Handshakes are watched in auto only, and while there is an agent.
func TestHandshakesAreWatched(t *testing.T) {
	t.Parallel()
	s := newPlainSite(t)
	watched := func(want bool, when string) {
		t.Helper()
		if got := strings.Contains(s.host.Output(t, "nft", "list", "tables"), "dcol_handshakes"); got != want {
			t.Errorf("%s: watched: %t", when, got)
		}
	}
	watched(false, "without orders")
	for _, mode := range []choice.Mode{choice.Always, choice.Auto, choice.Never, choice.Auto} {
		s.set(t, &Use{Mode: mode, Proxy: "127.0.0.1:1080"})
		watched(mode == choice.Auto, fmt.Sprint("mode ", mode))
	}
	s.set(t, nil)
	watched(false, "no converters are used")
	s.set(t, &Use{Mode: choice.Auto, Exclude: []netip.Prefix{netip.PrefixFrom(s.servers[0].Addr(), 32)}})
	s.call(t, s.servers[0])
	if a := s.asker(t).Ask(s.servers[0]); a.Plain {
		t.Errorf("an excluded server: %+v", a)
	}
	s.agentLeaves(t)
}

// agentLeaves waits until handshakes are not watched any more.
func (s *plainSite) agentLeaves(t *testing.T) {
	t.Helper()
	if err := s.relay.Close(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); strings.Contains(s.host.Output(t, "nft", "list", "tables"), "dcol_handshakes"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("handshakes are watched although the agent has left")
		}
	}
}

// What handshakes have shown is not forgotten when the agent restarts, even if nobody has asked about the server yet.
func TestFindingsOutliveTheAgent(t *testing.T) {
	t.Parallel()
	s := newPlainSite(t)
	use := Use{Mode: choice.Auto}
	s.set(t, &use)
	for _, server := range s.servers {
		s.call(t, server)
	}
	s.agentLeaves(t)
	var err error
	if s.relay, err = Dial(s.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.relay.Close() })
	s.set(t, &use)
	for _, server := range s.servers {
		if a := s.asker(t).Ask(server); !a.Plain {
			t.Errorf("%v after the agent's restart: %+v", server, a)
		}
	}
}

// The proxy works also if no converter is wanted any more. It leads directly then.
func TestProxyWithoutConverters(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	bob, server := netip.MustParseAddrPort("192.0.2.1:5124"), netip.MustParseAddrPort("203.0.113.1:80")
	for _, addr := range []netip.Addr{bob.Addr(), server.Addr()} {
		ns.Output(t, "ip", "addr", "add", addr.String()+"/32", "dev", "lo")
	}
	netnstest.Serve(t, ns.Listen(t, server.String()), netnstest.Echo)
	r, _ := started(t, ns, t.TempDir(), "1")
	proof := key.Seal(cookie.Claim{Mark: 1, Client: bob.Addr(), Expires: time.Now().Add(time.Hour)})
	use := Use{Mode: choice.Always, Proxy: "127.0.0.1:1080", Converters: []Converter{{Name: "bob", At: bob, Cookie: proof}}}
	for _, mode := range []choice.Mode{choice.Always, choice.Never} {
		use.Mode = mode
		if _, err := r.Set(State{Serve: &Serve{Port: bob.Port(), Key: key}, Use: &use}); err != nil {
			t.Fatal(err)
		}
		socks(t, ns, use.Proxy, server)
		status, err := r.Status()
		if err != nil || status.Parts[PartServe].Counters.Accepted != 1 { // by the first mode
			t.Errorf("mode %v: %+v, %v", mode, status.Parts, err)
		}
	}
}
