package routing

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/kernel/bpf/balance"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// Reasons to leave a route to the kernel.
const (
	leftWeights   = "weights"   // its next hops have different weights
	leftResilient = "resilient" // the kernel divides the flows by a table of its own
	leftRadix     = "radix"     // it has more next hops than the radix
	leftTooMany   = "too_many"  // it has more next hops than the program has room for
	leftSingle    = "single"    // only one next hop works
)

// numbered is a route whose next hops have numbers, in ascending order.
type numbered struct {
	netstate.MultipathRoute
	slots []uint8 // places among those that work, by number
	left  string  // why the kernel chooses alone; empty: it does not
}

// number gives a route's next hops their numbers: in ascending order of gateways, then of interfaces. So
// the numbers do not depend on the order in which a routing daemon adds next hops, and others who know the
// network compute the same numbers. Next hops that do not work have no number. Their flows move to the
// others, as in a network without them.
func number(r netstate.MultipathRoute, radix int) numbered {
	type place struct {
		hop  netstate.NextHop
		slot uint8
	}
	var working []place
	var dead []netstate.NextHop
	equal := true
	for _, hop := range r.NextHops {
		if hop.Dead {
			dead = append(dead, hop)
			continue
		}
		equal = equal && (len(working) == 0 || hop.Weight == working[0].hop.Weight)
		working = append(working, place{hop, uint8(min(len(working), 255))})
	}
	slices.SortStableFunc(working, func(a, b place) int {
		return cmp.Or(a.hop.Gateway.Compare(b.hop.Gateway), cmp.Compare(a.hop.Interface, b.hop.Interface))
	})
	n := numbered{MultipathRoute: r}
	n.NextHops = nil
	for _, p := range working {
		n.NextHops, n.slots = append(n.NextHops, p.hop), append(n.slots, p.slot)
	}
	n.NextHops = append(n.NextHops, dead...)
	switch {
	case r.Resilient:
		n.left = leftResilient
	case len(working) < 2:
		n.left = leftSingle
	case !equal:
		n.left = leftWeights
	case len(working) > balance.MaxHops:
		n.left = leftTooMany
	case len(working) > radix:
		n.left = leftRadix
	}
	return n
}

// programmed returns the routes for the eBPF program. Routes for which the program chooses have slots. Two
// kinds of routes have none: those that are left to the kernel, and those inside other routes that have a
// single next hop. They only keep the program from applying a shorter prefix to their packets. If there
// are too many of the second kind, some are left out. Then only the counts are too large, because the
// kernel has no choice there.
func programmed(all []numbered, within []netip.Prefix) (routes []balance.Route) {
	for _, n := range all {
		r := balance.Route{Prefix: n.Prefix}
		if n.left == "" {
			r.Slots = n.slots
		}
		routes = append(routes, r)
	}
	for _, p := range within[:min(len(within), max(0, balance.MaxRoutes-len(routes)))] {
		routes = append(routes, balance.Route{Prefix: p})
	}
	return routes
}

// chosen returns the number of routes that the program chooses for.
func chosen(all []numbered) (n int) {
	for _, r := range all {
		if r.left == "" {
			n++
		}
	}
	return n
}
