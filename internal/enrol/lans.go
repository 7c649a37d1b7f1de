package enrol

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// LANs returns the private networks of this host, in which the collective should give it no addresses.
func LANs() (out []netip.Prefix, err error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list this host's networks: %w", err)
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().Is4() && p.Addr().IsPrivate() && !slices.Contains(out, p.Masked()) {
			out = append(out, p.Masked())
		}
	}
	return out, nil
}
