package wireguard

import "net/netip"

const (
	// messageOverhead is the header and the authentication tag of a transport message (WireGuard
	// paper, section 5.4.6).
	messageOverhead = 16 + 16
	udpHeader       = 8
	padding         = 16
)

// Overhead returns the bytes added to a packet on the way to a peer at an address.
func Overhead(outer netip.Addr) int {
	ip := 40
	if outer.Unmap().Is4() {
		ip = 20
	}
	return ip + udpHeader + messageOverhead
}

// InnerMTU returns the size of the largest packet that crosses the path between two ends without
// fragmentation, given the path's MTU, the peer's address and the larger MTU of the two interfaces.
// Senders pad packets to a multiple of 16 bytes, but not beyond the MTU of their own interface. So
// if the path allows less than that, the padded size must fit.
func InnerMTU(path int, outer netip.Addr, interfaces int) int {
	mtu := path - Overhead(outer)
	if mtu >= interfaces {
		return interfaces
	}
	return mtu &^ (padding - 1)
}
