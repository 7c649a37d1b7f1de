package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/nat/portmap"
)

// checkOutside checks what stands between this waypoint and the Internet, and whether others can
// reach it. The agent finds out more, because it has the port and asks other members.
func checkOutside(ctx context.Context, e *Env) Result {
	if e.Config.Err != nil {
		return skipped("no usable configuration names the port")
	}
	if e.Outside != nil {
		return e.judge(*e.Outside)
	}
	if e.AgentUnasked != nil { // it has asked other members, whose answers are worth more than the address
		return e.untold("the agent knows how members reach this host")
	}
	own, protocol, err := e.System.AskRouter(ctx)
	switch {
	case errors.Is(err, portmap.ErrNoProtocol):
		return warning(e.fixForward(own.String()), "the host's address %v is private, and %v", own, portmap.ErrNoProtocol)
	case err != nil:
		return skipped("%v", err)
	case !nat.IsPrivate(own):
		return info("the host's address %v is public; the agent finds out whether a firewall is before it", own)
	case protocol == "":
		return info("the host's address %v is private, and there is no router: members in other networks do not reach it", own)
	case !e.Config.PortMapping:
		return warning("set waypoint.port_mapping = true, or "+e.fixForward(own.String()),
			"the host's address %v is private; the router opens ports (%s), but the configuration forbids asking it", own, protocol)
	}
	return ok("the host's address %v is private; the agent asks the router to open the port (%s)", own, protocol)
}

// fixForward returns how to open the port by hand.
func (e *Env) fixForward(own string) string {
	_, port, err := net.SplitHostPort(e.Config.Listen)
	if err != nil {
		port = e.Config.Listen
	}
	return fmt.Sprintf("make the router forward UDP port %s to %s, or enable UPnP or PCP in its settings", port, own)
}

func (e *Env) judge(o Outside) Result {
	fix := o.Fix
	if fix == "" {
		host := "this host"
		if o.Own.IsValid() {
			host = o.Own.String()
		}
		fix = e.fixForward(host)
	}
	why := o.NAT
	if o.Problem != "" {
		why += "; " + o.Problem
	}
	switch o.Leaves {
	case nat.Reachable:
		if o.Opened {
			return ok("members reach it at %v: the router has opened the port (%s)", o.Address, o.Router)
		}
		return ok("members reach it at %v (%s)", o.Address, o.NAT)
	case nat.Punchable:
		if o.Punches {
			return optional(fix, "members reach it by hole punching, over WireGuard only, and not from behind every NAT (%s)", why)
		}
		return warning(fix, "members in other networks cannot reach it (%s)", why)
	case nat.Unreachable:
		return warning(fix, "members in other networks cannot reach it, not even by hole punching (%s)", why)
	case nat.ClientOnly:
		if e.Collective != nil && !e.Collective.Connected { // perhaps nobody is there
			return warning("check whether they run; if they do, allow outgoing UDP in this network",
				"none of %d members answered over UDP: it is blocked, or they are all down", o.Asked)
		}
		return failed("allow outgoing UDP in this network", "none of %d members answered: UDP is blocked, and nobody reaches this waypoint", o.Asked)
	}
	heard := o.Why
	if heard == "" { // an older agent
		heard = fmt.Sprintf("%d of %d members answered when they were asked where they see it", o.Answered, o.Asked)
	}
	if o.Problem != "" {
		heard += "; " + o.Problem
	}
	if o.Own.IsValid() && nat.IsPrivate(o.Own) {
		return warning(fix, "the host's address %v is private, and no router has opened the port (%s)", o.Own, heard)
	}
	return info("it is not yet known whether members can reach it: %s", heard)
}
