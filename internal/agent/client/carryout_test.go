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
			c.carryOut(t.Context(), path.DestroySubflow{Token: path.Token(token), Local: local, Remote: remote, IfOpen: test.orphan}, time.Now())
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

// The samples of one connection between two rounds have the counters of its subflows, its progress, and what is gone.
func TestWatchesOneConnection(t *testing.T) {
	kernel := mptcptest.New()
	kernel.SetUserspacePM(true)
	server := netip.MustParseAddrPort("192.0.2.1:80")
	token := path.Token(kernel.Connect(netip.MustParseAddr("10.0.0.1"), server))
	all, err := kernel.Connections()
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	first := all[0].Subflows[0]
	gone := netip.MustParseAddrPort("10.0.0.1:50001")
	c, _ := toldClient()
	c.host = &host{kernel: kernel}
	c.sampler = sampler{log: c.log, kernel: kernel}
	c.carryOut(t.Context(), path.Watch{Token: token, Subflows: []path.Ends{{Local: first.Local, Remote: server}, {Local: gone, Remote: server}}}, time.Now())
	if len(c.backlog) != 2 {
		t.Fatalf("events: %+v", c.backlog)
	}
	m, _ := c.backlog[0].(path.Measured)
	if len(m.Samples) != 1 || m.Samples[0].Local != first.Local || len(m.Progress) != 1 || m.Progress[0].Token != token || m.Complete || m.More {
		t.Errorf("samples: %+v", m)
	}
	if missing, ok := c.backlog[1].(path.SubflowMissing); !ok || missing.Local != gone {
		t.Errorf("what is gone: %+v", c.backlog[1])
	}
	c.backlog = nil
	c.carryOut(t.Context(), path.Watch{Token: token + 1}, time.Now())
	if len(c.backlog) != 0 {
		t.Errorf("events of a connection that ended: %+v", c.backlog)
	}
}
