package datacentre

import (
	"fmt"

	"github.com/detour-collective/dcol/internal/paths/topology"
)

// Graph returns the topology as a network, and its servers. Servers with several links forward, too.
func (t *Topology) Graph() (n *topology.Network, servers []int) {
	n = topology.New()
	name := func(i int) string {
		if i < t.Hosts {
			return fmt.Sprint("server", i)
		}
		return fmt.Sprint("switch", i-t.Hosts)
	}
	for i := range t.Nodes {
		node := n.Node(name(i))
		if i < t.Hosts {
			servers = append(servers, node)
			if len(t.out[i]) == 1 {
				n.Leaf(node)
			}
		}
	}
	for _, l := range t.Links {
		n.Link(name(l.From), name(l.To), 1)
	}
	return n, servers
}
