package detour

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

var (
	home   = Tunnel{Kind: path.InBand, Path: "198.51.100.9"}
	abroad = Tunnel{Kind: path.InBand, Path: "198.51.100.10"}
	wg     = Tunnel{Kind: path.WireGuard, Local: netip.MustParseAddr("10.99.0.2")}
	wg6    = Tunnel{Kind: path.WireGuard, Local: netip.MustParseAddr("fd99::2")}
	ovpn   = Tunnel{Kind: path.OpenVPN, Local: netip.MustParseAddr("10.98.0.2")}
)

func opened(v Via, t Tunnel) path.Event {
	d := path.Detour{ID: tunnelID(v, t), Kind: t.Kind, Waypoint: v.Waypoint}
	if t.Kind == path.InBand {
		d.Remote = netip.AddrPortFrom(v.Addr, 0)
	} else {
		d.Local, d.Endpoint = t.Local, v.Addr
	}
	return path.DetourOffered{Detour: d}
}

func withdrawn(v Via, t Tunnel) path.Event { return path.DetourWithdrawn{ID: tunnelID(v, t)} }

func TestTunnelsAreOfferedAndReplaced(t *testing.T) {
	b := New(nil)
	b.Up(bob)
	want(t, "in-band", b.Opened(bob, home, start), []path.Event{opened(bob, home)})
	want(t, "the same again", b.Opened(bob, home, start), []path.Event(nil))
	want(t, "on another path", b.Opened(bob, abroad, start), []path.Event{withdrawn(bob, home), opened(bob, abroad)})
	want(t, "WireGuard", b.Opened(bob, wg, start), []path.Event{opened(bob, wg)})
	want(t, "for IPv6 beside it", b.Opened(bob, wg6, start), []path.Event{opened(bob, wg6)})
	want(t, "OpenVPN", b.Opened(bob, ovpn, start), []path.Event{opened(bob, ovpn)})
	want(t, "on offer", b.State(bob).Tunnels, []path.Kind{path.WireGuard, path.OpenVPN, path.InBand})

	other := wg
	other.Local = netip.MustParseAddr("10.97.0.2")
	want(t, "another subnet", b.Opened(bob, other, start), []path.Event{withdrawn(bob, wg), opened(bob, other)})
	want(t, "closed", b.Closed(bob, path.WireGuard), []path.Event{withdrawn(bob, other), withdrawn(bob, wg6)})
	want(t, "closed again", b.Closed(bob, path.WireGuard), []path.Event(nil))
	want(t, "closed where nothing was", b.Closed(carol, path.OpenVPN), []path.Event(nil))
	want(t, "left", b.State(bob).Tunnels, []path.Kind{path.OpenVPN, path.InBand})
}

func TestWhatCannotBeOffered(t *testing.T) {
	b := New([]path.Kind{path.InBand, path.Mapped})
	want(t, "in-band before the session", b.Opened(bob, home, start), []path.Event(nil))
	b.Up(bob)
	b.Up(bob6)
	want(t, "in-band over IPv6", b.Opened(bob6, home, start), []path.Event(nil))
	want(t, "a kind not in use", b.Opened(bob, wg, start), []path.Event(nil))
	want(t, "a mapping", b.Opened(bob, Tunnel{Kind: path.Mapped}, start), []path.Event(nil))
	want(t, "nothing on offer", b.State(bob).Tunnels, []path.Kind(nil))
	want(t, "WireGuard without an address", New(nil).Opened(bob, Tunnel{Kind: path.WireGuard}, start), []path.Event(nil))
}

func TestTunnelsOutliveSessionsAndAdmissionDoesNot(t *testing.T) {
	b := New(nil)
	want(t, "a tunnel without a session", b.Opened(carol, ovpn, start), []path.Event{opened(carol, ovpn)})
	b.Up(bob)
	b.Opened(bob, home, start)
	b.Opened(bob, wg, start)
	want(t, "down", b.Down(bob), []path.Event{
		path.WaypointLost{Waypoint: "bob", Addr: bob.Addr}, withdrawn(bob, home),
	})
	want(t, "a late admission", b.Opened(bob, home, start), []path.Event(nil))
	want(t, "on offer", b.State(bob).Tunnels, []path.Kind{path.WireGuard})
	b.Up(bob)
	want(t, "admitted anew", b.Opened(bob, home, start), []path.Event{opened(bob, home)})
}

func TestMappingsAreAskedForWhereTheyAreUsedAndOffered(t *testing.T) {
	b := New([]path.Kind{path.WireGuard, path.InBand})
	b.Up(bob)
	want(t, "not in use", b.Request(server, start), []Ask(nil))

	b = New(nil)
	b.Up(bob)
	b.Offers(bob, []path.Kind{path.InBand})
	b.Offers(carol, []path.Kind{path.InBand, path.Mapped})
	b.Up(carol)
	want(t, "offered by carol", b.Request(server, start), []Ask{{carol, server}})
	b.Offers(bob, []path.Kind{path.Mapped})
	want(t, "now by bob too", b.Request(server, start), []Ask{{bob, server}})
}

func TestForbiddenServerIsToldOf(t *testing.T) {
	b := New(nil)
	b.Up(bob)
	a := b.Request(server, start)[0]
	got := b.Refused(a, Refusal{Why: "forbidden", Forbidden: true, For: time.Minute}, start)
	if len(got) != 1 {
		t.Fatalf("%d events", len(got))
	}
	ev, ok := got[0].(path.ServerRefused)
	if !ok || ev.Waypoint != "bob" || ev.Addr != bob.Addr || ev.Server != server || ev.For != time.Minute || ev.Err.Error() != "forbidden" {
		t.Errorf("told: %+v", got[0])
	}
	want(t, "once", b.Refused(a, Refusal{Forbidden: true}, start), []path.Event(nil))

	// A session begins with both requests at once, so that the refusal may come first.
	again := b.Opened(bob, home, after(20*time.Second))
	if len(again) != 2 {
		t.Fatalf("with in-band detours, %d events", len(again))
	}
	want(t, "first", again[0], opened(bob, home))
	if ev, ok := again[1].(path.ServerRefused); !ok || ev.Server != server || ev.For != 40*time.Second || ev.Err.Error() != "forbidden" {
		t.Errorf("then: %+v", again[1])
	}
	want(t, "later", b.Opened(bob, abroad, after(time.Minute)), []path.Event{withdrawn(bob, home), opened(bob, abroad)})
}
