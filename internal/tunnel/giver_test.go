package tunnel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint"
)

// fakeGate lets addresses in, and out again.
type fakeGate struct {
	open   map[netip.Addr]string // whose they are
	refuse *wire.Refusal
}

func (f *fakeGate) AdmitTunnel(_ context.Context, p waypoint.Peer, _ wire.Kind, addrs []netip.Addr, _ time.Duration) *wire.Refusal {
	if f.refuse != nil {
		return f.refuse
	}
	for _, a := range addrs {
		f.open[a] = p.Name
	}
	return nil
}

func (f *fakeGate) RevokeTunnel(addrs []netip.Addr) error {
	for _, a := range addrs {
		delete(f.open, a)
	}
	return nil
}

// fakeFar is WireGuard as a Giver sees it.
type fakeFar struct {
	in     map[holder][]netip.Prefix
	fail   error
	gone   bool // the interface is
	closed bool
}

func (f *fakeFar) holder(p waypoint.Peer, r wire.TunnelRequest) (holder, bool) {
	return holder{p.Name, string(r.PublicKey)}, len(r.PublicKey) > 0
}

func (f *fakeFar) admit(h holder, addrs []netip.Prefix, g *wire.TunnelGrant) error {
	if f.fail == nil {
		f.in[h] = addrs
		g.PublicKey = []byte("the waypoint's")
	}
	return f.fail
}

func (f *fakeFar) tend(time.Time, map[holder][]netip.Addr) (bool, error) {
	if !f.gone {
		return false, f.fail
	}
	f.gone = false
	clear(f.in)
	return true, nil
}

func (f *fakeFar) expel(h holder) error { delete(f.in, h); return nil }
func (f *fakeFar) iface() string        { return "dcolwg" }
func (f *fakeFar) problem() error       { return nil }
func (f *fakeFar) mtu() int             { return 1420 }
func (f *fakeFar) close() error         { f.closed = true; return nil }

// fakeHost notes how the tunnel's interface was last set up.
type fakeHost struct {
	used    []netip.Prefix
	tunnel  netstate.Tunnel
	fail    error
	removed string
}

func (f *fakeHost) usedPrefixes() ([]netip.Prefix, error) { return f.used, nil }
func (f *fakeHost) setTunnel(t netstate.Tunnel) error     { f.tunnel = t; return f.fail }
func (f *fakeHost) removeTunnel(iface string) error       { f.removed = iface; return nil }

func asking(key string, avoid ...string) wire.TunnelRequest {
	r := wire.TunnelRequest{Kind: wire.WireGuard, PublicKey: []byte(key)}
	for _, a := range avoid {
		r.Avoid = append(r.Avoid, netip.MustParsePrefix(a))
	}
	return r
}

type giving struct {
	*Giver
	gate *fakeGate
	far  *fakeFar
	host *fakeHost
	log  strings.Builder
}

const givenLease = 10 * time.Minute

func newGiving(t *testing.T) *giving {
	t.Helper()
	g := &giving{
		gate: &fakeGate{open: make(map[netip.Addr]string)}, far: &fakeFar{in: make(map[holder][]netip.Prefix)}, host: &fakeHost{},
	}
	var err error
	log := slog.New(slog.NewTextHandler(&g.log, nil))
	if g.Giver, err = newGiver("bob", wire.WireGuard, givenLease, g.gate, g.far, g.host, log); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *giving) give(t *testing.T, member string, r wire.TunnelRequest) wire.TunnelGrant {
	t.Helper()
	grant, refusal := g.Give(t.Context(), waypoint.Peer{Name: member}, r)
	if refusal != nil {
		t.Fatalf("%s is refused: %v", member, refusal)
	}
	return grant
}

// holds demands that these grants, and no others, are let in everywhere.
func (g *giving) holds(t *testing.T, grants ...wire.TunnelGrant) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	var want, open, in []string
	for _, grant := range grants {
		for _, p := range grant.Addresses {
			want = append(want, p.Addr().String())
			if !slices.ContainsFunc(g.host.tunnel.Addresses, func(own netip.Prefix) bool { return own.Masked() == p.Masked() && own.Addr() != p.Addr() }) {
				t.Errorf("the waypoint has no address of its own in %v's subnet: %v", p, g.host.tunnel.Addresses)
			}
		}
	}
	for a := range g.gate.open {
		open = append(open, a.String())
	}
	for _, list := range g.far.in {
		for _, p := range list {
			in = append(in, p.Addr().String())
		}
	}
	slices.Sort(want)
	slices.Sort(open)
	slices.Sort(in)
	if !slices.Equal(open, want) || !slices.Equal(in, want) {
		t.Errorf("the gate lets in %v, the tunnel %v, want %v", open, in, want)
	}
}

func TestGive(t *testing.T) {
	g := newGiving(t)
	alice := g.give(t, "alice", asking("a"))
	if alice.Kind != wire.WireGuard || alice.Lease != givenLease || alice.MTU != 1420 || alice.Port != 0 || string(alice.PublicKey) != "the waypoint's" {
		t.Errorf("granted %+v", alice)
	}
	if len(alice.Addresses) != 2 {
		t.Errorf("alice has %v, want one address of each family", alice.Addresses)
	}
	again := g.give(t, "alice", asking("a"))
	if !slices.Equal(again.Addresses, alice.Addresses) {
		t.Errorf("alice has %v, and asked again %v", alice.Addresses, again.Addresses)
	}
	host := g.give(t, "alice", asking("another host's"))
	carol := g.give(t, "carol", asking("c"))
	g.holds(t, alice, host, carol)
	if g.gate.open[carol.Addresses[0].Addr()] != "carol" {
		t.Errorf("the gate knows %v", g.gate.open)
	}
	if g.host.tunnel.Interface != "dcolwg" || g.host.tunnel.MTU != 1420 || len(g.host.tunnel.Sources) > 0 {
		t.Errorf("the waypoint's interface is %+v", g.host.tunnel)
	}
}

// The client's networks have changed: what it had before is taken back.
func TestGiveInAnotherSubnet(t *testing.T) {
	g := newGiving(t)
	carol := g.give(t, "carol", asking("c"))
	before := g.give(t, "alice", asking("a"))
	now := g.give(t, "alice", asking("a", before.Addresses[0].Masked().String()))
	if now.Addresses[0].Overlaps(before.Addresses[0]) || now.Addresses[1] != before.Addresses[1] {
		t.Errorf("alice avoids %v and has %v", before.Addresses, now.Addresses)
	}
	g.holds(t, carol, now)
}

func TestNetworksOfTheWaypointAreAvoided(t *testing.T) {
	used := newGiving(t).give(t, "alice", asking("a")).Addresses[0].Masked()
	host := &fakeHost{used: []netip.Prefix{used}}
	g, err := newGiver("bob", wire.WireGuard, givenLease, &fakeGate{open: make(map[netip.Addr]string)},
		&fakeFar{in: make(map[holder][]netip.Prefix)}, host, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	grant, refusal := g.Give(t.Context(), waypoint.Peer{Name: "alice"}, asking("a"))
	if refusal != nil || grant.Addresses[0].Overlaps(used) {
		t.Errorf("given %v, %v, though the waypoint is in %v", grant.Addresses, refusal, used)
	}
}

func TestGiveRefuses(t *testing.T) {
	everything := []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"}
	for _, tt := range []struct {
		name string
		how  func(*giving)
		ask  wire.TunnelRequest
		code wire.Code
	}{
		{"no key", func(*giving) {}, asking(""), wire.Malformed},
		{"no address", func(*giving) {}, asking("a", everything...), wire.Busy},
		{"one too many", func(g *giving) { g.gate.refuse = &wire.Refusal{Code: wire.QuotaMappings} }, asking("a"), wire.QuotaMappings},
		{"no peer", func(g *giving) { g.far.fail = errors.New("no device") }, asking("a"), wire.Internal},
		{"no interface", func(g *giving) { g.host.fail = errors.New("no interface") }, asking("a"), wire.Internal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGiving(t)
			carol := g.give(t, "carol", asking("c"))
			tt.how(g)
			if _, refusal := g.Give(t.Context(), waypoint.Peer{Name: "alice"}, tt.ask); refusal == nil || refusal.Code != tt.code {
				t.Errorf("refusal %v, want %v", refusal, tt.code)
			}
			g.holds(t, carol)
			if want := tt.code == wire.Internal; want != strings.Contains(g.log.String(), "member gets no tunnel") {
				t.Errorf("the log says %q", g.log.String())
			}
			// Nothing of the try is left that another one would trip over.
			g.gate.refuse, g.far.fail, g.host.fail = nil, nil, nil
			g.holds(t, carol, g.give(t, "alice", asking("a")))
		})
	}
}

func TestExpelTakesAllOfAMember(t *testing.T) {
	g := newGiving(t)
	g.give(t, "alice", asking("a"))
	g.give(t, "alice", asking("another host's"))
	carol := g.give(t, "carol", asking("c"))
	for range 2 {
		if err := g.Expel("alice"); err != nil {
			t.Fatal(err)
		}
		g.holds(t, carol)
	}
}

func TestTunnelsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGiving(t)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- g.Run(ctx) }()
		g.give(t, "alice", asking("a"))
		time.Sleep(givenLease * 2 / 3)
		carol := g.give(t, "carol", asking("c"))
		again := g.give(t, "alice", asking("a"))
		time.Sleep(givenLease - time.Second)
		synctest.Wait()
		g.holds(t, carol, again)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		g.holds(t)
		stop()
		if err := <-ended; err != nil || !g.far.closed || g.host.removed != "dcolwg" {
			t.Errorf("ended with %v, closed %v, removed %q", err, g.far.closed, g.host.removed)
		}
	})
}

// Somebody has removed the waypoint's interface.
func TestAllAreLetInAnew(t *testing.T) {
	g := newGiving(t)
	alice, carol := g.give(t, "alice", asking("a")), g.give(t, "carol", asking("c"))
	before := maps.Clone(g.gate.open)
	g.far.gone, g.host.tunnel = true, netstate.Tunnel{}
	g.tend(time.Now())
	g.holds(t, alice, carol)
	if !maps.Equal(before, g.gate.open) || g.log.Len() > 0 {
		t.Errorf("the gate let in %v, now %v; the log says %q", before, g.gate.open, g.log.String())
	}
}

func TestTroubleIsToldOnce(t *testing.T) {
	g := newGiving(t)
	for n := range 4 {
		g.far.fail = fmt.Errorf("trouble %d", n/2)
		g.tend(time.Now())
	}
	if got := strings.Count(g.log.String(), "trouble"); got != 2 {
		t.Errorf("told %d times:\n%s", got, g.log.String())
	}
}
