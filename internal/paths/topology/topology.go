// Package topology computes the load-balanced paths of a known network, and the CFLB constants that fit it (G. Detal,
// 2014, sections 5.2.2 and 5.6.3). It is pure.
//
//	topology.go     the network and its shortest paths
//	graph.go        the network as JSON
//	calibrate.go    the constants
package topology

import (
	"bufio"
	"container/heap"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Network is a graph of nodes and undirected links.
type Network struct {
	Names []string
	links [][]link // by node
	index map[string]int
	leafs map[int]bool
}

type link struct {
	to   int
	cost float64
}

// Limits of a network's size.
const (
	maxNodes = 20000
	maxLine  = 4096
)

// ErrFormat means that a text is not a list of links.
var ErrFormat = errors.New("want a line \"NODE NODE [COST]\" for each link")

// Read reads a list of links, one for each line: two names, and a cost, which may be missing and is then 1. This is the
// format of Rocketfuel's weights. Empty lines and lines that begin with # are ignored. A link may be listed in both
// directions. If the text begins with {, Read reads it as a Graph.
func Read(r io.Reader) (*Network, error) {
	text := bufio.NewReader(r)
	if first, err := text.Peek(1); err == nil && first[0] == '{' {
		g, err := ReadGraph(text)
		if err != nil {
			return nil, err
		}
		return g.Network(), nil
	}
	n := New()
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, maxLine)
	for number := 1; lines.Scan(); number++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		parts := strings.Fields(text)
		cost := 1.0
		var err error
		if len(parts) == 3 {
			cost, err = strconv.ParseFloat(parts[2], 64)
		}
		if len(parts) < 2 || len(parts) > 3 || err != nil || !(cost > 0) || math.IsInf(cost, 0) {
			return nil, fmt.Errorf("line %d: %w, with a cost above 0", number, ErrFormat)
		}
		if parts[0] == parts[1] {
			return nil, fmt.Errorf("line %d: both ends are %q", number, parts[0])
		}
		n.Link(parts[0], parts[1], cost)
		if len(n.Names) > maxNodes {
			return nil, fmt.Errorf("line %d: more than %d nodes", number, maxNodes)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read links: %w", err)
	}
	if len(n.Names) == 0 {
		return nil, fmt.Errorf("there are no links: %w", ErrFormat)
	}
	return n, nil
}

// New returns an empty network.
func New() *Network { return &Network{index: map[string]int{}, leafs: map[int]bool{}} }

// Leaf marks a node through which no path may pass.
func (n *Network) Leaf(i int) { n.leafs[i] = true }

// Leafs returns the nodes through which no path may pass, in order. It returns nil if there are none.
func (n *Network) Leafs() []int { return slices.Sorted(maps.Keys(n.leafs)) }

// Node returns the index of the node with a name. It adds the node if it does not exist.
func (n *Network) Node(name string) int {
	i, ok := n.index[name]
	if !ok {
		i = len(n.Names)
		n.index[name] = i
		n.Names, n.links = append(n.Names, name), append(n.links, nil)
	}
	return i
}

// Link adds a link, or changes its cost.
func (n *Network) Link(a, b string, cost float64) {
	i, j := n.Node(a), n.Node(b)
	n.set(i, j, cost)
	n.set(j, i, cost)
}

func (n *Network) set(from, to int, cost float64) {
	for k, l := range n.links[from] {
		if l.to == to {
			n.links[from][k].cost = cost
			return
		}
	}
	n.links[from] = append(n.links[from], link{to, cost})
}

// Links returns the number of links.
func (n *Network) Links() (all int) {
	for _, l := range n.links {
		all += len(l)
	}
	return all / 2
}

// Towards holds all shortest paths to one destination.
type Towards struct {
	Next  [][]int // the next hops of each node; empty if it has no path
	order []int   // nodes with a path, the nearest first
}

// To returns the shortest paths to a destination.
func (n *Network) To(destination int) *Towards {
	dist := make([]float64, len(n.Names))
	for i := range dist {
		dist[i] = math.Inf(1)
	}
	dist[destination] = 0
	t := &Towards{Next: make([][]int, len(n.Names))}
	done := make([]bool, len(n.Names))
	q := &queue{{destination, 0}}
	for q.Len() > 0 {
		at := heap.Pop(q).(link)
		if done[at.to] {
			continue
		}
		done[at.to] = true
		t.order = append(t.order, at.to)
		if n.leafs[at.to] && at.to != destination {
			continue
		}
		for _, l := range n.links[at.to] {
			if d := at.cost + l.cost; d < dist[l.to] {
				dist[l.to] = d
				heap.Push(q, link{l.to, d})
			}
		}
	}
	for _, v := range t.order {
		for _, l := range n.links[v] {
			if v != destination && (l.to == destination || !n.leafs[l.to]) && same(dist[l.to]+l.cost, dist[v]) {
				t.Next[v] = append(t.Next[v], l.to)
			}
		}
	}
	return t
}

// same reports whether two sums of costs are equal, apart from rounding.
func same(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(a, b) }

type queue []link

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].cost < q[j].cost }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(link)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}
