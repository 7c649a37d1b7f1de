package egress

import (
	"net/netip"
	"slices"
)

// Narrowing limits the servers of one member, within what a Policy allows. The zero value limits nothing.
type Narrowing struct {
	Only  []netip.Prefix // servers that it may use; empty: all
	Deny  []netip.Prefix // servers that it may not use, also if Only contains them
	Ports []uint16       // servers' ports that it may use; empty: all
}

// Limits reports whether there is a server that is allowed by some Policy but not by n.
func (n Narrowing) Limits() bool { return len(n.Only)+len(n.Deny)+len(n.Ports) > 0 }

// Check returns nil if the member may use a server, and a *Denied if it may not. An IPv6 address with an IPv4 address
// inside is judged by both: the translator would send to the latter.
func (n Narrowing) Check(server netip.AddrPort) error {
	if len(n.Ports) > 0 && !slices.Contains(n.Ports, server.Port()) {
		return &Denied{Server: server, Reason: MemberPort}
	}
	addrs := []netip.Addr{server.Addr().WithZone("")}
	if inner, ok := wrapped(addrs[0]); ok {
		addrs = append(addrs, inner)
	}
	in := func(list []netip.Prefix) (netip.Prefix, bool) {
		for _, addr := range addrs {
			if i := slices.IndexFunc(list, func(p netip.Prefix) bool { return p.Contains(addr) }); i >= 0 {
				return list[i], true
			}
		}
		return netip.Prefix{}, false
	}
	if prefix, denied := in(n.Deny); denied {
		return &Denied{Server: server, Reason: MemberDenied, Prefix: prefix}
	}
	if _, allowed := in(n.Only); len(n.Only) > 0 && !allowed {
		return &Denied{Server: server, Reason: MemberDenied}
	}
	return nil
}
