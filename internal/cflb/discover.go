package cflb

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Any stands for the choice of a router that has one next hop. It needs no digit of the path selector.
const Any = -1

// ProbeFunc sends a probe whose time to live ends at the given distance, from 1, and returns the address of the
// router or destination that answers. choices has the next hop of each router before it, or Any. An invalid address
// means that none answered. last reports that the destination has answered. The error is ErrCollision if the
// choices cannot be encoded.
type ProbeFunc func(choices []int, distance int) (from netip.Addr, last bool, err error)

// Edge is one next hop of a router.
type Edge struct {
	From, To netip.Addr // invalid: From is the source, or a router does not answer
	Distance int        // of To, from 1
	Next     int        // index of the next hop
	Last     bool       // To is the destination
}

// Network has the routers and edges that were found on the way to a destination.
type Network struct {
	Edges    []Edge
	Probes   int
	Silent   int // probes without answer
	Suspects []Suspect
}

// Suspect is a router that does not behave as the scheme expects.
type Suspect struct {
	Router netip.Addr
	Reason Reason
}

// Reason explains why a router is suspected.
type Reason string

// The reasons.
const (
	// ReasonRadix: a router had another next hop behind as many as the radix.
	ReasonRadix Reason = "more next hops than the radix"
	// ReasonLoop: a router was reached again from itself.
	ReasonLoop Reason = "loop"
	// ReasonShared: a router needs a digit of the path selector that a router before it uses.
	ReasonShared Reason = "shares a position of the path selector with a router before it, so further next hops may be missing"
	// ReasonSilent: there may be several next hops that do not answer, which cannot be told from one.
	ReasonSilent Reason = "next hops do not answer, and only behind the first one was probed"
)

// ProbeLimit bounds the probes of a discovery.
const ProbeLimit = 4096

// ErrProbes means that a discovery took too many probes.
var ErrProbes = errors.New("too many probes")

// Options are the choices of a discovery.
type Options struct {
	Radix       int
	MaxDistance int
	// Parallel tries all next hops below the radix. Routers with several links to one router need it, if that answers with
	// the same address on each.
	Parallel bool
}

// Discover finds the routers and their next hops between the source and a destination (algorithm 5.3). For each router
// it tries the next hops in ascending order, until one comes again: a router with n next hops takes n + 1 probes. It
// never probes behind a router twice.
//
// The algorithm adds B^ttl to the path selector for each probe. That is correct only if all probes have the same
// initial time to live, because positions depend on the received one. Therefore the probe function gets the choices,
// and encodes them for each probe. Routers with one next hop get no digit: on a path that is longer than the path
// selector, they would take the digits of routers that choose.
func Discover(o Options, probe ProbeFunc) (*Network, error) {
	d := &discovery{Options: o, probe: probe, seen: map[netip.Addr]bool{}, net: &Network{}}
	return d.net, d.start()
}

type discovery struct {
	Options
	probe ProbeFunc
	seen  map[netip.Addr]bool
	net   *Network
}

// start finds the source's next hop, and all behind it.
func (d *discovery) start() error {
	to, last, err := d.ask(nil, 1)
	if err != nil {
		return err
	}
	e := Edge{To: to, Distance: 1, Last: last}
	d.net.Edges = append(d.net.Edges, e)
	return d.behind(e, nil, nil, 0)
}

// mostSilent bounds the consecutive distances without answers: the destination may be behind a firewall.
const mostSilent = 3

// from finds the next hops of a router that choices lead to, and all behind them. above has the routers before it, and
// silent is the number of distances before it that did not answer.
func (d *discovery) from(router netip.Addr, choices []int, above []netip.Addr, silent int) error {
	if len(above) >= d.MaxDistance || silent > mostSilent {
		return nil
	}
	next, err := d.next(router, choices)
	d.net.Edges = append(d.net.Edges, next...)
	if err != nil {
		return err
	}
	for _, e := range next {
		choice := e.Next
		if len(next) == 1 && e.To.IsValid() {
			choice = Any
		}
		if err := d.behind(e, append(slices.Clone(choices), choice), above, silent); err != nil {
			return err
		}
	}
	return nil
}

// next finds the next hops of a router.
func (d *discovery) next(router netip.Addr, choices []int) (found []Edge, err error) {
	for n := 0; n <= d.Radix; n++ {
		next := append(slices.Clone(choices), n%d.Radix)
		to, last, err := d.ask(next, len(next)+1)
		switch {
		case errors.Is(err, ErrCollision):
			d.suspect(router, ReasonShared)
		case err != nil:
			return found, err
		case slices.ContainsFunc(found, func(e Edge) bool { return e.To == to }):
			if !to.IsValid() {
				d.suspect(router, ReasonSilent) // it may be the same or not: try all
			} else if !d.Parallel {
				return found, nil
			}
		case n < d.Radix:
			found = append(found, Edge{router, to, len(next) + 1, n, last})
		case to.IsValid():
			d.suspect(router, ReasonRadix)
		}
	}
	return found, nil
}

// behind explores behind an edge, unless that was done before.
func (d *discovery) behind(e Edge, choices []int, above []netip.Addr, silent int) error {
	above = append(slices.Clone(above), e.From)
	switch {
	case !e.To.IsValid():
		return d.from(e.To, choices, above, silent+1)
	case slices.Contains(above, e.To):
		d.suspect(e.To, ReasonLoop)
		return nil
	case e.Last || d.seen[e.To]:
		return nil
	}
	d.seen[e.To] = true
	return d.from(e.To, choices, above, 0)
}

// ask probes, and once more if nothing answers: routers limit their answers.
func (d *discovery) ask(choices []int, distance int) (from netip.Addr, last bool, err error) {
	for range 2 {
		if d.net.Probes == ProbeLimit {
			return from, false, fmt.Errorf("%w: %d did not suffice", ErrProbes, ProbeLimit)
		}
		from, last, err = d.probe(choices, distance)
		if errors.Is(err, ErrCollision) {
			return from, false, err
		}
		if d.net.Probes++; err != nil || from.IsValid() {
			return from, last, err
		}
		d.net.Silent++
	}
	return from, false, nil
}

func (d *discovery) suspect(router netip.Addr, why Reason) {
	s := Suspect{router, why}
	if !slices.Contains(d.net.Suspects, s) {
		d.net.Suspects = append(d.net.Suspects, s)
	}
}

// EncodeProbe returns the controlled fields of a probe whose time to live ends at a distance. The router at distance
// h, from 1, receives it with a time to live of distance - h + 1.
func (s *Scheme) EncodeProbe(choices []int, distance int, u Uncontrolled) (Number, error) {
	return s.Encode(EncodeFlow(choices, uint8(distance)), u)
}

// EncodeFlow returns the choices of a flow whose packets begin with an initial time to live, as needed by Encode,
// Alias and SourcePorts. choices has the next hop of each router, from the first on, or Any.
func EncodeFlow(choices []int, initial uint8) []Choice {
	var path []Choice
	for i, n := range choices {
		if n != Any {
			path = append(path, Choice{TTL: initial - uint8(i), Next: n})
		}
	}
	return path
}
