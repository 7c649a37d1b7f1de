package gateway

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/detour-collective/dcol/internal/converter/choice"
)

// Connections of the LAN's hosts outlive the loss of the table. Packets of the relay's connections go astray while the
// table is missing. Connections that begin meanwhile do not get to the relay afterwards.
func TestConnectionsOutliveTheTable(t *testing.T) {
	t.Parallel()
	for _, mptcp := range []bool{false, true} {
		h := newHome(t, Want{Mode: choice.Always, Converters: true})
		if mptcp {
			h.expect("server", true, plainPort) // teaches that it is plain
		}
		carry := func(who string) (wait func()) {
			var group sync.WaitGroup
			for _, addr := range families46 {
				c, got := h.begin(h.host, mptcp, netip.AddrPortFrom(netip.MustParseAddr(addr), plainPort))
				if got != who {
					t.Errorf("MPTCP %t to %s: the %s answers, want the %s", mptcp, addr, got, who)
				}
				group.Go(func() {
					if err := echo(c, 4<<20); err != nil {
						t.Errorf("MPTCP %t to %s, which the %s has: %v", mptcp, addr, who, err)
					}
				})
			}
			return group.Wait
		}
		relayed := carry("relay")
		h.router.Output(t, "nft", "flush", "ruleset")
		direct := carry("server")
		h.router.Must(t, func() error { _, err := h.gateway.Check(); return err })
		direct()
		relayed()
	}
}

// echo sends bytes and reads them again.
func echo(c net.Conn, bytes int) error {
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, bytes))
		sent <- err
	}()
	if _, err := io.CopyN(io.Discard, c, int64(bytes)); err != nil {
		c.Close()
		<-sent
		return err
	}
	return <-sent
}
