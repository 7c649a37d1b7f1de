package testbed

import (
	"fmt"
	"math"

	"github.com/vishvananda/netlink"
)

// equal returns the other interfaces through which a host reaches a link's network as cheaply as by via. An interface
// qualifies if its peer is on a shortest path.
func (p plan) equal(h, near int, dist []int, via int) (others []int) {
	for i, iface := range p.hosts[h].ifaces {
		l := p.links[iface.link]
		peer := l.a + l.b - h
		if i == via || !p.hosts[peer].Forward && peer != near {
			continue
		}
		behind, _ := p.shortest(peer)
		if behind[near] != math.MaxInt && behind[near]+l.cost() == dist[near] {
			others = append(others, i)
		}
	}
	return others
}

// balanceSysctls make a host choose among next hops by a flow's addresses and ports. The seed depends on the host's
// position, because routers with the same seed would make the same choices.
func balanceSysctls(position int) [][2]string {
	const spread = 2654435761 // odd and large, so that seeds differ in all their bytes
	return [][2]string{
		{"net.ipv4.fib_multipath_hash_policy", "1"},
		{"net.ipv6.fib_multipath_hash_policy", "1"},
		{"net.ipv4.fib_multipath_hash_seed", fmt.Sprint(uint32(position+1) * spread)},
		// Linux would send an error from the address of the interface by which it leaves, and the balanced route back
		// decides that. Routers of other makers use the address at which the probe arrived.
		{"net.ipv4.icmp_errors_use_inbound_ifaddr", "1"},
		// Linux answers a sender six times at once, then once a second. Hardware routers answer more often.
		{"net.ipv4.icmp_ratelimit", "0"},
		{"net.ipv6.icmp.ratelimit", "0"},
	}
}

// multipath makes a route use several interfaces.
func multipath(route *netlink.Route, via []ifacePlan) error {
	six := route.Dst.IP.To4() == nil
	route.LinkIndex, route.Gw = 0, nil
	for _, iface := range via {
		link, err := findLink(iface.name)
		if err != nil {
			return err
		}
		peer := iface.peer4
		if six {
			peer = iface.peer6
		}
		route.MultiPath = append(route.MultiPath, &netlink.NexthopInfo{LinkIndex: link.Attrs().Index, Gw: peer.AsSlice()})
	}
	return nil
}
