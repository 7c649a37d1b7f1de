package scenario

import (
	"slices"

	"github.com/detour-collective/dcol/lab/middlebox"
)

// Middlebox selects what a router does to packets that it forwards: one of the two kinds below, or a kind of
// lab/middlebox.
type Middlebox string

// The kinds of middlebox.
const (
	NoMiddlebox  Middlebox = ""
	StripOptions Middlebox = "strip-options" // overwrites experimental options with padding
	DropOptions  Middlebox = "drop-options"  // drops SYNs that have them
)

// Middleboxes returns all kinds.
func Middleboxes() []Middlebox {
	all := []Middlebox{StripOptions, DropOptions}
	for _, k := range middlebox.Kinds() {
		all = append(all, Middlebox(k))
	}
	return all
}

// NATKind selects how a router's NAT treats UDP.
type NATKind string

// The kinds. With Symmetric, the default, every flow gets a random port. With the others, an inside host has one port.
// With PortRestricted, the port accepts packets from the addresses and ports that it has sent to. With
// AddressRestricted, it accepts packets from the addresses that it has sent to. With FullCone, it accepts packets from
// anywhere.
const (
	Symmetric         NATKind = "symmetric"
	PortRestricted    NATKind = "port-restricted"
	AddressRestricted NATKind = "address-restricted"
	FullCone          NATKind = "full-cone"
)

// Protocol is a transport protocol.
type Protocol string

// The protocols.
const (
	ProtocolTCP Protocol = "tcp"
	ProtocolUDP Protocol = "udp"
)

// Forward forwards a port of a router with NAT to an inside host.
type Forward struct {
	Protocol Protocol `toml:"protocol"`
	Port     int      `toml:"port"`
	To       string   `toml:"to"`
}

// Inside lists the hosts behind the router's NAT, in the order of hosts.
func (s *Scenario) Inside(router Host) []string {
	reached := s.reach(router.Name, func(link string) bool { return slices.Contains(router.NAT, link) })
	var inside []string
	for _, h := range s.Hosts {
		if h.Name != router.Name && reached[h.Name] {
			inside = append(inside, h.Name)
		}
	}
	return inside
}

// reach returns the hosts that a host reaches over links and routers, if it begins with one of its links that first
// allows.
func (s *Scenario) reach(from string, first func(link string) bool) map[string]bool {
	reached, queue := map[string]bool{from: true}, []string{from}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		if h, _ := s.Host(at); at != from && !h.Has(RoleRouter) {
			continue
		}
		for _, l := range s.Links {
			next := ""
			switch at {
			case l.A:
				next = l.B
			case l.B:
				next = l.A
			}
			if next != "" && !reached[next] && (at != from || first(l.Name)) {
				reached[next] = true
				queue = append(queue, next)
			}
		}
	}
	return reached
}

// behindNAT reports a server that no client can reach from outside.
func (c *checker) behindNAT(path, server, client string) {
	for _, h := range c.Hosts {
		if len(h.NAT) == 0 {
			continue
		}
		inside := c.Inside(h)
		if slices.Contains(inside, server) && client != h.Name && !slices.Contains(inside, client) {
			c.report(path, "%q is behind the NAT of %q, which lets no new connection in from %q; put it on another link", server, h.Name, client)
		}
	}
}
