package known

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/cflb"
)

// Flow is a flow of packets in one direction.
type Flow struct {
	Source, Destination netip.AddrPort
	Protocol            uint8
}

func (f Flow) reversed() Flow { return Flow{f.Destination, f.Source, f.Protocol} }

// Route is the path of a flow.
type Route struct {
	Nodes []string // from source to destination
	Links []int    // numbers of the links; each direction has its own
}

// Path returns the path of a flow, whether its ports were chosen or not.
func (n *Network) Path(f Flow) (Route, error) {
	w, err := n.walker(f)
	if err != nil {
		return Route{}, err
	}
	links, err := w.walk(f.Source.Port(), f.Destination.Port())
	if err != nil {
		return Route{}, err
	}
	return w.route(links), nil
}

// Way is a path to a destination with one back, and the source ports that lead along both.
type Way struct {
	There, Back Route
	Ports       []uint16
}

// Ways returns all pairs of paths that a flow takes with one of the given source ports, in the order of their first ports.
func (n *Network) Ways(f Flow, ports []uint16) ([]Way, error) {
	there, err := n.walker(f)
	if err != nil {
		return nil, err
	}
	back, err := n.walker(f.reversed())
	if err != nil {
		return nil, err
	}
	var all []Way
	index := map[string]int{}
	var key strings.Builder
	for _, port := range ports {
		out, err := there.walk(port, f.Destination.Port())
		if err != nil {
			return nil, err
		}
		in, err := back.walk(f.Destination.Port(), port)
		if err != nil {
			return nil, err
		}
		key.Reset()
		for _, l := range slices.Concat(out, in) {
			fmt.Fprintf(&key, "%d ", l)
		}
		i, ok := index[key.String()]
		if !ok {
			i = len(all)
			index[key.String()] = i
			all = append(all, Way{There: there.route(out), Back: back.route(in)})
		}
		all[i].Ports = append(all[i].Ports, port)
	}
	return all, nil
}

// walker follows flows that differ in their ports.
type walker struct {
	n        *Network
	from, to int
	courses  *courses
	u        cflb.Uncontrolled
	ids      map[int]uint32 // of the routers that choose
	links    []int
}

func (n *Network) walker(f Flow) (*walker, error) {
	src, dst := f.Source.Addr(), f.Destination.Addr()
	if src.BitLen() != dst.BitLen() {
		return nil, fmt.Errorf("%w: %v and %v", ErrFamily, src, dst)
	}
	w := &walker{n: n, ids: map[int]uint32{}, u: cflb.Flow(src, dst, f.Protocol)}
	var known bool
	if w.from, known = n.at[src]; !known {
		return nil, fmt.Errorf("%w: %v", ErrUnknown, src)
	}
	if w.to, known = n.at[dst]; !known {
		return nil, fmt.Errorf("%w: %v", ErrUnknown, dst)
	}
	w.courses = n.to(w.to, dst.BitLen())
	if first := w.courses.next[w.from]; len(first) > 1 {
		return nil, fmt.Errorf("%w of %v: %s has %d links towards %v, of which it chooses itself; use the address of one of them",
			ErrNoPath, src, n.names[w.from], len(first), dst)
	}
	return w, nil
}

// walk returns the links that a flow with these ports takes.
func (w *walker) walk(source, destination uint16) ([]int, error) {
	w.links = w.links[:0]
	at, ttl := w.from, w.n.ttl
	for at != w.to {
		next := w.courses.next[at]
		if len(next) == 0 {
			return nil, fmt.Errorf("%w from %s to %s", ErrNoPath, w.n.names[at], w.n.names[w.to])
		}
		hop := next[0]
		if len(next) > 1 {
			if err := w.courses.errs[at]; err != nil {
				return nil, err
			}
			r := cflb.Router{Scheme: w.n.scheme, ID: w.id(at)}
			hop = next[r.Next(cflb.OfPorts(source, destination), w.u, ttl, len(next))]
		}
		w.links = append(w.links, hop.id)
		if at != w.from {
			ttl--
		}
		if at = hop.to; at != w.to && ttl == 0 {
			return nil, fmt.Errorf("%w from %s to %s of %d hops", ErrNoPath, w.n.names[w.from], w.n.names[w.to], w.n.ttl)
		}
	}
	return w.links, nil
}

func (w *walker) id(node int) uint32 {
	id, ok := w.ids[node]
	if !ok {
		id = cflb.RouterID(w.n.names[node])
		w.ids[node] = id
	}
	return id
}

func (w *walker) route(links []int) Route {
	r := Route{Nodes: []string{w.n.names[w.from]}, Links: slices.Clone(links)}
	at := w.from
	for _, l := range links {
		i := slices.IndexFunc(w.courses.next[at], func(e end) bool { return e.id == l })
		at = w.courses.next[at][i].to
		r.Nodes = append(r.Nodes, w.n.names[at])
	}
	return r
}
