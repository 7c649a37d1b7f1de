package vpn

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"net/netip"
	"strconv"
)

// family is an address family and where its subnets come from.
type family struct {
	has     func(netip.Addr) bool
	subnets func(waypoint string) iter.Seq[netip.Prefix]
}

var families = []family{
	{has: netip.Addr.Is4, subnets: subnets4},
	{has: netip.Addr.Is6, subnets: subnets6},
}

// bits4 is the length of an IPv4 subnet: about a thousand members.
const bits4 = 22

// private4 are the networks of RFC 1918, that with most subnets first.
var private4 = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"),
}

// subnets4 are all private subnets in an order that follows from the waypoint's name.
func subnets4(waypoint string) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for _, private := range private4 {
			base := binary.BigEndian.Uint32(private.Addr().AsSlice())
			seed := hash("IPv4 subnets", waypoint, private.String())
			for n := range shuffled(seed, bits4-private.Bits()) {
				var a [4]byte
				binary.BigEndian.PutUint32(a[:], base|n<<(32-bits4))
				if !yield(netip.PrefixFrom(netip.AddrFrom4(a), bits4)) {
					return
				}
			}
		}
	}
}

// tries6 bounds the look for a subnet of 2^56 that nobody uses.
const tries6 = 64

// subnets6 are unique local ones (RFC 4193), the global id and subnet id of each following from the
// waypoint's name.
func subnets6(waypoint string) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for n := range tries6 {
			a := [16]byte{0xfd}
			seed := hash("IPv6 subnets", waypoint, strconv.Itoa(n))
			copy(a[1:8], seed[:])
			if !yield(netip.PrefixFrom(netip.AddrFrom16(a), 64)) {
				return
			}
		}
	}
}

// hosts are the addresses of a subnet that members may have, in an order that follows from the
// holder's name: not the first, the waypoint's, nor those with all bits zero or one. Of an IPv6
// subnet it is those few that it takes to find a free one.
func hosts(subnet netip.Prefix, holder string) iter.Seq[netip.Addr] {
	const reach = 10 // bits of the part that is looked through
	seed := hash("hosts", holder, subnet.Addr().String())
	return func(yield func(netip.Addr) bool) {
		for n := range shuffled(seed, reach) {
			a := subnet.Addr().AsSlice()
			if len(a) == 16 {
				copy(a[8:14], seed[8:])
			}
			low := len(a) - 2
			binary.BigEndian.PutUint16(a[low:], binary.BigEndian.Uint16(a[low:])|uint16(n))
			addr, _ := netip.AddrFromSlice(a)
			if n < 2 || n == 1<<reach-1 {
				continue
			}
			if !yield(addr) {
				return
			}
		}
	}
}

// shuffled goes once through all numbers of so many bits: an odd stride has no common divisor with
// a power of two.
func shuffled(seed [sha256.Size]byte, bits int) iter.Seq[uint32] {
	start, stride := binary.BigEndian.Uint32(seed[:]), binary.BigEndian.Uint32(seed[4:])|1
	return func(yield func(uint32) bool) {
		for i := range uint32(1) << bits {
			if !yield((start + i*stride) & (1<<bits - 1)) {
				return
			}
		}
	}
}

func hash(purpose string, parts ...string) [sha256.Size]byte {
	h := sha256.New()
	for _, s := range append([]string{"dcol tunnel", purpose}, parts...) {
		h.Write([]byte(s))
		h.Write([]byte{0})
	}
	return [sha256.Size]byte(h.Sum(nil))
}
