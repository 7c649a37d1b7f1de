package coordinator

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
)

// Hosts join while strangers hold more idle connections than there are places: from a few addresses, and one each
// from many.
func TestSlowStrangersGiveWay(t *testing.T) {
	t.Parallel()
	for name, addresses := range map[string]int{"sixteen addresses": maxStrangers / maxPerSource, "an address for each": maxStrangers} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.run()
			at := w.invite(InviteOptions{}).Coordinators[0].Address
			for i := range maxStrangers + addresses {
				n := i % addresses
				from := netip.MustParseAddr(fmt.Sprintf("127.1.%d.%d", n/200, 1+n%200))
				dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
				conn, err := dialer.DialContext(t.Context(), "tcp", at)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
			}
			if err := w.host("alpha").join(w.invite(InviteOptions{})); err != nil {
				t.Error(err)
			}
		})
	}
}
