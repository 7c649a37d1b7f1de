package known

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/paths/topology"
)

// Network is a network whose routers all choose next hops by one CFLB scheme. The nodes of its graph have the names by
// which routers are configured.
type Network struct {
	scheme  *cflb.Scheme
	ttl     uint8 // initial time to live of all hosts' packets
	graph   *topology.Network
	names   []string
	host    []bool
	links   [][]end                // of each node
	numbers map[linkKey]int        // of links, including links of earlier graphs
	has     map[int]bool           // existing links, by end.id
	at      map[netip.Addr]int     // nodes by address
	mu      sync.Mutex             // guards courses
	courses map[courseKey]*courses // by destination, computed when needed
}

// end is a link as one of its nodes sees it. Its id is twice the link's number, plus one at the other node.
type end struct {
	id, to    int
	weight    float64
	addresses []netip.Addr // of the other end
}

// linkKey identifies a link in all graphs of a network.
type linkKey struct {
	source, target topology.Name
	address        netip.Addr // its first address, if it has one
	parallel       int        // numbers links with the same values, from 1
}

type courseKey struct{ destination, bits int }

// courses holds the next hops of each node towards one destination, in the order in which the node numbers them.
type courses struct {
	next [][]end
	errs []error // why the order of a node's next hops is not known
}

// Errors for flows whose path cannot be computed.
var (
	ErrUnknown = errors.New("the graph has no such address")
	ErrNoPath  = errors.New("there is no path")
	ErrFamily  = errors.New("source and destination are not of one IP version")
	ErrRadix   = errors.New("more next hops than the radix")
)

// maxCourses bounds the destinations whose courses are remembered.
const maxCourses = 1024

// defaultTTL is Linux's default.
const defaultTTL = 64

// New returns the network of a graph. If a host's link has addresses, packets to them take that link.
func New(g *topology.Graph, s *cflb.Scheme) (*Network, error) {
	return build(g, s, map[linkKey]int{})
}

// Renewed returns the network of a changed graph. Links that are in both graphs keep their numbers.
func (n *Network) Renewed(g *topology.Graph, s *cflb.Scheme) (*Network, error) {
	return build(g, s, maps.Clone(n.numbers))
}

func build(g *topology.Graph, s *cflb.Scheme, numbers map[linkKey]int) (*Network, error) {
	ttl := cmp.Or(g.Attributes.TTL, defaultTTL)
	if ttl < 1 || ttl > 255 {
		return nil, fmt.Errorf("the graph's ttl must be from 1 to 255, not %d", ttl)
	}
	n := &Network{
		scheme: s, ttl: uint8(ttl), graph: g.Network(), numbers: numbers, at: map[netip.Addr]int{}, courses: map[courseKey]*courses{},
		has: map[int]bool{},
	}
	for _, node := range g.Nodes {
		n.names, n.host, n.links = append(n.names, string(node.Name)), append(n.host, node.Host), append(n.links, nil)
		if err := n.name(n.graph.Node(string(node.Name)), node.Addresses); err != nil {
			return nil, err
		}
	}
	alike := map[linkKey]int{}
	for _, l := range g.Links {
		id := 2 * n.number(l, alike)
		n.has[id], n.has[id+1] = true, true
		a, b := n.graph.Node(string(l.Source)), n.graph.Node(string(l.Target))
		n.join(id, a, b, l.Weight, l.SourceAddresses, l.TargetAddresses)
		for _, side := range []struct {
			at, peer       int
			own, addresses []netip.Addr
		}{{a, b, l.SourceAddresses, l.TargetAddresses}, {b, a, l.TargetAddresses, l.SourceAddresses}} {
			node := side.at
			if n.host[side.at] && len(side.own) > 0 {
				node = n.iface(id, side.at, side.peer, l.Weight, side.own, side.addresses, side.at == b)
			}
			if err := n.name(node, side.own); err != nil {
				return nil, err
			}
		}
	}
	return n, nil
}

// number returns the number of a link. It assigns the next number to a new link.
func (n *Network) number(l topology.GraphLink, alike map[linkKey]int) int {
	key := linkKey{source: l.Source, target: l.Target}
	if all := slices.Concat(l.SourceAddresses, l.TargetAddresses); len(all) > 0 {
		key.address = all[0]
	}
	alike[key]++
	key.parallel = alike[key]
	number, ok := n.numbers[key]
	if !ok {
		number = len(n.numbers)
		n.numbers[key] = number
	}
	return number
}

func (n *Network) name(node int, addresses []netip.Addr) error {
	for _, a := range addresses {
		if other, taken := n.at[a]; taken && other != node && !a.IsLinkLocalUnicast() {
			return fmt.Errorf("the address %v belongs to %s and to %s", a, n.names[other], n.names[node])
		}
		n.at[a] = node
	}
	return nil
}

func (n *Network) join(id, a, b int, weight float64, atA, atB []netip.Addr) {
	n.links[a] = append(n.links[a], end{id, b, weight, atB})
	n.links[b] = append(n.links[b], end{id + 1, a, weight, atA})
}

// Has reports whether the link with this number in a Route still exists.
func (n *Network) Has(link int) bool { return n.has[link] }

// iface adds a node for a host's interface. The interface's link is its only one.
func (n *Network) iface(id, host, peer int, weight float64, own, others []netip.Addr, reversed bool) int {
	name := fmt.Sprintf("%s (%v)", n.names[host], own[0])
	node := n.graph.Node(name)
	n.graph.Link(name, n.names[peer], weight)
	n.graph.Leaf(node)
	n.names, n.host, n.links = append(n.names, n.names[host]), append(n.host, true), append(n.links, nil)
	if reversed {
		n.join(id, peer, node, weight, others, own)
	} else {
		n.join(id, node, peer, weight, own, others)
	}
	return node
}

// to returns the next hops of all nodes towards a destination.
func (n *Network) to(destination, bits int) *courses {
	n.mu.Lock()
	defer n.mu.Unlock()
	key := courseKey{destination, bits}
	if c := n.courses[key]; c != nil {
		return c
	}
	if len(n.courses) >= maxCourses {
		clear(n.courses)
	}
	t := n.graph.To(destination)
	c := &courses{make([][]end, len(n.names)), make([]error, len(n.names))}
	for v, nodes := range t.Next {
		for _, next := range nodes {
			c.next[v] = append(c.next[v], cheapest(n.links[v], next)...)
		}
		c.errs[v] = n.order(v, c.next[v], bits)
	}
	n.courses[key] = c
	return c
}

// cheapest returns the links to a node with the least weight.
func cheapest(links []end, to int) (best []end) {
	for _, l := range links {
		switch {
		case l.to != to || len(best) > 0 && l.weight > best[0].weight:
		case len(best) > 0 && l.weight == best[0].weight:
			best = append(best, l)
		default:
			best = []end{l}
		}
	}
	return best
}

// order sorts next hops by their gateways' addresses, because routers number them in that order.
func (n *Network) order(v int, next []end, bits int) error {
	if len(next) < 2 {
		return nil
	}
	if len(next) > n.scheme.Radix() && !n.host[v] {
		return fmt.Errorf("%s: %w: %d of %d", n.names[v], ErrRadix, len(next), n.scheme.Radix())
	}
	gateway := func(e end) netip.Addr {
		for _, a := range e.addresses {
			if a.BitLen() == bits {
				return a
			}
		}
		return netip.Addr{}
	}
	for _, e := range next {
		if !gateway(e).IsValid() {
			return fmt.Errorf("the link from %s to %s has no address at %s, which orders the next hops", n.names[v], n.names[e.to], n.names[e.to])
		}
	}
	slices.SortStableFunc(next, func(a, b end) int { return gateway(a).Compare(gateway(b)) })
	return nil
}
