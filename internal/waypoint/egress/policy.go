// Package egress decides which servers a waypoint forwards to. It does no I/O.
package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Reason is the reason why a destination is denied.
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
	Platform
	OutsideAddress
	OutsideUnknown
	Neighbour
	RouterLink
	OperatorDenied
	MemberDenied
	MemberPort
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
		Transition:     "an embedded IPv4 address",
		Platform:       "a cloud provider's service for its own hosts",
		OutsideAddress: "the address at which others see the waypoint",
		OutsideUnknown: "it may be the waypoint's own router, because the waypoint does not know its public address yet",
		Neighbour:      "in a network of the waypoint",
		RouterLink:     "in a network of one of the first routers after the waypoint",
		OperatorDenied: "denied by the operator",
		MemberDenied:   "denied to you by the operator",
		MemberPort:     "the operator limits your ports",
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
		return fmt.Sprintf("%v is not forwarded to: %v (%v); %s", d.Server, d.Reason, d.Prefix, d.fix())
	}
	return fmt.Sprintf("%v is not forwarded to: %v; %s", d.Server, d.Reason, d.fix())
}

// fix returns a sentence on what the operator can do about a denial.
func (d *Denied) fix() string {
	inNever := func(e entry) bool { return e.prefix == d.Prefix }
	switch {
	case d.Reason == NoPort, d.Reason == OwnAddress, slices.ContainsFunc(never, inNever):
		return "no setting of the waypoint allows it"
	case d.Reason == PortDenied:
		return "its operator can allow the port ([waypoint] deny_ports)"
	case d.Reason == MemberDenied, d.Reason == MemberPort:
		return "its operator can allow it ([[waypoint.member]])"
	case d.Reason == OperatorDenied:
		return "its operator denies it ([waypoint] deny)"
	}
	return "its operator can allow it ([waypoint] allow)"
}

// ForNow reports whether an error of Check denies a server only until the waypoint knows its external address.
func ForNow(err error) bool {
	denied, ok := errors.AsType[*Denied](err)
	return ok && denied.Reason == OutsideUnknown
}

// Policy decides about servers, by an operator's configuration and by a host's surroundings. It is immutable.
type Policy struct {
	operator []entry // the most specific first; of equals, the denial
	ports    map[uint16]bool
	own      map[netip.Addr]bool
	near     []entry // see Surroundings.near
}

type entry struct {
	prefix netip.Prefix
	reason Reason // 0: allowed
}

// New returns a policy of the defaults, with the exceptions allow, deny and denyPorts. Of allow and deny, the most
// specific prefix decides, and deny among equal ones. A prefix in allow opens what a default denies if it is
// not wider than the default's prefix. Loopback, multicast, broadcast, unspecified addresses and the waypoint's
// own stay denied in any case. The policy has no surroundings yet: see Around.
func New(allow, deny []netip.Prefix, denyPorts []uint16) (*Policy, error) {
	p := &Policy{ports: make(map[uint16]bool, len(denyPorts))}
	for _, prefix := range deny {
		p.operator = append(p.operator, entry{prefix.Masked(), OperatorDenied})
	}
	for _, prefix := range allow {
		prefix = prefix.Masked()
		for _, n := range never {
			if n.prefix.Overlaps(prefix) && prefix.Bits() >= n.prefix.Bits() {
				return nil, fmt.Errorf("allow %v: a waypoint never forwards to %v addresses (%v); remove it from the list", prefix, n.reason, n.prefix)
			}
		}
		p.operator = append(p.operator, entry{prefix, 0})
	}
	slices.SortStableFunc(p.operator, longestFirst)
	for _, port := range denyPorts {
		p.ports[port] = true
	}
	return p, nil
}

func longestFirst(a, b entry) int { return b.prefix.Bits() - a.prefix.Bits() }

// Around returns the policy for a host with these surroundings. It denies the host's own addresses in any case.
// It denies its neighbours and its NATs' addresses like the other defaults: a prefix in allow opens them if it is
// not wider than theirs.
func (p *Policy) Around(s Surroundings) *Policy {
	around := &Policy{operator: p.operator, ports: p.ports, own: make(map[netip.Addr]bool, len(s.Own)), near: s.near()}
	for _, a := range s.Own {
		around.own[a] = true
	}
	return around
}

// Check returns nil if the waypoint forwards to server, and a *Denied if it does not.
func (p *Policy) Check(server netip.AddrPort) error {
	switch {
	case server.Port() == 0:
		return &Denied{Server: server, Reason: NoPort}
	case p.ports[server.Port()]:
		return &Denied{Server: server, Reason: PortDenied}
	}
	return p.check(server)
}

// CheckAddress returns a *Denied without a port if the policy denies all of an address's ports.
func (p *Policy) CheckAddress(a netip.Addr) error { return p.check(netip.AddrPortFrom(a, 0)) }

func (p *Policy) check(server netip.AddrPort) error {
	// Prefixes contain no address with a zone.
	if e := p.decide(server.Addr().WithZone("")); e.reason != 0 {
		return &Denied{Server: server, Reason: e.reason, Prefix: e.prefix}
	}
	return nil
}

func (p *Policy) decide(addr netip.Addr) entry {
	if p.own[addr] {
		return entry{reason: OwnAddress}
	}
	for _, e := range never {
		if e.prefix.Contains(addr) {
			return e
		}
	}
	if inner, ok := wrapped(addr); ok {
		if e := p.decide(inner); e.reason != 0 {
			return e
		}
	}
	usual, ok := longest(defaults, addr) // every valid address has one
	if !ok {
		return entry{reason: Unspecified}
	}
	if near, ok := longest(p.near, addr); ok && usual.reason == 0 {
		usual = near
	}
	said, ok := longest(p.operator, addr)
	if !ok || said.reason == 0 && said.prefix.Bits() < usual.prefix.Bits() {
		return usual
	}
	return said
}

// longest returns the first entry that contains the address. entries must have the most specific first.
func longest(entries []entry, addr netip.Addr) (e entry, ok bool) {
	i := slices.IndexFunc(entries, func(e entry) bool { return e.prefix.Contains(addr) })
	if i < 0 {
		return entry{}, false
	}
	return entries[i], true
}

// wrapped returns the IPv4 address inside an IPv6 address of 6to4 (RFC 3056) or NAT64 (RFC 6052). A translator
// or tunnel on the path would send to the IPv4 address.
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
