package vpn

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Accept returns the granted addresses that a client uses: at most one of each family, from the client's own ranges,
// and none that overlaps a network in use on the client's host. An address is routed into the tunnel and becomes local,
// so anything else would let the waypoint take the host's own traffic. A grant that breaks these rules is refused as a
// whole. An address in use is left out, because the waypoint may not have known of it.
func Accept(granted, ranges, used []netip.Prefix) ([]netip.Addr, error) {
	var accepted []netip.Addr
	err := errors.New("the waypoint's grant has no address")
	for i, g := range granted {
		addr := g.Addr()
		if slices.ContainsFunc(granted[:i], func(o netip.Prefix) bool { return o.Addr().BitLen() == addr.BitLen() }) {
			return nil, fmt.Errorf("the waypoint assigned more than one address of a family (%s), but a tunnel may have only one of each", join(granted))
		}
		if !contained(addr, ranges) {
			return nil, fmt.Errorf("the waypoint assigned %v, which is outside this host's tunnel_ranges (%s): set the same ranges on both hosts", addr, join(ranges))
		}
		if conflict := Conflict(addr, used); conflict != nil {
			err = conflict
			continue
		}
		accepted = append(accepted, addr)
	}
	if len(accepted) == 0 {
		return nil, err
	}
	return accepted, nil
}

// Conflict returns an error if a tunnel's address overlaps a network in use on this host; nil if it does not.
func Conflict(a netip.Addr, used []netip.Prefix) error {
	for _, u := range used {
		if u.Contains(a) {
			return fmt.Errorf("the tunnel's address %v is in use on this host, which has or routes %v: another one is requested from the waypoint", a, u)
		}
	}
	return nil
}

func contained(a netip.Addr, list []netip.Prefix) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

func join(list []netip.Prefix) string {
	var words []string
	for _, p := range list {
		words = append(words, p.String())
	}
	return strings.Join(words, ", ")
}
