package topology

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
)

// Graph is a network in the node-link form of JSON that NetworkX and d3 read and write (networkx.node_link_data). Other
// attributes than these are ignored.
type Graph struct {
	Attributes GraphAttributes `json:"graph"`
	Nodes      []GraphNode     `json:"nodes"`
	Links      []GraphLink     `json:"links"`
}

// GraphAttributes holds the CFLB constants of a network, except for the secret.
type GraphAttributes struct {
	Radix  int    `json:"radix"`
	Cipher string `json:"cipher"`
	TTL    int    `json:"ttl"` // initial time to live of the hosts' packets
}

// GraphNode is a router or a host.
type GraphNode struct {
	Name      Name         `json:"id"`
	Host      bool         `json:"host"` // it does not forward packets of others
	Addresses []netip.Addr `json:"addresses"`
}

// GraphLink is a link. It leads in both directions. Several links may connect the same nodes.
type GraphLink struct {
	Source          Name         `json:"source"`
	Target          Name         `json:"target"`
	Weight          float64      `json:"weight"` // its cost; 0 means 1
	SourceAddresses []netip.Addr `json:"source_addresses"`
	TargetAddresses []netip.Addr `json:"target_addresses"`
	Down            bool         `json:"down"` // it is ignored, as if it were not in the list
}

// Name is the name of a node. In JSON it may also be a number.
type Name string

// UnmarshalJSON implements json.Unmarshaler.
func (n *Name) UnmarshalJSON(b []byte) error {
	var number json.Number
	if err := json.Unmarshal(b, &number); err == nil && len(b) > 0 && b[0] != '"' {
		*n = Name(number)
		return nil
	}
	return json.Unmarshal(b, (*string)(n))
}

const (
	maxGraph = 64 << 20 // bytes
	maxLinks = 1 << 18
)

// ErrGraph means that a text is not a usable graph.
var ErrGraph = errors.New("want a graph in node-link form: {\"nodes\": [{\"id\": ...}], \"links\": [{\"source\": ..., \"target\": ...}]}")

// ReadGraph reads a graph, and drops links that are down. The list of links may also be called edges, as in newer
// versions of NetworkX.
func ReadGraph(r io.Reader) (*Graph, error) {
	var all struct {
		Graph
		Edges []GraphLink `json:"edges"`
	}
	limited := &io.LimitedReader{R: r, N: maxGraph + 1}
	err := json.NewDecoder(limited).Decode(&all)
	switch {
	case limited.N == 0:
		return nil, fmt.Errorf("%w of at most %d MiB", ErrGraph, maxGraph>>20)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrGraph, err)
	}
	g := &all.Graph
	g.Links = append(g.Links, all.Edges...)
	if err := g.check(); err != nil {
		return nil, err
	}
	g.Links = slices.DeleteFunc(g.Links, func(l GraphLink) bool { return l.Down })
	return g, nil
}

func (g *Graph) check() error {
	if len(g.Nodes) == 0 || len(g.Nodes) > maxNodes || len(g.Links) > maxLinks {
		return fmt.Errorf("%w with 1 to %d nodes and at most %d links, not %d and %d", ErrGraph, maxNodes, maxLinks, len(g.Nodes), len(g.Links))
	}
	known := map[Name]bool{}
	for _, n := range g.Nodes {
		if n.Name == "" || known[n.Name] {
			return fmt.Errorf("the node %q is listed twice or has no id", n.Name)
		}
		known[n.Name] = true
	}
	for i := range g.Links {
		l := &g.Links[i]
		if !known[l.Source] || !known[l.Target] || l.Source == l.Target {
			return fmt.Errorf("the link from %q to %q does not join two of the nodes", l.Source, l.Target)
		}
		if l.Weight == 0 {
			l.Weight = 1
		}
		if l.Weight < 0 || math.IsInf(l.Weight, 0) {
			return fmt.Errorf("the link from %q to %q has a weight of %v: it must be above 0", l.Source, l.Target, l.Weight)
		}
	}
	return nil
}

// Network returns the graph as a Network, with nodes in the same order. It joins parallel links into one with the least
// weight.
func (g *Graph) Network() *Network {
	n := New()
	least := map[[2]Name]float64{}
	for _, node := range g.Nodes {
		i := n.Node(string(node.Name))
		if node.Host {
			n.Leaf(i)
		}
	}
	for _, l := range g.Links {
		key := [2]Name{min(l.Source, l.Target), max(l.Source, l.Target)}
		if w, ok := least[key]; !ok || l.Weight < w {
			least[key] = l.Weight
			n.Link(string(l.Source), string(l.Target), l.Weight)
		}
	}
	return n
}
