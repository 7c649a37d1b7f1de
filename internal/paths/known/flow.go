package known

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

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
	Nodes []string // from the source to the destination
	Links []int    // numbers of the links; the two directions of a link have different ones
}

// Path returns the path of a flow. The scheme need not have chosen its ports.
func (n *Network) Path(f Flow) (Route, error) {
	w, err := n.walker(f)
	if err != nil {
		return Route{}, err
	}
	links, _, err := w.walk(f.Source.Port(), f.Destination.Port(), n.ttl)
	if err != nil {
		return Route{}, err
	}
	return w.route(links), nil
}

// Way is a path to a destination and one back, with the source ports that lead along both.
type Way struct {
	There, Back Route
	Ports       []uint16
}

// Ways returns the ways that a flow takes with the given source ports, in the order of their first ports.
func (n *Network) Ways(f Flow, ports []uint16) ([]Way, error) {
	return n.WaysVia(Detour{Legs: []Flow{f}}, ports)
}

// Detour is a flow through waypoints. It has several legs, the first from the source. Waypoints translate addresses but
// keep the source port, so one source port decides the path in all legs. The source ports of the legs are ignored.
type Detour struct {
	Legs []Flow
	// Tunnelled is set if the flow reaches the source of the first leg through a tunnel. The tunnel's own path is not
	// part of the detour.
	Tunnelled bool
}

// WaysVia returns the ways that a detour takes with the given source ports, in the order of their first ports.
func (n *Network) WaysVia(d Detour, ports []uint16) ([]Way, error) {
	if len(d.Legs) == 0 {
		return nil, errors.New("a detour has no legs")
	}
	there, back := chain{ttl: n.ttl}, chain{ttl: n.ttl}
	if d.Tunnelled {
		there.ttl--
	}
	for _, f := range d.Legs {
		w, err := n.walker(f)
		if err != nil {
			return nil, err
		}
		there.add(w, f.Destination.Port())
	}
	for _, f := range slices.Backward(d.Legs) {
		w, err := n.walker(f.reversed())
		if err != nil {
			return nil, err
		}
		back.add(w, f.Destination.Port())
	}
	var all []Way
	index := map[string]int{}
	var key []byte
	for _, port := range ports {
		out, err := there.walk(port, false)
		if err != nil {
			return nil, err
		}
		in, err := back.walk(port, true)
		if err != nil {
			return nil, err
		}
		key = key[:0]
		for _, l := range slices.Concat(out, in) {
			key = binary.AppendUvarint(key, uint64(l))
		}
		i, ok := index[string(key)]
		if !ok {
			i = len(all)
			index[string(key)] = i
			all = append(all, Way{There: there.route(), Back: back.route()})
		}
		all[i].Ports = append(all[i].Ports, port)
	}
	return all, nil
}

// chain follows a flow along the legs of a detour, in one direction.
type chain struct {
	ttl   uint8 // initial time to live
	legs  []*walker
	ports []uint16 // of the other end of each leg, whose port is given
	links []int
}

func (c *chain) add(w *walker, port uint16) {
	c.legs, c.ports = append(c.legs, w), append(c.ports, port)
}

// walk returns the links of all legs. Waypoints forward packets as routers do.
func (c *chain) walk(port uint16, back bool) ([]int, error) {
	c.links = c.links[:0]
	ttl := c.ttl
	for i, w := range c.legs {
		if i > 0 {
			if ttl--; ttl == 0 {
				return nil, fmt.Errorf("%w: more hops than the time to live", ErrNoPath)
			}
		}
		from, to := port, c.ports[i]
		if back {
			from, to = to, from
		}
		links, left, err := w.walk(from, to, ttl)
		if err != nil {
			return nil, err
		}
		c.links, ttl = append(c.links, links...), left
	}
	return c.links, nil
}

// route returns the route that walk followed last.
func (c *chain) route() (r Route) {
	for i, w := range c.legs {
		leg := w.route(w.links)
		r.Links = append(r.Links, leg.Links...)
		if i > 0 {
			leg.Nodes = leg.Nodes[1:] // the waypoint, which is also the end of the leg before
		}
		r.Nodes = append(r.Nodes, leg.Nodes...)
	}
	return r
}

// walker follows flows between two addresses, which differ only in their ports.
type walker struct {
	n        *Network
	from, to int
	courses  *courses
	u        cflb.Uncontrolled
	ids      map[int]uint32 // ids of routers that choose, by node
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

// walk returns the links that a flow with these ports takes. ttl is the initial time to live of its packets, and left
// the time to live with which they arrive.
func (w *walker) walk(source, destination uint16, ttl uint8) (links []int, left uint8, err error) {
	w.links = w.links[:0]
	at, initial := w.from, ttl
	for at != w.to {
		next := w.courses.next[at]
		if len(next) == 0 {
			return nil, 0, fmt.Errorf("%w from %s to %s", ErrNoPath, w.n.names[at], w.n.names[w.to])
		}
		hop := next[0]
		if len(next) > 1 {
			if err := w.courses.errs[at]; err != nil {
				return nil, 0, err
			}
			r := cflb.Router{Scheme: w.n.scheme, ID: w.id(at)}
			hop = next[r.Next(cflb.OfPorts(source, destination), w.u, ttl, len(next))]
		}
		w.links = append(w.links, hop.id)
		if at != w.from {
			ttl--
		}
		if at = hop.to; at != w.to && ttl == 0 {
			return nil, 0, fmt.Errorf("%w from %s to %s of %d hops", ErrNoPath, w.n.names[w.from], w.n.names[w.to], initial)
		}
	}
	return w.links, ttl, nil
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
