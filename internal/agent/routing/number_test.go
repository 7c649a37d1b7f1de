package routing

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/bpf/balance"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

var prefix = netip.MustParsePrefix("10.9.0.0/16")

func hop(gateway string, change ...func(*netstate.NextHop)) netstate.NextHop {
	n := netstate.NextHop{Gateway: netip.MustParseAddr(gateway), Interface: 2, Weight: 1}
	for _, c := range change {
		c(&n)
	}
	return n
}

func dead(n *netstate.NextHop)  { n.Dead = true }
func heavy(n *netstate.NextHop) { n.Weight = 3 }

// TestNumber has the numbers of next hops, and the routes that are left to the kernel.
func TestNumber(t *testing.T) {
	for _, tc := range []struct {
		name  string
		hops  []netstate.NextHop
		radix int
		slots []uint8
		left  string
	}{
		{"in ascending order of addresses", []netstate.NextHop{hop("10.0.0.9"), hop("10.0.0.10"), hop("10.0.0.1")}, 4, []uint8{2, 0, 1}, ""},
		{"without the dead", []netstate.NextHop{hop("10.0.0.9"), hop("10.0.0.10", dead), hop("10.0.0.1")}, 4, []uint8{1, 0}, ""},
		{"one that works", []netstate.NextHop{hop("10.0.0.9"), hop("10.0.0.10", dead)}, 4, []uint8{0}, leftSingle},
		{"all dead", []netstate.NextHop{hop("10.0.0.9", dead), hop("10.0.0.10", dead)}, 4, nil, leftSingle},
		{"weights", []netstate.NextHop{hop("10.0.0.9", heavy), hop("10.0.0.10")}, 4, []uint8{0, 1}, leftWeights},
		{"equal weights", []netstate.NextHop{hop("10.0.0.9", heavy), hop("10.0.0.10", heavy)}, 4, []uint8{0, 1}, ""},
		{"weights of the dead", []netstate.NextHop{hop("10.0.0.8", dead), hop("10.0.0.9", heavy), hop("10.0.0.10", heavy)}, 4, []uint8{0, 1}, ""},
		{"a wrong radix", []netstate.NextHop{hop("10.0.0.1"), hop("10.0.0.2"), hop("10.0.0.3")}, 2, []uint8{0, 1, 2}, leftRadix},
	} {
		n := number(netstate.MultipathRoute{Prefix: prefix, NextHops: tc.hops}, tc.radix)
		if !slices.Equal(n.slots, tc.slots) || n.left != tc.left || len(n.NextHops) != len(tc.hops) {
			t.Errorf("%s: slots %v, left %q, want %v, %q", tc.name, n.slots, n.left, tc.slots, tc.left)
		}
		if given := programmed([]numbered{n}, nil); len(given) != 1 || (len(given[0].Slots) > 0) != (tc.left == "") {
			t.Errorf("%s: the program gets %v", tc.name, given)
		}
	}
	if n := number(netstate.MultipathRoute{Prefix: prefix, NextHops: []netstate.NextHop{hop("10.0.0.1"), hop("10.0.0.2")}, Resilient: true}, 4); n.left != leftResilient {
		t.Errorf("a resilient group: left %q", n.left)
	}
}

// TestWithin: routes with one next hop within others are given to the program without slots, as far as it has room.
func TestWithin(t *testing.T) {
	n := number(netstate.MultipathRoute{Prefix: prefix, NextHops: []netstate.NextHop{hop("10.0.0.1"), hop("10.0.0.2")}}, 4)
	inner := netip.MustParsePrefix("10.9.1.0/24")
	given := programmed([]numbered{n}, []netip.Prefix{inner})
	if len(given) != 2 || given[1].Prefix != inner || given[1].Slots != nil || given[0].Slots == nil {
		t.Errorf("the program gets %v", given)
	}
	if given = programmed([]numbered{n}, slices.Repeat([]netip.Prefix{inner}, balance.MaxRoutes)); len(given) != balance.MaxRoutes {
		t.Errorf("the program gets %d routes", len(given))
	}
}

// TestOrderOfRoutesDoesNotMatter has one numbering, however a routing daemon orders the next hops.
func TestOrderOfRoutesDoesNotMatter(t *testing.T) {
	hops := []netstate.NextHop{hop("10.0.0.3"), hop("10.0.0.1"), hop("10.0.0.2")}
	first := number(netstate.MultipathRoute{Prefix: prefix, NextHops: hops}, 4)
	slices.Reverse(hops)
	second := number(netstate.MultipathRoute{Prefix: prefix, NextHops: hops}, 4)
	if !slices.Equal(first.NextHops, second.NextHops) {
		t.Errorf("numbers %v and %v", first.NextHops, second.NextHops)
	}
}

func TestRadixIsAProblem(t *testing.T) {
	n := number(netstate.MultipathRoute{Prefix: prefix, NextHops: []netstate.NextHop{hop("10.0.0.1"), hop("10.0.0.2"), hop("10.0.0.3")}}, 2)
	if all := problemsOf([]numbered{n}, 2); len(all) != 1 || !strings.Contains(all[0], "3 next hops, more than the radix 2") {
		t.Errorf("problems %q", all)
	}
}
