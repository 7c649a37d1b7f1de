package testbed

import (
	"fmt"
	"math"

	"github.com/vishvananda/netlink"
)

// equal returns the other interfaces of a host through which a link's network is reached as cheaply as by the
// shortest path: those whose peer is on such a path.
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

// balanceSysctls have a host choose among next hops by addresses and ports. Without a seed of its own it would choose
// as all others do.
func balanceSysctls(position int) [][2]string {
	const spread = 2654435761 // any odd number: seeds differ in all their bytes
	return [][2]string{
		{"net.ipv4.fib_multipath_hash_policy", "1"},
		{"net.ipv6.fib_multipath_hash_policy", "1"},
		{"net.ipv4.fib_multipath_hash_seed", fmt.Sprint(uint32(position+1) * spread)},
		// Errors come from the address at which the probe arrived, as with other makers' routers. Otherwise their way
		// back would decide, and that is balanced, too.
		{"net.ipv4.icmp_errors_use_inbound_ifaddr", "1"},
		// Linux answers a sender six times at once, then once a second. Hardware routers answer more often.
		{"net.ipv4.icmp_ratelimit", "0"},
		{"net.ipv6.icmp.ratelimit", "0"},
	}
}

// multipath has a route use several interfaces.
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
