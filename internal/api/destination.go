package api

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// Destinations returns the servers that text names: an address or a name, with or without a port. Their port is 0 if text
// has none. lookup returns the addresses of a name.
func Destinations(text string, lookup func(name string) ([]netip.Addr, error)) ([]netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(a.Unmap(), 0)}, nil
	}
	host, port := text, 0
	if h, p, err := net.SplitHostPort(text); err == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%q is not a port (1 to 65535)", p)
		}
		host, port = h, int(n)
	}
	addrs, err := lookup(host)
	if err != nil {
		return nil, fmt.Errorf("%q is no address, and no name that can be resolved: %w", host, err)
	}
	var list []netip.AddrPort
	for _, a := range addrs {
		list = append(list, netip.AddrPortFrom(a.Unmap(), uint16(port)))
	}
	return list, nil
}

// Relevant returns the answers about servers with connections, or the first answer if there are none.
func Relevant(answers []Why) (list []Why) {
	for _, a := range answers {
		if len(a.Connections)+len(a.Closed) > 0 {
			list = append(list, a)
		}
	}
	if len(list) == 0 {
		return answers[:min(len(answers), 1)]
	}
	return list
}
