package mptcptest

import (
	"fmt"
	"strings"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

// String returns the state of the host as text, for golden files:
//
//	pm userspace
//	connection 00000101 to 198.51.100.1:443
//	  10.0.0.2:40001 > 198.51.100.1:443 id 0
//	  10.0.0.2:40002 > 192.0.2.7:30001 id 1 backup
func (f *Fake) String() string {
	all, _ := f.Connections() // cannot fail
	f.mu.Lock()
	pm := map[bool]string{false: "kernel", true: "userspace"}[f.toUser]
	f.mu.Unlock()

	var b strings.Builder
	fmt.Fprintf(&b, "pm %s\n", pm)
	for _, c := range all {
		side := "to"
		if c.ServerSide {
			side = "from"
		}
		fmt.Fprintf(&b, "connection %08x %s %v\n", c.Token, side, c.Remote)
		for _, s := range c.Subflows {
			fmt.Fprintf(&b, "  %v > %v id %d", s.Local, s.Remote, s.LocalID)
			if s.State != mptcp.StateEstablished {
				fmt.Fprintf(&b, " %v", s.State)
			}
			if s.BackupLocal {
				b.WriteString(" backup")
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}
