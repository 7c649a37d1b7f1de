package relay

import (
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/detour-collective/dcol/internal/converter/ask"
	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/client"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// Programs do not connect to converters in tunnels themselves.
func TestProgramsLeaveTunnelsToTheRelay(t *testing.T) {
	t.Parallel()
	server := netip.MustParseAddrPort("203.0.113.1:80")
	use := Use{Mode: choice.Always, Converters: []Converter{{Name: "bob", At: netip.MustParseAddrPort("192.0.2.1:5124"), Cookie: []byte("cookie")}}}
	dir := t.TempDir()
	r, _ := started(t, netnstest.New(t), dir, "1")
	c := ask.NewClient(filepath.Join(dir, ask.SocketName), ask.Timeout)
	t.Cleanup(c.Close)
	for _, tunnelled := range []bool{false, true} {
		if tunnelled {
			use.TunnelMark, use.Converters[0].From = 2, netip.MustParseAddr("10.192.0.2")
		}
		if _, err := r.Set(State{Use: &use}); err != nil {
			t.Fatal(err)
		}
		a := c.Ask(server)
		if a.Convert == nil || !a.Convert.Relay4.IsValid() || !a.Convert.Relay6.IsValid() || a.Convert.Converter.IsValid() == tunnelled {
			t.Errorf("in a tunnel %v: %+v", tunnelled, a.Convert)
		}
	}
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
