package setup

import (
	"net"
	"net/netip"

	"github.com/detour-collective/dcol/internal/nat"
)

// OwnAddresses returns the addresses that this host uses towards the Internet, one of each family.
// Private ones are included only if there is no other; public is then false, and members elsewhere
// cannot reach the host at them.
func OwnAddresses() (addresses []string, public bool) {
	var own []netip.Addr
	// Connecting a UDP socket sends nothing. It makes the kernel choose a source address.
	for _, elsewhere := range []string{"[2001:db8::1]:9", "192.0.2.1:9"} {
		conn, err := net.Dial("udp", elsewhere)
		if err != nil {
			continue // this host has no route for the family
		}
		if at, err := netip.ParseAddrPort(conn.LocalAddr().String()); err == nil && at.Addr().Unmap().IsGlobalUnicast() {
			own = append(own, at.Addr().Unmap().WithZone(""))
			public = public || !nat.IsPrivate(at.Addr().Unmap())
		}
		conn.Close()
	}
	for i := len(own) - 1; i >= 0; i-- { // IPv4 first, because more hosts have it
		if !public || !nat.IsPrivate(own[i]) {
			addresses = append(addresses, own[i].String())
		}
	}
	return addresses, public
}
