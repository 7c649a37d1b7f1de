// Package egress decides which servers a waypoint forwards to. It is pure; only package waypoint with
// what is below it and checks of a configuration may import it.
package egress

import (
	"fmt"
	"net/netip"
	"slices"
)

// Reason is why a destination is denied.
type Reason uint8

// The reasons.
const (
	_ Reason = iota
	NoPort
	PortDenied
	OwnAddress
	Unspecified
	Loopback
	LinkLocal
	Private
	SharedAddress
	Multicast
	Broadcast
	Documentation
	Benchmarking
	Reserved
	Transition
	OperatorDenied
)

func (r Reason) String() string {
	return map[Reason]string{
		NoPort:         "no port",
		PortDenied:     "port denied",
		OwnAddress:     "an address of the waypoint itself",
		Unspecified:    "unspecified",
		Loopback:       "loopback",
		LinkLocal:      "link-local",
		Private:        "private",
		SharedAddress:  "shared address space of providers",
		Multicast:      "multicast",
		Broadcast:      "broadcast",
		Documentation:  "documentation",
		Benchmarking:   "benchmarking",
		Reserved:       "reserved",
		Transition:     "a wrapped IPv4 address",
		OperatorDenied: "denied by the operator",
	}[r]
}

// Denied is the error of Check.
type Denied struct {
	Server netip.AddrPort
	Reason Reason
	Prefix netip.Prefix // the entry that decided; invalid if it was not a prefix
}

func (d *Denied) Error() string {
	if d.Prefix.IsValid() {
		return fmt.Sprintf("%v is not forwarded to: %v (%v)", d.Server, d.Reason, d.Prefix)
	}
	return fmt.Sprintf("%v is not forwarded to: %v", d.Server, d.Reason)
}

// Policy is what a waypoint's operator allows. It does not change after New.
type Policy struct {
	entries []entry // the most specific first; of equals, the operator's denial, then his leave
	ports   map[uint16]bool
}

type entry struct {
	prefix netip.Prefix
	reason Reason // 0: allowed
}

// New makes the policy of the defaults, opened by allow and narrowed by deny: the most specific
// prefix decides. Some destinations stay denied whatever is allowed: loopback, multicast,
// broadcast, unspecified ones and the waypoint's own.
func New(allow, deny []netip.Prefix, denyPorts []uint16) (*Policy, error) {
	p := &Policy{ports: make(map[uint16]bool, len(denyPorts))}
	for _, prefix := range deny {
		p.entries = append(p.entries, entry{prefix.Masked(), OperatorDenied})
	}
	for _, prefix := range allow {
		prefix = prefix.Masked()
		for _, n := range never {
			if n.prefix.Overlaps(prefix) && prefix.Bits() >= n.prefix.Bits() {
				return nil, fmt.Errorf("allow %v: a waypoint never forwards to %v addresses (%v); take it out of the list", prefix, n.reason, n.prefix)
			}
		}
		p.entries = append(p.entries, entry{prefix, 0})
	}
	p.entries = append(p.entries, defaults...)
	slices.SortStableFunc(p.entries, func(a, b entry) int { return b.prefix.Bits() - a.prefix.Bits() })
	for _, port := range denyPorts {
		p.ports[port] = true
	}
	return p, nil
}

// Check tells whether a waypoint with these own addresses forwards to server; the error is a *Denied.
func (p *Policy) Check(server netip.AddrPort, own func(netip.Addr) bool) error {
	switch {
	case server.Port() == 0:
		return &Denied{Server: server, Reason: NoPort}
	case p.ports[server.Port()]:
		return &Denied{Server: server, Reason: PortDenied}
	}
	if e := p.decide(server.Addr(), own); e.reason != 0 {
		return &Denied{Server: server, Reason: e.reason, Prefix: e.prefix}
	}
	return nil
}

func (p *Policy) decide(addr netip.Addr, own func(netip.Addr) bool) entry {
	if own(addr) {
		return entry{reason: OwnAddress}
	}
	for _, e := range never {
		if e.prefix.Contains(addr) {
			return e
		}
	}
	if inner, ok := wrapped(addr); ok {
		if e := p.decide(inner, own); e.reason != 0 {
			return e
		}
	}
	for _, e := range p.entries {
		if e.prefix.Contains(addr) {
			return e
		}
	}
	return entry{reason: Reserved}
}

// wrapped is the IPv4 address inside an IPv6 address that a translator or tunnel on the way would
// send to: 6to4 (RFC 3056) and NAT64 (RFC 6052).
func wrapped(addr netip.Addr) (netip.Addr, bool) {
	b := addr.As16()
	switch {
	case sixToFour.Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	case nat64.Contains(addr):
		return netip.AddrFrom4([4]byte(b[12:16])), true
	}
	return netip.Addr{}, false
}
