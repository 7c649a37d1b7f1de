package vpn

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"
	"strconv"
)

// Lengths of a waypoint's subnets. An IPv4 one has room for some two thousand
// tunnels.
const (
	bits4 = 21
	bits6 = 64
)

// subnetTries bounds the look for a subnet that is free at the waypoint.
const subnetTries = 256

// subnetOf returns the subnet of a range that a waypoint gives addresses from:
// the first one, in an order that follows from its seed, that is free on its
// host. Members have no say in it. false: no subnet is free.
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

// gateway is the waypoint's own address in a subnet: the first, which stands
// alone. Members are reached by routes of their own.
func gateway(subnet netip.Prefix) netip.Prefix {
	a := subnet.Addr().Next()
	return netip.PrefixFrom(a, a.BitLen())
}

// hosts yields the addresses of a subnet that members may have, in an order that
// follows from the seed and the holder: not the first, the waypoint's, nor those
// with all bits zero or one. Of an IPv6 subnet it yields those few that it takes
// to find a free one. Without the seed nobody can tell which key gets which
// address.
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

// shuffled goes once through all numbers of so many bits: an odd stride has no common divisor with
// a power of two.
func shuffled(h [sha256.Size]byte, bits int) iter.Seq[uint32] {
	start, stride := binary.BigEndian.Uint32(h[16:]), binary.BigEndian.Uint32(h[20:])|1
	return func(yield func(uint32) bool) {
		for i := range uint32(1) << bits {
			if !yield((start + i*stride) & (1<<bits - 1)) {
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

// usage is what a host uses of the ranges: networks, and single addresses, of
// which there may be many.
type usage struct {
	networks []netip.Prefix
	singles  map[netip.Addr]bool
}

// usageOf keeps of used what overlaps the ranges.
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

// overlaps reports whether a subnet overlaps a network in use. Single addresses
// do not keep a subnet from being used: they are left out when it is.
func (u usage) overlaps(subnet netip.Prefix) bool {
	return slices.ContainsFunc(u.networks, subnet.Overlaps)
}
