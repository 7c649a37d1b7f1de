package relay

import (
	"io"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/converter/ask"
	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/client"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// Programs do not connect to converters in tunnels themselves. Those that wait ask the relay as if it were the converter, and
// are told whether the server was reached.
func TestProgramsLeaveTunnelsToTheRelay(t *testing.T) {
	t.Parallel()
	servers := []netip.AddrPort{netip.MustParseAddrPort("203.0.113.1:80"), netip.MustParseAddrPort("[2001:db8::1]:80")}
	use := Use{Mode: choice.Always, Converters: []Converter{{Name: "bob", At: netip.MustParseAddrPort("192.0.2.1:5124"), Cookie: []byte("cookie")}}}
	dir := t.TempDir()
	ns := netnstest.New(t)
	r, _ := started(t, ns, dir, "1")
	c := ask.NewClient(filepath.Join(dir, ask.SocketName), ask.Timeout)
	t.Cleanup(c.Close)
	for _, tunnelled := range []bool{false, true} {
		if tunnelled {
			use.TunnelMark, use.Converters[0].From = 2, netip.MustParseAddr("10.192.0.2")
		}
		if _, err := r.Set(State{Use: &use}); err != nil {
			t.Fatal(err)
		}
		var to []*ask.Convert
		for i, server := range servers {
			a := c.Ask(server)
			if a.Convert == nil || !a.Convert.Relay4.IsValid() || !a.Convert.Relay6.IsValid() {
				t.Fatalf("in a tunnel %v: %+v", tunnelled, a.Convert)
			}
			want := use.Converters[0].At
			if tunnelled {
				want = []netip.AddrPort{a.Convert.Relay4, a.Convert.Relay6}[i]
			}
			if a.Convert.Converter != want {
				t.Errorf("in a tunnel %v, a program is led to %v for %v", tunnelled, a.Convert.Converter, server)
			}
			to = append(to, a.Convert)
		}
		for i, server := range servers {
			if !tunnelled {
				break
			}
			// Nothing is reached from this namespace, and the relay leaves the converter alone after the first try.
			if m := answerOf(t, ns, server, to[i]); m.Error == nil || m.Error.Code != rfc8803.DestinationUnreachable {
				t.Errorf("the answer for %v is %+v", server, m)
			}
		}
	}
}

// answerOf asks for a server as the supervisor of a waiting program does.
func answerOf(t *testing.T, ns *netnstest.NS, server netip.AddrPort, to *ask.Convert) rfc8803.Message {
	t.Helper()
	conn, err := ns.Dial(t.Context(), to.Converter)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	request, err := rfc8803.Message{Connect: &rfc8803.Connect{Server: server}, Cookie: to.Cookie}.Append(nil)
	if err == nil {
		_, err = conn.Write(request)
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	m, _, err := rfc8803.Decode(got)
	if err != nil {
		t.Fatalf("%q: %v", got, err)
	}
	return m
}

// A converter whose tunnel has ended is not called outside of it.
func TestWayInTunnel(t *testing.T) {
	bob, carol := netip.MustParseAddrPort("192.0.2.1:5124"), netip.MustParseAddrPort("192.0.2.2:5124")
	inside := netip.MustParseAddr("10.192.0.2")
	x := &user{ways: ways{mark: 2, from: map[netip.AddrPort]netip.Addr{bob: inside}}}
	if way, ok := x.way(bob); !ok || way != (client.Way{Local: inside, Mark: 2}) {
		t.Errorf("bob is called so: %+v, %v", way, ok)
	}
	if way, ok := x.way(carol); ok {
		t.Errorf("carol, to whom there is no tunnel, is called so: %+v", way)
	}
	x.ways.mark = 0
	if way, ok := x.way(carol); !ok || way != (client.Way{}) {
		t.Errorf("without tunnels, carol is called so: %+v, %v", way, ok)
	}
}
