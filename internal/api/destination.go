package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// dotted matches what can only be meant as an IPv4 address.
var dotted = regexp.MustCompile(`^[0-9]+(\.[0-9]+)+$`)

// Destinations returns the servers that text names: an address or a name, with or without a port, or the URL of one.
// Their port is 0 if text has none. lookup returns the addresses of a name.
func Destinations(text string, lookup func(name string) ([]netip.Addr, error)) ([]netip.AddrPort, error) {
	host, port, err := hostAndPort(text)
	if err != nil {
		return nil, err
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return serversAt([]netip.Addr{a}, port)
	}
	if dotted.MatchString(host) || strings.ContainsAny(host, ":[]") {
		return nil, fmt.Errorf("%q is not a valid address; valid ones are like 192.0.2.80 and 2001:db8::80", host)
	}
	addrs, err := lookup(host)
	if err != nil {
		return nil, unresolved(host, err)
	}
	return serversAt(addrs, port)
}

// serversAt returns the servers with these addresses. The error names an address that no server can have.
func serversAt(addrs []netip.Addr, port uint16) (list []netip.AddrPort, err error) {
	for _, a := range addrs {
		a = a.Unmap()
		kind := ""
		switch {
		case a.IsUnspecified():
			kind = "the unspecified address"
		case a.IsMulticast():
			kind = "a multicast address"
		case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
			kind = "the broadcast address"
		}
		if kind != "" {
			return nil, fmt.Errorf("%v is %s, and TCP connections lead to one server only: name the server's address", a, kind)
		}
		list = append(list, netip.AddrPortFrom(a, port))
	}
	return list, nil
}

// hostAndPort splits the text of a destination. A URL without a port has the port of its scheme, if that is known.
func hostAndPort(text string) (host string, port uint16, err error) {
	if u, err := url.Parse(text); err == nil && u.Host != "" {
		text = u.Host
		standard := map[string]string{"http": "80", "https": "443"}[u.Scheme]
		if u.Port() == "" && standard != "" {
			text = net.JoinHostPort(u.Hostname(), standard)
		}
	}
	if network, err := netip.ParsePrefix(text); err == nil {
		one := network.Addr()
		if one == network.Masked().Addr() && !network.IsSingleIP() { // the network's own
			one = one.Next()
		}
		return "", 0, fmt.Errorf("%s is a network: name one address in it, such as %v", text, one)
	}
	if before, _, cut := strings.Cut(text, "/"); cut {
		return "", 0, fmt.Errorf("%q is neither an address nor a name; write %q, or a whole URL such as http://example.org/", text, before)
	}
	if h, digits, err := net.SplitHostPort(text); err == nil {
		n, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || n == 0 {
			return "", 0, fmt.Errorf("%q is not a port (1 to 65535)", digits)
		}
		return h, uint16(n), nil
	}
	if inside, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inside, "]") {
		return strings.TrimSuffix(inside, "]"), 0, nil
	}
	return text, 0, nil
}

// unresolved explains why a name has no address. Errors that do not come from name servers stay as they are.
func unresolved(name string, err error) error {
	dns, ok := errors.AsType[*net.DNSError](err)
	if !ok || errors.Is(err, context.Canceled) {
		return err
	}
	why := "no name server answers; /etc/resolv.conf names those that are asked"
	switch {
	case dns.IsNotFound:
		why = "there is no such name"
	case dns.Err == "server misbehaving": // as package net says if the server answered with an error
		why = "the name server failed"
	}
	return fmt.Errorf("%q is no address, and no name that can be resolved: %s", name, why)
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
