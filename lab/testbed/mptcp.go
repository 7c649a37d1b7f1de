package testbed

import (
	"fmt"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
)

// Numbers of the path manager's generic netlink family, from include/uapi/linux/mptcp_pm.h.
const (
	pathManagerFamily    = "mptcp_pm"
	pathManagerVersion   = 1
	pathManagerSetLimits = 5 // MPTCP_PM_CMD_SET_LIMITS
	pathManagerSubflows  = 3 // MPTCP_PM_ATTR_SUBFLOWS
)

// setSubflowLimit runs on a host's thread. It limits the subflows besides a connection's first that the host accepts
// from now on, like `ip mptcp limits set subflows`.
func setSubflowLimit(subflows int) error {
	fail := func(err error) error {
		return fmt.Errorf("let %d subflows join a connection: %w", subflows, err)
	}
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return fail(err)
	}
	defer conn.Close()
	family, err := conn.GetFamily(pathManagerFamily)
	if err != nil {
		return fail(fmt.Errorf("this kernel has no MPTCP: %w", err))
	}
	e := netlink.NewAttributeEncoder()
	e.Uint32(pathManagerSubflows, uint32(subflows))
	data, err := e.Encode()
	if err != nil {
		return fail(err)
	}
	message := genetlink.Message{Header: genetlink.Header{Command: pathManagerSetLimits, Version: pathManagerVersion}, Data: data}
	if _, err := conn.Execute(message, family.ID, netlink.Request|netlink.Acknowledge); err != nil {
		return fail(err)
	}
	return nil
}
