package agent

import (
	"errors"
	"fmt"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

// pathManagerProblem describes to the user why this agent gets no new connections. The error, of
// mptcp.Namespace.CheckUserspacePM, must not be nil.
func pathManagerProblem(err error) string {
	if errors.Is(err, mptcp.ErrSwitchedOff) {
		return "somebody has switched MPTCP off while the agent runs, so that new connections are plain TCP and get no detours: sysctl -w net.mptcp.enabled=1"
	}
	if d, ok := errors.AsType[*mptcp.DisplacedError](err); ok {
		return fmt.Sprintf("another path manager has taken over while the agent runs (%v), so that new connections get no detours: "+
			"find what has set that (mptcpd, NetworkManager, a file in sysctl.d), then: sysctl -w %s=%s", d, d.Sysctl, d.Want)
	}
	return fmt.Sprintf("it cannot be told whether new connections are given to the agent: %v", err)
}

// lookForOthers logs when somebody else begins or ceases to manage the paths of new connections.
func (c *client) lookForOthers() {
	switch err := c.checkPM(); {
	case err != nil && !c.displaced:
		c.displaced = true
		c.log.Warn("the agent does not manage the paths of new connections", "problem", pathManagerProblem(err))
	case err == nil && c.displaced:
		c.displaced = false
		c.log.Info("the agent manages the paths of new connections again")
	}
}
