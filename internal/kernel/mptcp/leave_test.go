package mptcp_test

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/internal/threehosts"
)

// A connection whose first subflow a host in the middle forwards to a server with MPTCP can leave this host after some
// kilobytes: a direct subflow joins, and the first one becomes a backup (MP_PRIO) or ends. docs/converter.md says why a
// connection that was converted cannot.
func TestLeavesTheMiddle(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, c *connected){
		"MP_PRIO": func(t *testing.T, c *connected) {
			if err := c.client.SetBackup(c.token, c.local, c.detour(0), true); err != nil {
				t.Fatal(err)
			}
		},
		"removal": func(t *testing.T, c *connected) { c.destroy(t, c.local, c.detour(0)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, false)
			c := &connected{site: s, client: watch(t, s.Client)}
			c.toKernel = s.Client.UserspacePM(t, c.client.UserspacePMSysctl)
			c.conn = s.Client.Dial(t, c.detour(0))
			threehosts.Echo(t, c.conn, strings.Repeat("before ", 2000))
			c.client.next(t, mptcp.Created)
			ev := c.client.next(t, mptcp.Established)
			c.token, c.local = ev.Token, ev.Local
			c.join(t, mptcp.NewSubflow{Local: netip.AddrPortFrom(c.Client.IP4, 0), LocalID: 1, Remote: c.server})
			before := forwarded(t, c)
			if before < 2*14000 {
				t.Errorf("the host in the middle has forwarded %d bytes", before)
			}
			leave(t, c)
			// The server may hear of it later than of what comes by the direct path.
			const more, rounds = 256 << 10, 20
			passed := more
			for round := 0; round < rounds && passed > more/20; round++ {
				before = forwarded(t, c)
				threehosts.Echo(t, c.conn, strings.Repeat("x", more))
				passed = forwarded(t, c) - before
			}
			if passed > more/20 {
				t.Errorf("%d of %d bytes still go through the middle", passed, 2*more)
			}
		})
	}
}

// forwarded returns the bytes that have arrived at the host in the middle.
func forwarded(t *testing.T, c *connected) int {
	t.Helper()
	_, text, _ := strings.Cut(c.Waypoint.Run(t, "", "cat", "/proc/net/dev"), "eth0:")
	fields := strings.Fields(text)
	if len(fields) == 0 {
		t.Fatal("no eth0")
	}
	n, err := strconv.Atoi(fields[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
