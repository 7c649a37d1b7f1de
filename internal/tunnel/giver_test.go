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
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// fakeGate records which addresses are admitted.
type fakeGate struct {
	open    map[netip.Addr]string // the owners' names
	refuse  *wire.Refusal
	refused []wire.Code // refusals that were reported by RefuseTunnel
}

func (f *fakeGate) AdmitTunnel(_ context.Context, p session.Peer, _ wire.Kind, addrs []netip.Addr, _ time.Duration) *wire.Refusal {
	if f.refuse != nil {
		return f.refuse
	}
	for _, a := range addrs {
		f.open[a] = p.Name
	}
	return nil
}

func (f *fakeGate) RefuseTunnel(_ context.Context, _ session.Peer, r *wire.Refusal) {
	f.refused = append(f.refused, r.Code)
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
	gone   bool // the interface does not exist
	closed bool
	lost   chan struct{} // receives a value if rules were removed
	checks atomic.Int32  // number of checks of the rules
}

func (f *fakeFar) holder(p session.Peer, r wire.TunnelRequest) (holder, bool) {
	return holder{p.Name, string(r.PublicKey)}, len(r.PublicKey) > 0
}

func (f *fakeFar) admit(h holder, addrs []netip.Prefix, g *wire.TunnelGrant) error {
	if f.fail == nil {
		f.in[h] = addrs
		g.PublicKey = []byte("the waypoint's")
	}
	return f.fail
}

func (f *fakeFar) tend(time.Time, []held) (bool, error) {
	if !f.gone {
		return false, f.fail
	}
	f.gone = false
	clear(f.in)
	return true, nil
}

func (f *fakeFar) expel(h holder) error     { delete(f.in, h); return nil }
func (f *fakeFar) removed() <-chan struct{} { return f.lost }
func (f *fakeFar) checkRules() error        { f.checks.Add(1); return nil }
func (f *fakeFar) iface() string            { return "dcolwg" }
func (f *fakeFar) problem() error           { return nil }
func (f *fakeFar) mtu() int                 { return 1420 }
func (f *fakeFar) peerMTU(netip.Addr) int   { return 0 }
func (f *fakeFar) close() error             { f.closed = true; return nil }

// fakeHost has one tunnel, and a guard that never fails.
type fakeHost struct {
	used    []netip.Prefix
	tunnel  netstate.Tunnel
	routes  map[netip.Addr]bool // to members
	changes chan []netstate.Address
	fail    error
	removed string
	guarded string
	lost    chan struct{} // receives a value if the guard's rules were removed
	checks  atomic.Int32  // number of checks of the guard
	calls   int           // number of calls that change the host
}

func newHost(used ...netip.Prefix) *fakeHost {
	return &fakeHost{used: used, routes: make(map[netip.Addr]bool), changes: make(chan []netstate.Address)}
}

func (f *fakeHost) usedPrefixes(string) ([]netip.Prefix, error) { return f.used, nil }
func (f *fakeHost) watch(context.Context) (<-chan []netstate.Address, error) {
	return f.changes, nil
}
func (f *fakeHost) guardOutput(iface string) (guard, error) { f.guarded = iface; return f, nil }
func (f *fakeHost) Check() (bool, error)                    { f.checks.Add(1); return false, nil }
func (f *fakeHost) Removed() <-chan struct{}                { return f.lost }
func (f *fakeHost) Close() error                            { f.guarded = ""; return nil }
func (f *fakeHost) setTunnel(t netstate.Tunnel) error {
	f.calls++
	f.tunnel = t
	return f.fail
}
func (f *fakeHost) removeTunnel(iface string) error { f.removed = iface; return nil }
func (f *fakeHost) peers(string) ([]netip.Addr, error) {
	return slices.Collect(maps.Keys(f.routes)), nil
}

func (f *fakeHost) setPeer(_ string, a netip.Addr, _ int) error {
	f.calls++
	if f.fail == nil {
		f.routes[a] = true
	}
	return f.fail
}
func (f *fakeHost) removePeer(_ string, a netip.Addr) error { delete(f.routes, a); return nil }

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

const (
	givenLease = 10 * time.Minute
	perMember  = 3
)

var testRanges = []netip.Prefix{netip.MustParsePrefix("10.192.0.0/11"), netip.MustParsePrefix("fd64:636f:6c00::/48")}

func newGiving(t *testing.T, used ...netip.Prefix) *giving {
	t.Helper()
	g := &giving{
		gate: &fakeGate{open: make(map[netip.Addr]string)}, far: &fakeFar{in: make(map[holder][]netip.Prefix)}, host: newHost(used...),
	}
	var err error
	config := GiveConfig{
		Seed: [32]byte{1}, Ranges: testRanges, PerMember: perMember, Lease: givenLease, Gate: g.gate, Log: slog.New(slog.NewTextHandler(&g.log, nil)),
	}
	if g.Giver, err = newGiver(wire.WireGuard, config, g.far, g.host); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *giving) give(t *testing.T, member string, r wire.TunnelRequest) wire.TunnelGrant {
	t.Helper()
	grant, refusal := g.Give(t.Context(), session.Peer{Name: member}, r)
	if refusal != nil {
		t.Fatalf("%s is refused: %v", member, refusal)
	}
	return grant
}

// holds checks that exactly these grants are admitted everywhere.
func (g *giving) holds(t *testing.T, grants ...wire.TunnelGrant) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	var want, open, in, routed []string
	for _, grant := range grants {
		for _, p := range grant.Addresses {
			want = append(want, p.Addr().String())
		}
	}
	for _, own := range g.host.tunnel.Addresses {
		if !own.IsSingleIP() {
			t.Errorf("the waypoint's own address %v leads more than itself into the tunnel", own)
		}
	}
	for a := range g.host.routes {
		routed = append(routed, a.String())
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
	slices.Sort(routed)
	if !slices.Equal(open, want) || !slices.Equal(in, want) || !slices.Equal(routed, want) {
		t.Errorf("the gate lets in %v, the tunnel %v, this host's routes lead to %v, want %v", open, in, routed, want)
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
	if g.host.tunnel.Interface != "dcolwg" || g.host.tunnel.MTU != 1420 || len(g.host.tunnel.Sources) > 0 || len(g.host.tunnel.Addresses) != 2 {
		t.Errorf("the waypoint's interface is %+v", g.host.tunnel)
	}
	if g.host.guarded != "dcolwg" {
		t.Errorf("this host's own traffic is kept out of %q", g.host.guarded)
	}
}

// The client's networks have changed. Its earlier addresses are taken back.
func TestGiveAnotherAddress(t *testing.T) {
	g := newGiving(t)
	carol := g.give(t, "carol", asking("c"))
	before := g.give(t, "alice", asking("a"))
	now := g.give(t, "alice", asking("a", netip.PrefixFrom(before.Addresses[0].Addr(), 30).Masked().String()))
	if now.Addresses[0] == before.Addresses[0] || now.Addresses[1] != before.Addresses[1] {
		t.Errorf("alice avoids %v and has %v", before.Addresses, now.Addresses)
	}
	g.holds(t, carol, now)
}

func TestNetworksOfTheWaypointAreAvoided(t *testing.T) {
	used := newGiving(t).give(t, "alice", asking("a")).Addresses[0].Masked()
	if grant := newGiving(t, used).give(t, "alice", asking("a")); grant.Addresses[0].Overlaps(used) {
		t.Errorf("given %v, though the waypoint is in %v", grant.Addresses, used)
	}
}

func TestNetworksLeaveNoRoom(t *testing.T) {
	if err := newGiving(t).Problem(); err != nil {
		t.Errorf("nothing is amiss: %v", err)
	}
	g := newGiving(t, netip.MustParsePrefix("10.0.0.0/8"))
	if err := g.Problem(); err == nil || !strings.Contains(err.Error(), "no free tunnel addresses in 10.192.0.0/11") {
		t.Errorf("without IPv4 there is the problem %v", err)
	}
	if grant := g.give(t, "alice", asking("a")); len(grant.Addresses) != 1 {
		t.Errorf("without IPv4 alice has %v", grant.Addresses)
	}
}

// Rules that another program removes are restored at once, and checked every few seconds in any case.
func TestRulesRemovedByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGiving(t)
		g.host.lost, g.far.lost = make(chan struct{}), make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- g.Run(ctx) }()
		checks := func(when string, ofGuard, ofRules int32) {
			t.Helper()
			if synctest.Wait(); g.host.checks.Load() != ofGuard || g.far.checks.Load() != ofRules {
				t.Errorf("%s: %d checks of the guard, %d of other rules; want %d, %d", when, g.host.checks.Load(), g.far.checks.Load(), ofGuard, ofRules)
			}
		}
		time.Sleep(time.Second)
		checks("after a second", 1, 1)
		g.host.lost <- struct{}{}
		checks("without its guard", 2, 1)
		g.far.lost <- struct{}{}
		checks("without other rules", 2, 2)
		time.Sleep(tablesEvery)
		checks("after some seconds", 3, 3)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// If the waypoint's host begins to use a tunnel's address, that must not lead to the member any more. Other members
// keep their addresses.
func TestNetworksOfTheWaypointAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGiving(t)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- g.Run(ctx) }()
		alice, carol := g.give(t, "alice", asking("a")), g.give(t, "carol", asking("c"))
		g.host.used = []netip.Prefix{netip.PrefixFrom(alice.Addresses[0].Addr(), 30).Masked()}
		g.host.changes <- nil
		time.Sleep(time.Second)
		synctest.Wait()
		g.holds(t, carol)
		if !strings.Contains(g.log.String(), "this host now uses its address") {
			t.Errorf("the log says %q", g.log.String())
		}
		if again := g.give(t, "alice", asking("a")); again.Addresses[0].Overlaps(g.host.used[0]) {
			t.Errorf("alice has %v, and the waypoint is in %v", again.Addresses, g.host.used)
		}
		// A removed route is restored, and a route without an owner is removed.
		delete(g.host.routes, carol.Addresses[0].Addr())
		g.host.routes[netip.MustParseAddr("10.20.30.53")] = true
		g.host.changes <- nil
		time.Sleep(time.Second)
		synctest.Wait()
		g.holds(t, carol, g.give(t, "alice", asking("a")))
		stop()
		if err := <-ended; err != nil || g.host.guarded != "" {
			t.Errorf("ended with %v, and guards %q", err, g.host.guarded)
		}
	})
}

// One member's requests do not use up the waypoint's addresses.
func TestTunnelsOfAMemberAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGiving(t)
		var grants []wire.TunnelGrant
		for i := range perMember {
			grants = append(grants, g.give(t, "mallory", asking(fmt.Sprint(i))))
			time.Sleep(time.Minute)
		}
		_, refusal := g.Give(t.Context(), session.Peer{Name: "mallory"}, asking("one more"))
		if refusal == nil || refusal.Code != wire.QuotaTunnels || refusal.RetryAfter != givenLease-perMember*time.Minute {
			t.Errorf("one more is answered by %+v", refusal)
		}
		if !slices.Equal(g.gate.refused, []wire.Code{wire.QuotaTunnels}) {
			t.Errorf("recorded are %v", g.gate.refused)
		}
		// The member can renew its tunnels. Others are not affected.
		again := g.give(t, "mallory", asking("0"))
		carol := g.give(t, "carol", asking("c"))
		g.holds(t, append(grants[1:], again, carol)...)
		time.Sleep(givenLease - (perMember-1)*time.Minute) // the lease of the second is over
		g.expire(time.Now())
		g.holds(t, append(grants[2:], again, carol, g.give(t, "mallory", asking("one more")))...)
	})
}

// The cost of one more tunnel does not depend on the number of tunnels: two routes, and nothing for a renewal.
func TestCostOfATunnel(t *testing.T) {
	g := newGiving(t)
	for _, renewed := range []bool{false, true} {
		for i := range 1000 {
			before := g.host.calls
			g.give(t, fmt.Sprint("member ", i/perMember), asking(fmt.Sprint(i)))
			want := 2
			if renewed {
				want = 0
			}
			if n := g.host.calls - before; n != want {
				t.Fatalf("tunnel %d, renewed: %v: %d changes to the host, want %d", i, renewed, n, want)
			}
		}
	}
	if len(g.host.tunnel.Addresses) != 2 {
		t.Errorf("the waypoint has %v itself", g.host.tunnel.Addresses)
	}
}

// With another member's key, a member would take over its tunnel.
func TestKeysOfOthersAreRefused(t *testing.T) {
	g := newGiving(t)
	alice := g.give(t, "alice", asking("a"))
	_, refusal := g.Give(t.Context(), session.Peer{Name: "mallory"}, asking("a"))
	if refusal == nil || refusal.Code != wire.Malformed {
		t.Errorf("alice's key is answered by %v", refusal)
	}
	g.holds(t, alice)
}

// After a failed renewal the tunnel stays as it was until its lease is over.
func TestFailedRenewals(t *testing.T) {
	for _, tt := range []struct {
		name string
		how  func(*giving)
		code wire.Code
	}{
		{"session ended meanwhile", func(g *giving) { g.gate.refuse = &wire.Refusal{Code: wire.Busy} }, wire.Busy},
		{"no device", func(g *giving) { g.far.fail = errors.New("no device") }, wire.Internal},
		{"no interface", func(g *giving) { g.host.fail = errors.New("no interface") }, wire.Internal},
		{"no address", func(*giving) {}, wire.Busy},
	} {
		for _, moves := range []bool{false, true} {
			if tt.name == "no interface" && !moves {
				continue // nothing changes for the same addresses
			}
			t.Run(fmt.Sprintf("%s, other addresses: %v", tt.name, moves), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newGiving(t)
					carol, alice := g.give(t, "carol", asking("c")), g.give(t, "alice", asking("a"))
					time.Sleep(givenLease * 2 / 3)
					renewal := asking("a")
					if moves {
						renewal = asking("a", netip.PrefixFrom(alice.Addresses[0].Addr(), 30).Masked().String())
					}
					if tt.name == "no address" {
						renewal = asking("a", "10.0.0.0/8", "fc00::/7")
					}
					tt.how(g)
					if _, refusal := g.Give(t.Context(), session.Peer{Name: "alice"}, renewal); refusal == nil || refusal.Code != tt.code {
						t.Fatalf("refusal %v, want %v", refusal, tt.code)
					}
					g.gate.refuse, g.far.fail, g.host.fail = nil, nil, nil
					g.holds(t, carol, alice)
					g.expire(time.Now().Add(givenLease/3 - time.Millisecond))
					g.holds(t, carol, alice)
					// The next try renews it.
					carol, alice = g.give(t, "carol", asking("c")), g.give(t, "alice", asking("a"))
					g.expire(time.Now().Add(givenLease - time.Millisecond))
					g.holds(t, carol, alice)
					g.expire(time.Now().Add(givenLease))
					g.holds(t)
				})
			})
		}
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
			if _, refusal := g.Give(t.Context(), session.Peer{Name: "alice"}, tt.ask); refusal == nil || refusal.Code != tt.code {
				t.Errorf("refusal %v, want %v", refusal, tt.code)
			}
			g.holds(t, carol)
			if want := tt.code == wire.Internal; want != strings.Contains(g.log.String(), "member gets no tunnel") {
				t.Errorf("the log says %q", g.log.String())
			}
			// The failed try has left nothing that disturbs another one.
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

// The waypoint's interface was removed by another program.
func TestAllAreLetInAnew(t *testing.T) {
	g := newGiving(t)
	alice, carol := g.give(t, "alice", asking("a")), g.give(t, "carol", asking("c"))
	before := maps.Clone(g.gate.open)
	g.far.gone, g.host.tunnel = true, netstate.Tunnel{}
	clear(g.host.routes)
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
