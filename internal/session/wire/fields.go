package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"time"
)

// Field types that have a special encoding. An address is encoded in its 4 or 16 bytes, an endpoint as an address
// followed by the port in two bytes, big endian, and a prefix as an address followed by its length in one byte. IPv4
// addresses always take 4 bytes. Addresses with a zone are invalid, because a zone means nothing on another host.
// Absent values are encoded as zero bytes.
type (
	address  netip.Addr
	endpoint netip.AddrPort
	prefix   netip.Prefix
	millis   time.Duration // a number of milliseconds
)

const maxDuration = 366 * 24 * time.Hour

// Span limits d to what messages can carry: positive, and at most a year.
func Span(d time.Duration) time.Duration { return min(max(d, time.Millisecond), maxDuration) }

// Spread lengthens or shortens the time left until a time by at most a quarter. The result differs from member to member,
// so that those that wait for the same time do not all return at once.
func Spread(left time.Duration, until time.Time, member string) time.Duration {
	const steps = 1000
	h := fnv.New64a()
	fmt.Fprint(h, member, until.UnixNano())
	return left*3/4 + left/2/steps*time.Duration(h.Sum64()%(steps+1))
}

func (a address) MarshalBinary() ([]byte, error) {
	addr := netip.Addr(a)
	if addr.Zone() != "" {
		return nil, fmt.Errorf("address %v has a zone, which means nothing to another host", addr)
	}
	return addr.Unmap().AsSlice(), nil
}

func (a *address) UnmarshalBinary(b []byte) error {
	addr, ok := netip.AddrFromSlice(b)
	if !ok && len(b) > 0 {
		return fmt.Errorf("an address of %d bytes", len(b))
	}
	if addr.Is4In6() {
		return fmt.Errorf("IPv4 address %v in 16 bytes", addr.Unmap())
	}
	*a = address(addr)
	return nil
}

func (e endpoint) MarshalBinary() ([]byte, error) {
	at := netip.AddrPort(e)
	if at == (netip.AddrPort{}) {
		return nil, nil
	}
	if !at.IsValid() || at.Port() == 0 {
		return nil, fmt.Errorf("endpoint %v lacks its address or port", at)
	}
	b, err := address(at.Addr()).MarshalBinary()
	return binary.BigEndian.AppendUint16(b, at.Port()), err
}

func (e *endpoint) UnmarshalBinary(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if len(b) < 2 {
		return fmt.Errorf("an endpoint of %d bytes", len(b))
	}
	var a address
	if err := a.UnmarshalBinary(b[:len(b)-2]); err != nil {
		return err
	}
	at := netip.AddrPortFrom(netip.Addr(a), binary.BigEndian.Uint16(b[len(b)-2:]))
	if !at.IsValid() || at.Port() == 0 {
		return fmt.Errorf("endpoint %v lacks its address or port", at)
	}
	*e = endpoint(at)
	return nil
}

func (p prefix) MarshalBinary() ([]byte, error) {
	network := netip.Prefix(p)
	if !network.IsValid() || network.Addr().Is4In6() {
		return nil, fmt.Errorf("prefix %v is invalid, or of IPv4 addresses in IPv6 form", network)
	}
	return append(network.Addr().AsSlice(), byte(network.Bits())), nil
}

func (p *prefix) UnmarshalBinary(b []byte) error {
	if len(b) < 1 {
		return errors.New("a prefix of 0 bytes")
	}
	var a address
	if err := a.UnmarshalBinary(b[:len(b)-1]); err != nil {
		return err
	}
	network := netip.PrefixFrom(netip.Addr(a), int(b[len(b)-1]))
	if !network.IsValid() {
		return fmt.Errorf("a prefix of %d bits of %v", b[len(b)-1], network.Addr())
	}
	*p = prefix(network)
	return nil
}

func (m millis) MarshalCBOR() ([]byte, error) {
	d := time.Duration(m)
	if d < 0 || d > maxDuration {
		return nil, fmt.Errorf("a duration of %v", d)
	}
	return encMode.Marshal(uint64(d / time.Millisecond))
}

func (m *millis) UnmarshalCBOR(data []byte) error {
	var n uint64
	if err := decMode.Unmarshal(data, &n); err != nil {
		return err
	}
	if n > uint64(maxDuration/time.Millisecond) {
		return fmt.Errorf("a duration of %d ms", n)
	}
	*m = millis(time.Duration(n) * time.Millisecond)
	return nil
}
