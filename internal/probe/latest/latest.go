// Package latest makes a server reply on the subflow that brought its client's newest data, like the scheduler for
// servers in V.-H. Tran's thesis (2019, section 4.5.2). Linux has no such scheduler. So the package makes the other
// subflows backups by MP_PRIO, which also asks the client to send on the remaining subflow only.
package latest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/probe"
)

// Kernel is the part of mptcp.Kernel that a Chooser uses.
type Kernel interface {
	Subflows(yield func(*mptcp.Subflow) bool) error
	SetBackup(token uint32, local, remote netip.AddrPort, backup bool) error
}

// Chooser chooses the subflow for replies.
type Chooser struct{ Kernel Kernel }

// Prefer makes all subflows of a connection backups except for the one that brought the newest data. It does nothing if
// the connection is plain TCP.
func (c *Chooser) Prefer(conn net.Conn) error {
	info, err := probe.Info(conn)
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, os.ErrInvalid) || err != nil && len(info.Subflows) == 0 {
		return nil
	}
	var subflows []mptcp.Subflow
	err = c.Kernel.Subflows(func(s *mptcp.Subflow) bool {
		if s.Token == info.Token && s.State == mptcp.StateEstablished {
			subflows = append(subflows, *s)
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, change := range Decide(subflows) {
		err := c.Kernel.SetBackup(info.Token, change.Local, change.Remote, change.Backup)
		if err != nil && !errors.Is(err, mptcp.ErrNoSubflow) && !errors.Is(err, mptcp.ErrNoConnection) {
			return fmt.Errorf("answer on the latest subflow: %w", err)
		}
	}
	return nil
}

// Change is a change of a subflow's priority.
type Change struct {
	Local, Remote netip.AddrPort
	Backup        bool
}

// Decide returns the changes after which only the subflow with the newest data is in use. For each subflow, the kernel
// reports the end of the last mapping that arrived. A mapping of late or repeated data ends no later than earlier ones,
// so only original data counts. If several subflows have brought the newest data, it keeps the one in use.
func Decide(subflows []mptcp.Subflow) (changes []Change) {
	newest := -1
	for i, s := range subflows {
		switch {
		case s.Metrics.DataEnd == 0:
		case newest < 0, s.Metrics.DataEnd > subflows[newest].Metrics.DataEnd,
			s.Metrics.DataEnd == subflows[newest].Metrics.DataEnd && subflows[newest].BackupLocal && !s.BackupLocal:
			newest = i
		}
	}
	if newest < 0 {
		return nil
	}
	// The subflow to use comes first. Otherwise all subflows would be backups for a moment.
	if s := subflows[newest]; s.BackupLocal {
		changes = append(changes, Change{s.Local, s.Remote, false})
	}
	for i, s := range subflows {
		if i != newest && !s.BackupLocal {
			changes = append(changes, Change{s.Local, s.Remote, true})
		}
	}
	return changes
}
