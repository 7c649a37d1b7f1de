package mptcptest

import (
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// UserspacePM gives new MPTCP sockets of the calling thread's network namespace, which must be n's, the userspace
// path manager, permanently.
func UserspacePM(n *mptcp.Namespace) error {
	key, value, err := n.UserspacePMSysctl()
	if err != nil {
		return err
	}
	return netstate.SetSysctl(key, value)
}
