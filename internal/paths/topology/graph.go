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

// Graph is a network in the node-link form of JSON, which NetworkX and d3 read and write (networkx.node_link_data).
// Attributes that are not named here are skipped.
type Graph struct {
	Attributes GraphAttributes `json:"graph"`
	Nodes      []GraphNode     `json:"nodes"`
	Links      []GraphLink     `json:"links"`
}

// GraphAttributes has the CFLB constants of a network, apart from the secret.
type GraphAttributes struct {
	Radix  int    `json:"radix"`
	Cipher string `json:"cipher"`
	TTL    int    `json:"ttl"` // initial time to live of the hosts' packets
}

// GraphNode is a router or a host.
type GraphNode struct {
	Name      Name         `json:"id"`
	Host      bool         `json:"host"` // does not forward packets of others
	Addresses []netip.Addr `json:"addresses"`
}

// GraphLink is a link, which leads both ways. Several may join the same nodes.
type GraphLink struct {
	Source          Name         `json:"source"`
	Target          Name         `json:"target"`
	Weight          float64      `json:"weight"` // its cost; 0: 1
	SourceAddresses []netip.Addr `json:"source_addresses"`
	TargetAddresses []netip.Addr `json:"target_addresses"`
	Down            bool         `json:"down"` // is not used, as if it were not listed
}

// Name is the name of a node. JSON may have a number instead of a string.
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

// ErrGraph means that a graph is not usable.
var ErrGraph = errors.New("want a graph in node-link form: {\"nodes\": [{\"id\": ...}], \"links\": [{\"source\": ..., \"target\": ...}]}")

// ReadGraph reads a graph, without the links that are down. Its links may also be called edges, as in
// newer versions of NetworkX.
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

// Network returns the graph's nodes and links, the nodes in its order. Parallel links become one, of the least weight.
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
