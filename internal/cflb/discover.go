package cflb

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// ProbeFunc sends a probe whose time to live ends at the given distance, from 1, and returns the address of the router
// or destination that answers. choices has the next hop of each router before it. An invalid address means that none
// answered. last reports that the destination has answered.
type ProbeFunc func(choices []int, distance int) (from netip.Addr, last bool, err error)

// Edge is one next hop of a router.
type Edge struct {
	From, To netip.Addr // invalid: From is the source, or a router does not answer
	Distance int        // of To, from 1
	Next     int        // index of the next hop
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
)

// ProbeLimit bounds the probes of a discovery.
const ProbeLimit = 4096

// ErrProbes means that a discovery took too many probes.
var ErrProbes = errors.New("too many probes")

// Discover finds the routers and their next hops between the source and a destination (algorithm 5.3). For each
// router it tries the next hops in ascending order, until one comes again: a router with n next hops takes n + 1
// probes. It never probes behind a router twice.
//
// The algorithm adds B^ttl to the path selector for each probe. That holds only for probes of one initial time to
// live, as positions depend on the received one. Therefore the probe function gets the choices, and encodes them for
// each probe.
func Discover(radix, maxDistance int, probe ProbeFunc) (*Network, error) {
	d := &discovery{radix: radix, max: maxDistance, probe: probe, seen: map[netip.Addr]bool{}, net: &Network{}}
	return d.net, d.from(netip.Addr{}, nil, nil, 0)
}

type discovery struct {
	radix, max int
	probe      ProbeFunc
	seen       map[netip.Addr]bool
	net        *Network
}

// from finds the next hops of a router that choices lead to, and all behind them. The source has one first hop.
// above has the routers before it, and silent is the number of distances before it that did not answer.
func (d *discovery) from(router netip.Addr, choices []int, above []netip.Addr, silent int) error {
	source := len(above) == 0
	if len(above) >= d.max || silent > mostSilent {
		return nil
	}
	var found []netip.Addr
	for n := 0; n <= d.radix; n++ {
		next := choices
		if !source {
			next = append(slices.Clone(choices), n%d.radix)
		}
		to, last, err := d.ask(next, len(next)+1)
		if err != nil {
			return err
		}
		if slices.Contains(found, to) {
			if to.IsValid() {
				return nil
			}
			continue // another silent one may be the same or not: try all
		}
		if n == d.radix {
			if to.IsValid() {
				d.suspect(router, ReasonRadix)
			}
			return nil
		}
		found = append(found, to)
		if err := d.found(Edge{From: router, To: to, Distance: len(next) + 1, Next: n}, next, above, last, silent); err != nil {
			return err
		}
		if source {
			return nil
		}
	}
	return nil
}

// mostSilent bounds the consecutive distances without answers: the destination may be behind a firewall.
const mostSilent = 3

// found records an edge, and explores behind it unless that was done before.
func (d *discovery) found(e Edge, choices []int, above []netip.Addr, last bool, silent int) error {
	d.net.Edges = append(d.net.Edges, e)
	switch {
	case !e.To.IsValid():
		return d.from(e.To, choices, append(slices.Clone(above), e.From), silent+1)
	case slices.Contains(above, e.To) || e.To == e.From:
		d.suspect(e.To, ReasonLoop)
		return nil
	case last || d.seen[e.To]:
		return nil
	}
	d.seen[e.To] = true
	return d.from(e.To, choices, append(slices.Clone(above), e.From), 0)
}

// ask probes, and once more if nothing answers: routers limit their answers.
func (d *discovery) ask(choices []int, distance int) (from netip.Addr, last bool, err error) {
	for range 2 {
		if d.net.Probes++; d.net.Probes > ProbeLimit {
			return from, false, fmt.Errorf("%w: %d did not suffice", ErrProbes, ProbeLimit)
		}
		from, last, err = d.probe(choices, distance)
		if err != nil || from.IsValid() {
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
	var path []Choice
	for i, n := range choices {
		path = append(path, Choice{TTL: uint8(distance - i), Next: n})
	}
	return s.Encode(path, u)
}

// EncodeFlow returns the choices of a flow whose packets begin with an initial time to live, as needed by Encode,
// Alias and SourcePorts. choices has the next hop of each router, from the first on.
func EncodeFlow(choices []int, initial uint8) []Choice {
	var path []Choice
	for i, n := range choices {
		path = append(path, Choice{TTL: initial - uint8(i), Next: n})
	}
	return path
}
