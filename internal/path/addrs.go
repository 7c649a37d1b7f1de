package path

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// outOfOrder bounds how long the report of a subflow's end may be delayed, so that it comes after the report of a
// later change of addresses.
const outOfOrder = verdictDelay

// hostAddrs holds this host's addresses and tells which of them belong to tunnels. It also knows on which network the
// host is.
type hostAddrs struct {
	network uint32                   // counts how often the host left or joined a network
	at      []netip.Addr             // what identifies the network that the host is on; empty: it is on none
	last    []netip.Addr             // the same, but not empty after the host left its network
	routed  bool                     // a LocalAddrs had a Network
	addrs   []netip.Addr             // sorted; nil: not known yet
	newer   []netip.Addr             // not in addrs, but subflows start from them, so addrs was asked for
	came    map[netip.Addr]time.Time // when each of addrs came; without those of the first LocalAddrs
	tunnels map[netip.Addr]bool      // addresses of tunnels that exist or are on offer
	behind  []netip.Prefix           // networks behind this host, from which connections may come too
	metered []netip.Addr             // on metered interfaces
}

// addrsChange describes what a LocalAddrs has changed.
type addrsChange struct {
	any bool // anything changed
	// switched is set if the host left or joined a network, perhaps the one that it was on before.
	switched bool
	// moved is set if the host is on another network than before. A host without a network has not moved yet, because
	// it may come back.
	moved bool
}

// set replaces the addresses and returns what has changed.
func (h *hostAddrs) set(ev LocalAddrs, now time.Time) (change addrsChange) {
	for _, a := range ev.Tunnels {
		h.tunnels[a] = true
	}
	first := h.addrs == nil
	at := h.identify(ev)
	change.switched = first || !slices.Equal(h.at, at)
	change.moved = len(at) > 0 && !slices.Equal(h.last, at)
	same := slices.Equal(h.behind, ev.Behind) && slices.Equal(h.metered, ev.Metered)
	h.behind, h.metered = ev.Behind, ev.Metered
	addrs := append(make([]netip.Addr, 0, len(ev.Addrs)), ev.Addrs...) // not nil, even if empty
	slices.SortFunc(addrs, netip.Addr.Compare)
	if !first && !change.switched && len(h.newer) == 0 && slices.Equal(h.addrs, addrs) && same {
		return change
	}
	change.any = true
	for _, a := range addrs {
		if !h.has(a) {
			h.came[a] = now
		}
	}
	maps.DeleteFunc(h.came, func(a netip.Addr, _ time.Time) bool { return !slices.Contains(addrs, a) })
	h.addrs, h.newer = addrs, nil
	if change.switched {
		h.network++
	}
	if h.at = at; len(at) > 0 {
		h.last = at
	}
	return change
}

// identify returns addresses that identify the network that the host is on, or none if it is on no network. Without any
// LocalAddrs.Network until now, these are the host's own addresses.
func (h *hostAddrs) identify(ev LocalAddrs) (network []netip.Addr) {
	h.routed = h.routed || len(ev.Network) > 0
	if h.routed {
		return ev.Network
	}
	for _, a := range ev.Addrs {
		if h.tunnels[a] || a.IsLoopback() || a.IsLinkLocalUnicast() {
			continue
		}
		network = append(network, blockOf(a, 32, 64).Addr()) // temporary addresses of IPv6 come and go
	}
	slices.SortFunc(network, netip.Addr.Compare)
	return slices.Compact(network)
}

// cameNow reports whether an address of this host has just come.
func (h *hostAddrs) cameNow(a netip.Addr, now time.Time) bool {
	came, ok := h.came[a]
	return ok && came.Equal(now)
}

// has reports whether an address is this host's. While the addresses are not known, every address is.
func (h *hostAddrs) has(a netip.Addr) bool {
	return h.addrs == nil || slices.Contains(h.addrs, a) || slices.Contains(h.newer, a)
}

// owns reports whether connections that this host manages may come from an address.
func (h *hostAddrs) owns(a netip.Addr) bool { return h.has(a) || h.isBehind(a) }

// isBehind reports whether an address belongs to a host behind this one.
func (h *hostAddrs) isBehind(a netip.Addr) bool {
	return slices.ContainsFunc(h.behind, func(p netip.Prefix) bool { return p.Contains(a) }) && !slices.Contains(h.addrs, a)
}

// hasSource reports whether this host still has the subflow's source address.
func (h *hostAddrs) hasSource(s *subflow) bool {
	return !s.local.Addr().IsValid() || h.owns(s.local.Addr())
}

// perhapsLacked reports whether an established subflow may have ended while this host lacked its source address. That
// is so if the address is gone, or came back within outOfOrder before the end was reported.
func (h *hostAddrs) perhapsLacked(s *subflow, now time.Time) bool {
	came := h.came[s.local.Addr()]
	return !h.hasSource(s) || came.After(s.since.Add(-s.took)) && now.Sub(came) < outOfOrder
}

// source returns the source address for new subflows: the connection's own address while this host
// has it, otherwise zero, which leaves the choice to routing. ok is false if the host has no
// suitable address.
func (h *hostAddrs) source(c *conn) (from netip.Addr, ok bool) {
	if h.owns(c.local.Addr()) && !h.isBehind(c.local.Addr()) {
		return c.local.Addr(), true
	}
	return from, slices.ContainsFunc(h.addrs, func(a netip.Addr) bool {
		return a.Is4() == c.server.Addr().Is4() && !h.tunnels[a]
	})
}

// startsFrom records a source address that the kernel reports. It reports whether the host's addresses have to be
// read again. Reports about subflows and reports about addresses do not come in order, so an unknown address may be
// newer than the last LocalAddrs, or already gone. It counts as this host's until the next LocalAddrs.
func (h *hostAddrs) startsFrom(local netip.AddrPort) (unknown bool) {
	a := local.Addr()
	if !a.IsValid() || h.owns(a) {
		return false
	}
	h.newer = append(h.newer, a)
	return true
}

// forgetTunnels drops the addresses of tunnels that do not exist any more and are not on offer.
func (h *hostAddrs) forgetTunnels(onOffer []*offered) {
	for a := range h.tunnels {
		if !slices.Contains(h.addrs, a) && !slices.ContainsFunc(onOffer, func(o *offered) bool { return o.Local == a }) {
			delete(h.tunnels, a)
		}
	}
}
