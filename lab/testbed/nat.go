package testbed

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// NAT makes a host a home router. IPv4 packets from an inside link that leave by another link get the host's
// address and a port that the kind chooses. IPv6 passes unchanged. From outside, only forwarded ports and
// what the kind allows get in. The zero NAT does nothing.
type NAT struct {
	Inside   []string // links
	Kind     NATKind
	Forwards []PortForward
}

// NATKind selects how a NAT maps and filters UDP, in the terms of RFC 3489, 5. With every kind, TCP
// connections get random ports.
type NATKind string

// The kinds. All but Symmetric keep an inside host's port number, if no other host uses it.
const (
	// Symmetric gives every flow a random port, and accepts replies only.
	Symmetric NATKind = ""
	// PortRestricted accepts packets from the addresses and ports that the port has sent to.
	PortRestricted NATKind = "port-restricted"
	// AddressRestricted accepts packets from the addresses that the port has sent to.
	AddressRestricted NATKind = "address-restricted"
	// FullCone accepts packets from anywhere, once the port has sent one.
	FullCone NATKind = "full-cone"
)

func (k NATKind) validate() error {
	switch k {
	case Symmetric, PortRestricted, AddressRestricted, FullCone:
		return nil
	}
	return fmt.Errorf("kind of NAT %q is unknown: use %q, %q, %q or none, for a symmetric one", k, PortRestricted, AddressRestricted, FullCone)
}

// KeepsPorts reports whether an inside host's port is the same outside.
func (k NATKind) KeepsPorts() bool { return k != Symmetric }

// AsksWho reports whether packets are accepted only from addresses that the port has sent to.
func (k NATKind) AsksWho() bool { return k == AddressRestricted }

// PortForward forwards a port from outside to an inside host. For IPv4 it is a port of the NAT's own address, for IPv6
// one of the inside host's address.
type PortForward struct {
	Protocol string // "tcp" or "udp"
	Port     uint16
	To       string // a host; the port is the same there
}

func (n NAT) isZero() bool { return len(n.Inside) == 0 && len(n.Forwards) == 0 && n.Kind == Symmetric }

// validate checks the NAT of host at.
func (n NAT) validate(at string, links []LinkSpec) error {
	if n.isZero() {
		return nil
	}
	if len(n.Inside) == 0 {
		return errors.New("it is a NAT, and no link is inside: say which are")
	}
	if err := n.Kind.validate(); err != nil {
		return err
	}
	var own, others []string
	for _, l := range links {
		if l.A == at || l.B == at {
			own = append(own, l.Name)
		}
		others = append(others, l.A, l.B)
	}
	for i, name := range n.Inside {
		if !slices.Contains(own, name) {
			return fmt.Errorf("inside link %q is none of its links", name)
		}
		if slices.Contains(n.Inside[:i], name) {
			return fmt.Errorf("link %q is inside twice", name)
		}
	}
	if len(n.Inside) == len(own) {
		return errors.New("all its links are inside: there is nobody to translate addresses for")
	}
	taken := map[PortForward]bool{}
	for _, f := range n.Forwards {
		if f.Protocol != "tcp" && f.Protocol != "udp" {
			return fmt.Errorf("port forward: protocol %q is unknown: use \"tcp\" or \"udp\"", f.Protocol)
		}
		if f.Port == 0 {
			return fmt.Errorf("port forward to %q: no port", f.To)
		}
		if f.To == at || !slices.Contains(others, f.To) {
			return fmt.Errorf("port forward of %s/%d: no link leads to another host %q", f.Protocol, f.Port, f.To)
		}
		key := PortForward{Protocol: f.Protocol, Port: f.Port}
		if taken[key] {
			return fmt.Errorf("%s/%d is forwarded twice", f.Protocol, f.Port)
		}
		taken[key] = true
	}
	return nil
}

// natPlan is a NAT in terms of its host's interfaces. The template of the rules reads it.
type natPlan struct {
	Kind     NATKind
	Inside   []string // interfaces
	Forwards []forwardPlan
}

type forwardPlan struct {
	Protocol     string
	Port         uint16
	Addr4, Addr6 netip.Addr
}

func (p plan) nat(h hostPlan) natPlan {
	n := natPlan{Kind: h.NAT.Kind}
	for _, iface := range h.ifaces {
		if slices.Contains(h.NAT.Inside, p.links[iface.link].Name) {
			n.Inside = append(n.Inside, iface.name)
		}
	}
	for _, f := range h.NAT.Forwards {
		for _, to := range p.hosts {
			if to.Name == f.To {
				n.Forwards = append(n.Forwards, forwardPlan{f.Protocol, f.Port, to.addr4(), to.addr6()})
			}
		}
	}
	return n
}

// Learns reports whether the rules remember what inside hosts send, and let in more than replies to it.
func (n natPlan) Learns() bool { return n.Kind == AddressRestricted || n.Kind == FullCone }

// Outside returns a match for packets that come or leave by an interface that is not inside. key is nft's word for the
// interface.
func (n natPlan) Outside(key string) string {
	var matches []string
	for _, iface := range n.Inside {
		matches = append(matches, fmt.Sprintf("%s != %q", key, iface))
	}
	return strings.Join(matches, " ")
}
