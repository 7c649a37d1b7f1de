package vpn

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var (
	oslo   = [32]byte{1}
	ranges = prefixes("10.192.0.0/11", "fd64:636f:6c00::/48")
)

func prefixes(s ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range s {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

func addrs(list []netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for _, p := range list {
		out = append(out, p.Addr())
	}
	return out
}

// give chooses and takes.
func give(t *testing.T, p *Pool, holder string, declined ...netip.Prefix) []netip.Prefix {
	t.Helper()
	a, err := p.Choose(holder, nil, declined)
	if err != nil {
		t.Fatal(err)
	}
	p.Take(addrs(a)...)
	return a
}

var comparePrefix = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// What a key gives must never change between versions: a member keeps its addresses, and so its
// connections, when its waypoint is upgraded.
func TestAddressesFollowFromTheKey(t *testing.T) {
	p := NewPool(oslo, ranges, nil)
	got := map[string][]netip.Prefix{"gateways": p.Gateways(), "alice": give(t, p, "alice"), "bob": give(t, p, "bob")}
	want := map[string][]netip.Prefix{
		"gateways": prefixes("10.195.120.1/32", "fd64:636f:6c00:14fc::1/128"),
		"alice":    prefixes("10.195.124.72/21", "fd64:636f:6c00:14fc:13e7:a7b5:b8a4:7b24/64"),
		"bob":      prefixes("10.195.124.148/21", "fd64:636f:6c00:14fc:d6c9:e43e:4542:c4b3/64"),
	}
	if diff := cmp.Diff(want, got, comparePrefix); diff != "" {
		t.Error(diff)
	}
}

func TestWaypointsAreDistinct(t *testing.T) {
	const waypoints = 40
	fours, sixes := make(map[netip.Prefix]bool), make(map[netip.Prefix]bool)
	for i := range waypoints {
		g := NewPool([32]byte{byte(i)}, ranges, nil).Gateways()
		fours[g[0]], sixes[g[1]] = true, true
	}
	if len(fours) < waypoints-2 || len(sixes) < waypoints { // of 1024 and 65536
		t.Errorf("%d waypoints have %d IPv4 and %d IPv6 subnets", waypoints, len(fours), len(sixes))
	}
}

// complement lists prefixes that cover all of a block but one address.
func complement(block netip.Prefix, but netip.Addr) (list []netip.Prefix) {
	for bits := but.BitLen(); bits > block.Bits(); bits-- {
		a := but.AsSlice()
		a[(bits-1)/8] ^= 0x80 >> ((bits - 1) % 8)
		sibling, _ := netip.AddrFromSlice(a)
		list = append(list, netip.PrefixFrom(sibling, bits).Masked())
	}
	return list
}

// A member that declines all addresses but the one that it would like to have does not get it.
func TestMembersCannotChoose(t *testing.T) {
	p := NewPool(oslo, ranges, nil)
	subnet := give(t, p, "alice")[0].Masked()
	got := 0
	const victims = 500
	for i := range victims {
		victim := netip.AddrFrom4([4]byte(fill(subnet, hash("victim", [32]byte{}, fmt.Sprint(i))).AsSlice()))
		a, err := p.Choose("mallory", nil, complement(ranges[0], victim))
		if err != nil {
			t.Fatal(err) // there is IPv6
		}
		if a[0].Addr() == victim {
			got++
		}
	}
	if got > victims*maxDeclined/1000 { // it is one of maxDeclined of 2045
		t.Errorf("mallory got %d of %d addresses that it chose", got, victims)
	}
	// Nor does one subnet declined lead to another.
	if a, err := p.Choose("mallory", nil, []netip.Prefix{subnet}); err != nil || len(a) != 1 || !a[0].Addr().Is6() {
		t.Errorf("without %v it gets %v, %v", subnet, a, err)
	}
	if a, err := p.Choose("mallory", nil, prefixes("0.0.0.0/0", "::/0")); !errors.Is(err, ErrNoAddress) {
		t.Errorf("without anything it gets %v, %v", a, err)
	}
}

// One who knows a waypoint's name and its own key, but not the waypoint's secret, cannot tell which
// address it would get.
func TestAddressesDependOnTheSecret(t *testing.T) {
	same := 0
	for i := range 100 {
		a := give(t, NewPool([32]byte{byte(i)}, prefixes("192.168.7.0/24"), nil), "mallory")
		b := give(t, NewPool([32]byte{byte(i), 1}, prefixes("192.168.7.0/24"), nil), "mallory")
		if a[0] == b[0] {
			same++
		}
	}
	if same > 5 { // of 253 addresses
		t.Errorf("%d of 100 addresses are the same with another secret", same)
	}
}

func TestNetworksInUseAtTheMember(t *testing.T) {
	p := NewPool(oslo, ranges, nil)
	first := give(t, p, "alice")
	network := netip.PrefixFrom(first[0].Addr(), 30).Masked()
	other, err := p.Choose("alice", first, []netip.Prefix{network})
	if err != nil || network.Contains(other[0].Addr()) || other[0].Masked() != first[0].Masked() || other[1] != first[1] {
		t.Errorf("avoiding %v gives %v, %v", network, other, err)
	}
	kept, err := p.Choose("alice", first, prefixes("192.168.0.0/16"))
	if err != nil || !slices.Equal(kept, first) {
		t.Errorf("nothing is in the way, and alice has %v instead of %v, %v", kept, first, err)
	}
}

func TestNetworksInUseAtTheWaypoint(t *testing.T) {
	usual := give(t, NewPool(oslo, ranges, nil), "alice")
	p := NewPool(oslo, ranges, nil)
	had := give(t, p, "alice")

	// A network in the middle of the subnet: another subnet is given from. Who has an address
	// beside it keeps it.
	beside := prefixes("10.192.0.0/30")[0]
	for beside = range among(usual[0].Masked()) {
		if !beside.Contains(had[0].Addr()) {
			break
		}
	}
	p.Avoid([]netip.Prefix{beside})
	if g := p.Gateways(); g[0].Overlaps(usual[0].Masked()) || p.Conflicts(had[0].Addr()) {
		t.Errorf("with %v in use: gateways %v, conflict of %v: %v", beside, g, had[0], p.Conflicts(had[0].Addr()))
	}
	if kept, err := p.Choose("alice", had, nil); err != nil || !slices.Equal(kept, had) {
		t.Errorf("alice had %v, has %v, %v", had, kept, err)
	}
	// Her own address.
	p.Avoid([]netip.Prefix{netip.PrefixFrom(had[0].Addr(), 30).Masked()})
	if moved, err := p.Choose("alice", had, nil); !p.Conflicts(had[0].Addr()) || err != nil || moved[0].Overlaps(usual[0].Masked()) || moved[1] != had[1] {
		t.Errorf("alice's %v is in use, and she has %v, %v", had, moved, err)
	}
	// A single address is left out: that another waypoint grants this host moves nobody.
	single := netip.PrefixFrom(usual[0].Addr(), 32)
	p = NewPool(oslo, ranges, []netip.Prefix{single})
	if a := give(t, p, "alice"); a[0].Masked() != usual[0].Masked() || a[0] == usual[0] {
		t.Errorf("with %v in use alice has %v", single, a)
	}
	// All of a family.
	p = NewPool(oslo, ranges, prefixes("10.0.0.0/8"))
	if a := give(t, p, "alice"); len(a) != 1 || a[0] != usual[1] || len(p.Gateways()) != 1 || !slices.Equal(p.Unusable(), ranges[:1]) {
		t.Errorf("without IPv4 alice has %v, the waypoint %v; unusable is %v", a, p.Gateways(), p.Unusable())
	}
}

// among yields the parts of /30 of a subnet.
func among(subnet netip.Prefix) func(func(netip.Prefix) bool) {
	return func(yield func(netip.Prefix) bool) {
		for a := subnet.Addr(); subnet.Contains(a); a = a.Next().Next().Next().Next() {
			if !yield(netip.PrefixFrom(a, 30)) {
				return
			}
		}
	}
}

func TestFullSubnet(t *testing.T) {
	p := NewPool(oslo, ranges, nil)
	const size = 1<<(32-bits4) - 3
	for i := range size {
		if a := give(t, p, fmt.Sprint(i)); len(a) != 2 {
			t.Fatalf("member %d of %d has %v", i, size, a)
		}
	}
	if a := give(t, p, "one more"); len(a) != 1 || !a[0].Addr().Is6() {
		t.Errorf("%d members: %v", size+1, a)
	}
}

// Whatever happens: no address is held twice, none is from outside the ranges or overlaps what its
// holder declines or the waypoint uses, and a holder without conflicts keeps what it has.
func TestPoolInvariants(t *testing.T) {
	// Narrow enough for conflicts.
	tight := prefixes("192.168.7.0/24", "fd64:636f:6c00::/48")
	networks := rapid.SampledFrom(prefixes("192.168.7.0/25", "192.168.7.128/25", "192.168.7.64/26", "192.168.7.9/32", "192.168.0.0/16",
		"fd64:636f:6c00::/49", "fd00::/9", "fd00::/8", "192.0.2.0/24"))
	rapid.Check(t, func(t *rapid.T) {
		inUse := rapid.SliceOfN(networks, 0, 2)
		used := inUse.Draw(t, "used")
		seed := [32]byte{rapid.Byte().Draw(t, "seed")}
		p := NewPool(seed, tight, used)
		held := make(map[string][]netip.Prefix)
		t.Repeat(map[string]func(*rapid.T){
			"give": func(t *rapid.T) {
				h := fmt.Sprint(rapid.IntRange(0, 30).Draw(t, "holder"))
				declined := rapid.SliceOfN(networks, 0, 3).Draw(t, "declined")
				a, err := p.Choose(h, held[h], declined)
				if err != nil {
					return
				}
				for _, x := range a {
					if contained(x.Addr(), declined) || contained(x.Addr(), used) || !contained(x.Addr(), tight) {
						t.Fatalf("%v overlaps %v or %v, or is outside", x, declined, used)
					}
				}
				for _, x := range held[h] {
					if !contained(x.Addr(), declined) && !contained(x.Addr(), used) && !slices.Contains(a, x) {
						t.Fatalf("%s had %v, has %v, declines %v", h, held[h], a, declined)
					}
				}
				p.Release(addrs(held[h])...)
				p.Take(addrs(a)...)
				held[h] = a
			},
			"release": func(t *rapid.T) {
				h := fmt.Sprint(rapid.IntRange(0, 30).Draw(t, "holder"))
				p.Release(addrs(held[h])...)
				delete(held, h)
			},
			"use": func(t *rapid.T) {
				used = inUse.Draw(t, "used")
				p.Avoid(used)
			},
			"": func(t *rapid.T) {
				seen := make(map[netip.Addr]bool)
				for _, g := range p.Gateways() {
					if contained(g.Addr(), used) || !contained(g.Addr(), tight) {
						t.Fatalf("the waypoint has %v itself, and uses %v", g, used)
					}
				}
				for h, list := range held {
					for _, x := range list {
						if seen[x.Addr()] {
							t.Fatalf("%v of %s is taken", x, h)
						}
						seen[x.Addr()] = true
						if p.Conflicts(x.Addr()) != contained(x.Addr(), used) {
							t.Fatalf("conflict of %v with %v: %v", x, used, p.Conflicts(x.Addr()))
						}
					}
				}
			},
		})
	})
}

func TestAccept(t *testing.T) {
	used := prefixes("192.168.1.0/24", "10.200.0.0/16", "10.208.7.9/32", "fd64:636f:6c00:7::/64")
	for _, tt := range []struct {
		name    string
		granted []netip.Prefix
		want    string // an error begins with !
	}{
		{"one of each family", prefixes("10.201.3.4/21", "fd64:636f:6c00:8::4/64"), "[10.201.3.4 fd64:636f:6c00:8::4]"},
		{"only IPv6", prefixes("fd64:636f:6c00:8::4/64"), "[fd64:636f:6c00:8::4]"},
		{"none", nil, "!has no address"},
		{"the client's own address", prefixes("192.168.1.2/32"), "!192.168.1.2, which is outside this host's tunnel_ranges (10.192.0.0/11, fd64:636f:6c00::/48)"},
		{"a public server", prefixes("8.8.8.8/32"), "!8.8.8.8, which is outside"},
		{"everything", prefixes("0.0.0.0/0"), "!outside"},
		{"loopback", prefixes("127.0.0.1/8", "fd64:636f:6c00:8::4/64"), "!outside"},
		{"a server in IPv6", prefixes("10.201.3.4/21", "2606:4700::1111/128"), "!outside"},
		{"other private addresses", prefixes("10.1.2.3/21"), "!outside"},
		{"an IPv4 address as an IPv6 one", prefixes("::ffff:10.201.3.4/128"), "!outside"},
		{"two of a family", prefixes("10.201.3.4/21", "10.201.3.5/21"), "!more than one address of a family"},
		{"the same twice", prefixes("10.201.3.4/21", "10.201.3.4/21"), "!more than one address of a family"},
		{"in a network in use", prefixes("10.200.3.4/21"), "!10.200.3.4 is in use on this host, which has or routes 10.200.0.0/16"},
		{"an address that the host has", prefixes("10.208.7.9/21"), "!10.208.7.9 is in use"},
		{"one of two in use", prefixes("10.200.3.4/21", "fd64:636f:6c00:8::4/64"), "[fd64:636f:6c00:8::4]"},
		{"both in use", prefixes("10.200.3.4/21", "fd64:636f:6c00:7::4/64"), "!is in use"},
		{"no prefix", []netip.Prefix{{}}, "!outside"},
	} {
		got, err := Accept(tt.granted, ranges, used)
		if words, bad := strings.CutPrefix(tt.want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), words) || got != nil {
				t.Errorf("%s: %v, %v; want an error with %q", tt.name, got, err, words)
			}
		} else if err != nil || fmt.Sprint(got) != tt.want {
			t.Errorf("%s: %v, %v; want %s", tt.name, got, err, tt.want)
		}
	}
}

// Whatever is granted: what is accepted was granted, and is nobody's on this host or elsewhere.
func TestAcceptInvariants(t *testing.T) {
	octet := rapid.SampledFrom([]byte{0, 1, 8, 10, 127, 192, 200, 223, 224, 255, 0xfd})
	addr := rapid.Custom(func(t *rapid.T) netip.Addr {
		if rapid.Bool().Draw(t, "v4") {
			return netip.AddrFrom4([4]byte(rapid.SliceOfN(octet, 4, 4).Draw(t, "octets")))
		}
		a := netip.MustParseAddr("fd64:636f:6c00::").As16()
		copy(a[rapid.IntRange(0, 15).Draw(t, "from"):], rapid.SliceOfN(octet, 0, 16).Draw(t, "octets"))
		return netip.AddrFrom16(a)
	})
	prefix := rapid.Custom(func(t *rapid.T) netip.Prefix {
		a := addr.Draw(t, "address")
		return netip.PrefixFrom(a, rapid.IntRange(0, a.BitLen()).Draw(t, "bits"))
	})
	rapid.Check(t, func(t *rapid.T) {
		granted := rapid.SliceOfN(prefix, 0, 8).Draw(t, "granted")
		used := rapid.SliceOfN(prefix, 0, 4).Draw(t, "used")
		accepted, err := Accept(granted, ranges, used)
		if (err == nil) != (len(accepted) > 0) || len(accepted) > 2 || len(accepted) == 2 && accepted[0].BitLen() == accepted[1].BitLen() {
			t.Fatalf("accepted %v, %v", accepted, err)
		}
		for _, a := range accepted {
			if !slices.Contains(addrs(granted), a) || contained(a, used) || !contained(a, ranges) || !a.IsPrivate() || a.Is4In6() {
				t.Fatalf("accepted %v of %v with %v in use", a, granted, used)
			}
		}
		for _, a := range accepted {
			if Conflict(a, used) != nil {
				t.Fatalf("what was accepted conflicts: %v", a)
			}
		}
	})
}
