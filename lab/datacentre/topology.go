package datacentre

import "slices"

// Link leads one way. Its rate is in bit/s.
type Link struct {
	From, To int
	Rate     float64
}

// Topology is a network of hosts and switches, which are numbered together, hosts first.
type Topology struct {
	Hosts, Nodes int
	Links        []Link
	out          [][]int // links of each node
}

// Rate is the rate of a server's link, as published.
const Rate = 100e6

func newTopology(hosts int) *Topology {
	return &Topology{Hosts: hosts, Nodes: hosts, out: make([][]int, hosts)}
}

// add adds n switches, and returns the first one's number.
func (t *Topology) add(n int) int {
	t.Nodes += n
	t.out = append(t.out, make([][]int, n)...)
	return t.Nodes - n
}

// join adds a link in both directions.
func (t *Topology) join(a, b int, rate float64) {
	for _, l := range []Link{{a, b, rate}, {b, a, rate}} {
		t.out[l.From] = append(t.out[l.From], len(t.Links))
		t.Links = append(t.Links, l)
	}
}

// TwoInterfaces returns the network of a client, whose router has so many next hops towards a server with two interfaces: the
// last leads to the first interface, all others to the second. The interfaces are the bottlenecks. The lab has the same
// network (make bench-cflb).
func TwoInterfaces(hops int, rate float64) (t *Topology, client, server int) {
	const faster = 100
	t = newTopology(2)
	first, second := t.add(1), t.add(1)
	t.join(0, first, faster*rate)
	t.join(second, 1, rate)
	for range hops - 1 {
		t.join(first, t.via(second, faster*rate), faster*rate)
	}
	t.join(first, t.via(t.via(1, rate), faster*rate), faster*rate) // as many hops as the others
	return t, 0, 1
}

// via adds a node with a link to another.
func (t *Topology) via(to int, rate float64) int {
	node := t.add(1)
	t.join(node, to, rate)
	return node
}

// FatTree returns the network of switches with k ports, which is even (M. Al-Fares et al., SIGCOMM 2008): k³/4 hosts and
// 5k²/4 switches.
func FatTree(k int) *Topology {
	half := k / 2
	t := newTopology(k * half * half)
	edge, aggregation, core := t.add(k*half), t.add(k*half), t.add(half*half)
	for pod := range k {
		for i := range half {
			for j := range half {
				t.join((pod*half+i)*half+j, edge+pod*half+i, Rate)
				t.join(edge+pod*half+i, aggregation+pod*half+j, Rate)
				t.join(aggregation+pod*half+i, core+i*half+j, Rate)
			}
		}
	}
	return t
}

// VL2 returns the network of aggregation switches with a ports and intermediate switches with i ports (A. Greenberg et
// al., SIGCOMM 2009). Each of a·i/4 top-of-rack switches has so many servers and two uplinks. Links between switches are
// ten times as fast as those of servers.
func VL2(a, i, servers int) *Topology {
	const faster = 10
	racks := a * i / 4
	t := newTopology(racks * servers)
	rack, aggregation, intermediate := t.add(racks), t.add(i), t.add(a/2)
	for r := range racks {
		for s := range servers {
			t.join(r*servers+s, rack+r, Rate)
		}
		t.join(rack+r, aggregation+2*r%i, faster*Rate)
		t.join(rack+r, aggregation+(2*r+1)%i, faster*Rate)
	}
	for x := range i {
		for y := range a / 2 {
			t.join(aggregation+x, intermediate+y, faster*Rate)
		}
	}
	return t
}

// BCube returns the network of n^(k+1) servers with k+1 ports and switches with n ports (C. Guo et al., SIGCOMM 2009).
// Servers forward, too.
func BCube(n, k int) *Topology {
	servers := 1
	for range k + 1 {
		servers *= n
	}
	t := newTopology(servers)
	for level, step := 0, 1; level <= k; level, step = level+1, step*n {
		first := t.add(servers / n)
		for s := range servers {
			t.join(s, first+s/(step*n)*step+s%step, Rate)
		}
	}
	return t
}

// Paths returns shortest paths between two nodes as lists of links, in a fixed order and at most limit.
func (t *Topology) Paths(from, to, limit int) (all [][]int) {
	distance := t.distances(to)
	var walk func(at int, links []int)
	walk = func(at int, links []int) {
		if len(all) == limit {
			return
		}
		if at == to {
			all = append(all, slices.Clone(links))
			return
		}
		for _, l := range t.out[at] {
			if next := t.Links[l].To; distance[next] == distance[at]-1 {
				walk(next, append(links, l))
			}
		}
	}
	walk(from, nil)
	return all
}

// distances returns each node's hops to a node. All links lead both ways.
func (t *Topology) distances(to int) []int {
	all := make([]int, t.Nodes)
	for i := range all {
		all[i] = -1
	}
	all[to] = 0
	for queue := []int{to}; len(queue) > 0; queue = queue[1:] {
		for _, l := range t.out[queue[0]] {
			if next := t.Links[l].To; all[next] < 0 {
				all[next] = all[queue[0]] + 1
				queue = append(queue, next)
			}
		}
	}
	return all
}
