package vpn

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"
	"strconv"
)

// Lengths of a waypoint's subnets. An IPv4 subnet has room for some two thousand tunnels.
const (
	bits4 = 21
	bits6 = 64
)

// subnetTries bounds the search for a subnet that is not in use at the waypoint.
const subnetTries = 256

// subnetOf returns the subnet of a range from which a waypoint gives addresses: the first one not
// in use on its host, in an order derived from its seed. Members cannot influence it. The result is
// false if no subnet is free.
func subnetOf(seed [32]byte, block netip.Prefix, used usage) (netip.Prefix, bool) {
	bits := max(block.Bits(), bits4)
	if block.Addr().Is6() {
		bits = max(block.Bits(), bits6)
	}
	for n := range subnetTries {
		a := fill(block, hash("subnet", seed, block.String(), strconv.Itoa(n)))
		subnet := netip.PrefixFrom(a, bits).Masked()
		if !used.overlaps(subnet) && !used.has(gateway(subnet).Addr()) {
			return subnet, true
		}
	}
	return netip.Prefix{}, false
}

// fill returns an address of a prefix, its host part taken from h.
func fill(p netip.Prefix, h [sha256.Size]byte) netip.Addr {
	a := p.Masked().Addr().AsSlice()
	for i := range a {
		open := min(max(8*(i+1)-p.Bits(), 0), 8) // bits of this byte that are the host's
		a[i] |= h[i] & byte(1<<open-1)
	}
	addr, _ := netip.AddrFromSlice(a)
	return addr
}

// gateway returns the waypoint's own address in a subnet: the first one, without the subnet's
// length, because members are reached by routes of their own.
func gateway(subnet netip.Prefix) netip.Prefix {
	a := subnet.Addr().Next()
	return netip.PrefixFrom(a, a.BitLen())
}

// hosts returns an iterator over the addresses of a subnet that members may have, in an order
// derived from the seed and the holder. It excludes the waypoint's address, which is the first, and
// those with all bits zero or one. Of an IPv6 subnet it yields only as many as are needed to find a
// free one. Without the seed, nobody can predict the address of a key.
func hosts(subnet netip.Prefix, seed [32]byte, holder string) iter.Seq[netip.Addr] {
	const reach = 32 - bits4 // bits of the host part that are gone through
	h := hash("host", seed, subnet.String(), holder)
	bits := min(reach, subnet.Addr().BitLen()-subnet.Bits())
	base := subnet.Addr()
	if base.Is6() {
		base = netip.PrefixFrom(fill(subnet, h), base.BitLen()-bits).Masked().Addr()
	}
	return func(yield func(netip.Addr) bool) {
		for n := range shuffled(h, bits) {
			if n < 2 || n == 1<<bits-1 {
				continue
			}
			a := base.AsSlice()
			low := a[len(a)-2:]
			binary.BigEndian.PutUint16(low, binary.BigEndian.Uint16(low)|uint16(n))
			if addr, _ := netip.AddrFromSlice(a); !yield(addr) {
				return
			}
		}
	}
}

// shuffled returns an iterator over all numbers of the given number of bits. An odd stride has no common divisor with a
// power of two, so each number occurs once. The stride is between a quarter and three quarters of all, so that a member
// that declines a network is not offered an address next to it.
func shuffled(h [sha256.Size]byte, bits int) iter.Seq[uint32] {
	all := uint32(1) << bits
	start, stride := binary.BigEndian.Uint32(h[16:]), (all/4+binary.BigEndian.Uint32(h[20:])%(all/2))|1
	return func(yield func(uint32) bool) {
		for i := range all {
			if !yield((start + i*stride) & (all - 1)) {
				return
			}
		}
	}
}

func hash(purpose string, seed [32]byte, parts ...string) [sha256.Size]byte {
	h := sha256.New()
	h.Write(seed[:])
	for _, s := range append([]string{"dcol tunnel", purpose}, parts...) {
		h.Write([]byte(s))
		h.Write([]byte{0})
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// usage holds the parts of the ranges in use on a host: networks, and single addresses, which may be many.
type usage struct {
	networks []netip.Prefix
	singles  map[netip.Addr]bool
}

// usageOf returns the parts of used that overlap the ranges.
func usageOf(used, ranges []netip.Prefix) usage {
	u := usage{singles: make(map[netip.Addr]bool)}
	for _, p := range used {
		switch {
		case !slices.ContainsFunc(ranges, p.Overlaps):
		case p.IsSingleIP():
			u.singles[p.Addr()] = true
		default:
			u.networks = append(u.networks, p)
		}
	}
	return u
}

func (u usage) has(a netip.Addr) bool { return u.singles[a] || contained(a, u.networks) }

// overlaps reports whether a subnet overlaps a network in use. Single addresses do not make a
// subnet unusable; they are only not given away.
func (u usage) overlaps(subnet netip.Prefix) bool {
	return slices.ContainsFunc(u.networks, subnet.Overlaps)
}
