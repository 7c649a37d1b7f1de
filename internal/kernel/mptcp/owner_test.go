package mptcp_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

// The owner of a socket is the user who made it, whatever its protocol and family. Listeners are not taken for connections.
func TestOwner(t *testing.T) {
	var lc net.ListenConfig
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := lc.Listen(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		for _, multipath := range []bool{false, true} {
			var d net.Dialer
			d.SetMultipathTCP(multipath)
			c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			local, remote := netip.MustParseAddrPort(c.LocalAddr().String()), netip.MustParseAddrPort(c.RemoteAddr().String())
			if uid, err := mptcp.Owner(local, remote); err != nil || uid != uint32(os.Geteuid()) {
				t.Errorf("from %v to %v, MPTCP %t: the owner is %d, %v", local, remote, multipath, uid, err)
			}
			for _, ends := range [][2]netip.AddrPort{{remote, netip.AddrPortFrom(local.Addr(), 1)}, {netip.AddrPortFrom(local.Addr(), 1), remote}} {
				if uid, err := mptcp.Owner(ends[0], ends[1]); !errors.Is(err, mptcp.ErrNoSubflow) {
					t.Errorf("from %v to %v, where nothing is: the owner is %d, %v", ends[0], ends[1], uid, err)
				}
			}
		}
	}
}
