package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// An address is encoded in its 4 or 16 bytes. An endpoint is an address followed by the port in two
// bytes, big endian. A prefix is an address followed by its length in one byte. IPv4 addresses are
// always encoded in 4 bytes. Zones are invalid, because they mean nothing on another host.

func appendAddr(dst []byte, a netip.Addr) ([]byte, error) {
	if a.Zone() != "" {
		return nil, fmt.Errorf("address %v has a zone, which means nothing to another host", a)
	}
	a = a.Unmap()
	if !a.IsValid() {
		return nil, errors.New("no address")
	}
	return append(dst, a.AsSlice()...), nil
}

func parseAddr(b []byte) (netip.Addr, error) {
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		return netip.Addr{}, fmt.Errorf("an address of %d bytes", len(b))
	}
	if a.Is4In6() {
		return netip.Addr{}, fmt.Errorf("IPv4 address %v in 16 bytes", a.Unmap())
	}
	return a, nil
}

func encodeEndpoint(ap netip.AddrPort) ([]byte, error) {
	b, err := appendAddr(make([]byte, 0, 18), ap.Addr())
	if err != nil {
		return nil, err
	}
	if ap.Port() == 0 {
		return nil, fmt.Errorf("endpoint %v has no port", ap)
	}
	return binary.BigEndian.AppendUint16(b, ap.Port()), nil
}

func parseEndpoint(b []byte) (netip.AddrPort, error) {
	if len(b) < 2 {
		return netip.AddrPort{}, fmt.Errorf("an endpoint of %d bytes", len(b))
	}
	a, err := parseAddr(b[:len(b)-2])
	if err != nil {
		return netip.AddrPort{}, err
	}
	port := binary.BigEndian.Uint16(b[len(b)-2:])
	if port == 0 {
		return netip.AddrPort{}, errors.New("an endpoint with port 0")
	}
	return netip.AddrPortFrom(a, port), nil
}

// parseOptionalEndpoint parses a field that may be absent.
func parseOptionalEndpoint(b []byte) (netip.AddrPort, error) {
	if len(b) == 0 {
		return netip.AddrPort{}, nil
	}
	return parseEndpoint(b)
}

func encodePrefix(p netip.Prefix) ([]byte, error) {
	if !p.IsValid() {
		return nil, errors.New("no prefix")
	}
	if p.Addr().Is4In6() {
		return nil, fmt.Errorf("prefix %v is of IPv4 addresses in IPv6 form", p)
	}
	b, err := appendAddr(make([]byte, 0, 17), p.Addr())
	return append(b, byte(p.Bits())), err
}

func parsePrefix(b []byte) (netip.Prefix, error) {
	if len(b) < 1 {
		return netip.Prefix{}, errors.New("a prefix of 0 bytes")
	}
	a, err := parseAddr(b[:len(b)-1])
	if err != nil {
		return netip.Prefix{}, err
	}
	p := netip.PrefixFrom(a, int(b[len(b)-1]))
	if !p.IsValid() {
		return netip.Prefix{}, fmt.Errorf("a prefix of %d bits of %v", b[len(b)-1], a)
	}
	return p, nil
}
