package client

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/mptcptest"
	"github.com/detour-collective/dcol/internal/path"
)

// A connection of which one end is closed gets no more subflows. So what it has is kept while the address
// is away, and goes on when that comes back.
func TestOrphansOfHalfClosedConnectionsAreKept(t *testing.T) {
	server := netip.MustParseAddrPort("203.0.113.80:80")
	for _, test := range []struct {
		shutdown, orphan bool
		left             int
	}{{false, false, 1}, {false, true, 1}, {true, false, 1}, {true, true, 2}} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			kernel := mptcptest.New()
			kernel.SetUserspacePM(true)
			kernel.SetServerLimit(2)
			token := kernel.Connect(netip.MustParseAddr("10.0.0.1"), server)
			remote := netip.MustParseAddrPort("192.0.2.7:4000")
			local := netip.MustParseAddrPort("10.0.0.1:50001")
			if err := kernel.CreateSubflow(mptcp.NewSubflow{Token: token, LocalID: 1, Local: local, Remote: remote}); err != nil {
				t.Fatal(err)
			}
			if test.shutdown {
				kernel.Shutdown(token)
			}
			c, told := toldClient()
			c.host = &host{kernel: kernel}
			c.carryOut(t.Context(), path.DestroySubflow{Token: path.Token(token), Local: local, Remote: remote, Orphan: test.orphan}, time.Now())
			if test.orphan {
				c.carryOut(t.Context(), path.RemoveAddr{Token: path.Token(token), LocalID: 1, Local: local}, time.Now())
			}
			all, err := kernel.Connections()
			if err != nil || len(all) != 1 || len(all[0].Subflows) != test.left {
				t.Errorf("%d subflows are wanted: %+v, %v\n%s", test.left, all, err, told)
			}
		})
	}
}
