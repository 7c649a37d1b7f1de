package scenario

import (
	"fmt"
	"slices"
)

// Middlebox selects how a router treats the TCP options of SYNs that pass it.
type Middlebox string

// The kinds of middlebox.
const (
	NoMiddlebox  Middlebox = ""
	StripOptions Middlebox = "strip-options" // makes padding of experimental options
	DropOptions  Middlebox = "drop-options"  // drops SYNs that have them
)

// Middleboxes returns all there are.
func Middleboxes() []Middlebox { return []Middlebox{StripOptions, DropOptions} }

// NATKind selects how a router's NAT treats UDP.
type NATKind string

// The kinds. By default every flow gets a random port. With the others, a host inside has one port, which
// accepts packets from the addresses and ports it has sent to, from the addresses it has sent to, or from
// anywhere.
const (
	Symmetric         NATKind = "symmetric"
	PortRestricted    NATKind = "port-restricted"
	AddressRestricted NATKind = "address-restricted"
	FullCone          NATKind = "full-cone"
)

// Protocol is one that has ports.
type Protocol string

// The protocols.
const (
	ProtocolTCP Protocol = "tcp"
	ProtocolUDP Protocol = "udp"
)

// Forward forwards a port of a router with NAT to a host inside.
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

// reach returns what a host reaches over links and routers between, when it begins
// with one of its links that first allows.
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

// interference checks what a host does to the packets of others.
func (c *checker) interference(path string, h Host) {
	if h.Middlebox != NoMiddlebox {
		c.oneOf(path+".middlebox", string(h.Middlebox), string(StripOptions), string(DropOptions))
	}
	for _, key := range []struct {
		name string
		set  bool
	}{{"middlebox", h.Middlebox != NoMiddlebox}, {"nat", len(h.NAT) > 0}} {
		if key.set && !h.Has(RoleRouter) {
			c.report(path+"."+key.name, "has no effect: %s forwards nothing; give it the role router", h.Name)
		}
	}
	c.nat(path, h)
	if h.NATKind != "" {
		c.oneOf(path+".nat_kind", string(h.NATKind), string(Symmetric), string(PortRestricted), string(AddressRestricted), string(FullCone))
		if len(h.NAT) == 0 {
			c.report(path+".nat_kind", "has no effect: %s has no NAT; say with nat which links are inside", h.Name)
		}
	}
	if len(h.NAT) == 0 && len(h.Forwards) > 0 {
		c.report(path+".forward", "has no effect: %s has no NAT; say with nat which links are inside", h.Name)
		return
	}
	taken := map[string]bool{}
	for i, f := range h.Forwards {
		c.forward(fmt.Sprintf("%s.forward[%d]", path, i), h, f, taken)
	}
}

func (c *checker) nat(path string, h Host) {
	own := c.linksOf(h.Name)
	inside := map[string]bool{}
	for _, name := range h.NAT {
		if !c.known(path+".nat", name, "link of "+h.Name, own) {
			continue
		}
		if inside[name] {
			c.report(path+".nat", "%q stands there twice", name)
		}
		inside[name] = true
	}
	if h.Has(RoleRouter) && len(inside) > 0 && len(inside) == len(own) {
		c.report(path+".nat", "all links of %s are inside; leave out those that lead to the Internet", h.Name)
	}
}

func (c *checker) forward(path string, h Host, f Forward, taken map[string]bool) {
	c.oneOf(path+".protocol", string(f.Protocol), string(ProtocolTCP), string(ProtocolUDP))
	if f.Port < 1 || f.Port > 65535 {
		c.report(path+".port", "%d is not a port; use 1 to 65535", f.Port)
	}
	c.known(path+".to", f.To, "host behind the NAT of "+h.Name, c.Inside(h))
	key := fmt.Sprintf("%s/%d", f.Protocol, f.Port)
	if taken[key] {
		c.report(path+".port", "%s is forwarded twice", key)
	}
	taken[key] = true
}

// behindNAT reports a server that no client from outside gets to.
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
