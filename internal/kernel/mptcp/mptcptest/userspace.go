package mptcptest

import (
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// UserspacePM gives new MPTCP sockets of the calling thread's network namespace,
// which is n's, to userspace, for good.
func UserspacePM(n *mptcp.Namespace) error {
	key, value, err := n.UserspacePMSysctl()
	if err != nil {
		return err
	}
	return netstate.SetSysctl(key, value)
}
