package vpn

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var t0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func mustTake(t *testing.T, p *Pool, holder string, avoid ...netip.Prefix) []netip.Prefix {
	t.Helper()
	a, err := p.Take(holder, avoid, t0.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	return a.Addresses
}

func prefixes(s ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range s {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

var comparePrefix = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// What a name gives must never change between versions: a member keeps its addresses, and so its
// connections, when its waypoint is upgraded.
func TestAddressesFollowFromNames(t *testing.T) {
	p := NewPool("oslo")
	got := map[string][]netip.Prefix{"gateways": p.Gateways(), "alice": mustTake(t, p, "alice"), "bob": mustTake(t, p, "bob")}
	want := map[string][]netip.Prefix{
		"gateways": prefixes("10.197.188.1/22", "fd75:caee:d095:8527::1/64"),
		"alice":    prefixes("10.197.188.164/22", "fd75:caee:d095:8527:e37d:179d:99f6:6b/64"),
		"bob":      prefixes("10.197.189.255/22", "fd75:caee:d095:8527:de0b:fb30:b804:d3/64"),
	}
	if diff := cmp.Diff(want, got, comparePrefix); diff != "" {
		t.Error(diff)
	}
}

func TestWaypointsAreDistinct(t *testing.T) {
	const waypoints = 40
	fours, sixes := make(map[netip.Prefix]bool), make(map[netip.Prefix]bool)
	for i := range waypoints {
		g := NewPool(fmt.Sprintf("waypoint-%d", i)).Gateways()
		fours[g[0]], sixes[g[1]] = true, true
	}
	if len(fours) < waypoints || len(sixes) < waypoints {
		t.Errorf("%d waypoints have %d IPv4 and %d IPv6 subnets", waypoints, len(fours), len(sixes))
	}
}

func TestSubnetInUseAtTheMember(t *testing.T) {
	p := NewPool("oslo")
	first := mustTake(t, p, "alice")
	other := mustTake(t, p, "bob", first[0].Masked())
	if other[0].Masked() == first[0].Masked() || other[1].Masked() != first[1].Masked() {
		t.Errorf("avoiding %v gives %v", first[0], other)
	}
	if g := p.Gateways(); len(g) != 3 || !slices.Contains(g, gateway(other[0].Masked())) {
		t.Errorf("gateways %v", g)
	}
	// Alice's network changes under her.
	moved := mustTake(t, p, "alice", prefixes("10.0.0.0/8", "fd00::/16")...)
	if !netip.MustParsePrefix("172.16.0.0/12").Contains(moved[0].Addr()) || moved[1] != first[1] {
		t.Errorf("without 10/8: %v", moved)
	}
	if moved = mustTake(t, p, "alice", prefixes("10.0.0.0/8", "172.16.0.0/12")...); !netip.MustParsePrefix("192.168.0.0/16").Contains(moved[0].Addr()) {
		t.Errorf("without 10/8 and 172.16/12: %v", moved)
	}
	if moved = mustTake(t, p, "alice", prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")...); len(moved) != 1 || !moved[0].Addr().Is6() {
		t.Errorf("without private IPv4: %v", moved)
	}
	if _, err := p.Take("alice", prefixes("0.0.0.0/0", "::/0"), t0); !errors.Is(err, ErrNoAddress) {
		t.Errorf("without anything: %v", err)
	}
	if moved = mustTake(t, p, "alice", prefixes("fc00::/7")...); len(moved) != 1 || moved[0] != first[0] {
		t.Errorf("without private IPv6: %v", moved)
	}
}

func TestSubnetInUseAtTheWaypoint(t *testing.T) {
	usual := NewPool("oslo").Gateways()
	p := NewPool("oslo", usual[0].Masked(), netip.MustParsePrefix("192.0.2.0/24"))
	if g := p.Gateways(); g[0].Overlaps(usual[0]) || g[1] != usual[1] {
		t.Errorf("gateways %v", g)
	}
	if a := mustTake(t, p, "alice"); a[0].Overlaps(usual[0]) {
		t.Errorf("alice has %v", a)
	}
}

func TestFullSubnet(t *testing.T) {
	p := NewPool("oslo")
	const size = 1<<(32-bits4) - 3
	for i := range size + 1 {
		mustTake(t, p, fmt.Sprint(i))
	}
	if g := p.Gateways(); len(g) != 3 { // IPv6 is far from full
		t.Errorf("%d members: gateways %v", size+1, g)
	}
}

func TestExpire(t *testing.T) {
	p := NewPool("oslo")
	a := mustTake(t, p, "alice")
	if _, err := p.Take("bob", nil, t0.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if e := p.Expire(t0); len(e) != 0 {
		t.Errorf("expired at once: %v", e)
	}
	want := []Expired{{Holder: "alice", Assignment: Assignment{Addresses: a}}}
	if diff := cmp.Diff(want, p.Expire(t0.Add(time.Minute)), comparePrefix); diff != "" {
		t.Error(diff)
	}
	p.Release("bob")
	p.Release("nobody")
	if e := p.Expire(t0.Add(time.Hour)); len(e) != 0 || len(p.taken) != 0 {
		t.Errorf("left %v, %v", e, p.taken)
	}
}

// Whatever happens: no address is held twice, none overlaps what its holder avoids or the waypoint
// is in, each has a gateway, and a holder without conflicts keeps what it has.
func TestPoolInvariants(t *testing.T) {
	// Narrow enough for conflicts: the pool's own subnets, those beside, and large ones.
	own := NewPool("w").Gateways()
	networks := rapid.SampledFrom(append(prefixes("10.0.0.0/8", "172.16.0.0/13", "10.128.0.0/9", "fd00::/9", "192.0.2.0/24"),
		own[0].Masked(), own[1].Masked(), netip.PrefixFrom(own[0].Addr(), 23).Masked()))
	rapid.Check(t, func(t *rapid.T) {
		inUse := rapid.SliceOfN(networks, 0, 2).Draw(t, "in use")
		p := NewPool("w", inUse...)
		held := make(map[string][]netip.Prefix)
		now := t0
		until := make(map[string]time.Time)
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				h := fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "holder"))
				avoid := rapid.SliceOfN(networks, 0, 3).Draw(t, "avoid")
				end := now.Add(time.Duration(rapid.IntRange(0, 5).Draw(t, "lease")))
				a, err := p.Take(h, avoid, end)
				if err != nil {
					t.Fatalf("take: %v", err) // some IPv4 is always free here
				}
				for _, x := range a.Addresses {
					if overlaps(x, avoid) || overlaps(x, inUse) || !x.Addr().IsPrivate() {
						t.Fatalf("%v overlaps %v or %v", x, avoid, inUse)
					}
				}
				for _, x := range held[h] {
					if !overlaps(x, avoid) && !slices.Contains(a.Addresses, x) {
						t.Fatalf("%s had %v, has %v, avoids %v", h, held[h], a.Addresses, avoid)
					}
				}
				held[h], until[h] = a.Addresses, end
			},
			"release": func(t *rapid.T) {
				h := fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "holder"))
				p.Release(h)
				delete(held, h)
			},
			"expire": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "time")))
				for _, e := range p.Expire(now) {
					if !slices.Equal(held[e.Holder], e.Assignment.Addresses) || until[e.Holder].After(now) {
						t.Fatalf("expired %v, of %v until %v", e, held[e.Holder], until[e.Holder])
					}
					delete(held, e.Holder)
				}
				for h := range held {
					if !until[h].After(now) {
						t.Fatalf("%s holds on", h)
					}
				}
			},
			"": func(t *rapid.T) {
				seen := make(map[netip.Addr]bool)
				gateways := p.Gateways()
				for _, g := range gateways {
					seen[g.Addr()] = true
				}
				for h, list := range held {
					for _, x := range list {
						if seen[x.Addr()] {
							t.Fatalf("%v of %s is taken", x, h)
						}
						seen[x.Addr()] = true
						if !slices.Contains(gateways, gateway(x.Masked())) {
							t.Fatalf("%v has no gateway among %v", x, gateways)
						}
					}
				}
			},
		})
	})
}
