package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Converting describes the use of others' converters, as the agent reports it.
type Converting struct {
	Wanted   bool // for some servers
	Admitted int  // converters that admit this host, and to which its relay connects
	// Offered lists the waypoints in use that offer a converter.
	Offered []string
	// Refused lists the converters that do not admit this host, each with the reason, such as "bob: too many tunnels".
	Refused []string
	// Excluded lists the converters that admit this host, but to which connections get no detours, each with its
	// address, such as "bob at 10.0.0.7".
	Excluded []string
}

// Converter describes this waypoint's converter, as the agent reports it.
type Converter struct {
	Listen  string // empty: it does not run
	Problem string // why it does not listen
}

// kindConverter is the kind in waypoint.offers.
const kindConverter = "converter"

func converterChecks() []Check {
	offers := func(c Config, kind string) bool { return c.offers(kind) }
	takes := func(c Config, kind string) bool {
		return c.Client && c.SendsFastOpen || c.offers(kind) && c.TakesFastOpen
	}
	return []Check{
		{"converters", "Converters to use", checkConverters},
		{"converter", "Converter for others", wanting(offers, "does not offer a converter", checkConverter, kindConverter)},
		{"converter-pause", "Sending after a pause", wanting(offers, "does not offer a converter", checkPause, kindConverter)},
		{"fast-open", "TCP Fast Open", wanting(takes, "keeps data out of SYNs (fast_open, converter_fast_open)", checkFastOpen, kindConverter)},
	}
}

func checkConverters(_ context.Context, e *Env) Result {
	switch c := e.Converting; {
	case e.AgentUnasked != nil:
		return skipped("the running agent could not be asked")
	case c == nil:
		return skipped("no agent with the client role runs")
	case !c.Wanted:
		return skipped("none is wanted: dcol convert is never")
	case c.Admitted == 0 && len(c.Refused) > 0:
		return warning("ask the operator about the reason, or use another waypoint that offers one",
			"offered, but this host cannot use it (%s): servers without MPTCP get no detours", strings.Join(c.Refused, "; "))
	case c.Admitted == 0 && len(c.Offered) > 0:
		return warning("wait a moment, then look at dcol status, which names the problem if there is one",
			"the converter of %s is not ready: servers without MPTCP get no detours", strings.Join(c.Offered, " or "))
	case c.Admitted == 0:
		return warning(`ask the operator of a waypoint to add "converter" to waypoint.offers, or stop asking: dcol convert never`,
			"wanted, but no waypoint in use offers one to this host: servers without MPTCP get no detours")
	case len(c.Excluded) > 0:
		return warning("take their addresses out of client.exclude", "admitted to %d, but connections to some get no detours, because client.exclude has their addresses: %s", c.Admitted, strings.Join(c.Excluded, ", "))
	case len(c.Refused) > 0:
		return ok("admitted to %d, and not to others (%s)", c.Admitted, strings.Join(c.Refused, "; "))
	default:
		return ok("admitted to %d", c.Admitted)
	}
}

func checkConverter(_ context.Context, e *Env) Result {
	switch c := e.Converter; {
	case e.AgentUnasked != nil:
		return skipped("the running agent could not be asked")
	case !e.AgentRuns:
		return skipped("no agent runs")
	case c == nil || c.Listen == "":
		return warning(e.restartAgent(), "offered, but the relay does not serve it")
	case c.Problem != "":
		return warning("free the port, or choose another one: waypoint.converter_port", "offered, but it does not listen at %s: %s", c.Listen, c.Problem)
	default:
		return ok("listens at %s", c.Listen)
	}
}

// Bits of the sysctl net.ipv4.tcp_fastopen.
const (
	fastOpenClient   = 0x1
	fastOpenServer   = 0x2
	fastOpenNoCookie = 0x4 // of the client
)

// checkFastOpen checks whether the kernel can send and receive messages to converters in SYNs.
func checkFastOpen(_ context.Context, e *Env) Result {
	const name = "net.ipv4.tcp_fastopen"
	value, err := e.sysctlInt("net/ipv4/tcp_fastopen")
	if err != nil {
		return skipped("cannot read %s: %v", name, err)
	}
	sends, takes := e.Config.Client && e.Config.SendsFastOpen, e.Config.offers(kindConverter) && e.Config.TakesFastOpen
	var old error // the kernel's MPTCP listeners cannot take data in SYNs
	if takes {
		if err := e.System.TryFastOpen(); err != nil && !errors.Is(err, errCannotTry) {
			takes, old = false, err
		}
	}
	want, why := value, []string{}
	if sends && value&fastOpenClient == 0 {
		want |= fastOpenClient
		why = append(why, "no SYN to a converter has data")
	}
	if sends && value&fastOpenNoCookie != 0 {
		want &^= fastOpenNoCookie
		why = append(why, "data goes in SYNs to hosts that have given no cookie, and MPTCP connections to those that want one become plain TCP")
	}
	if takes && value&fastOpenServer == 0 {
		want |= fastOpenServer
		why = append(why, "the converter takes no data from SYNs")
	}
	set := fmt.Sprintf("sysctl -w %s=%d, and the same line in a file of /etc/sysctl.d", name, want)
	const upgrade = "boot Linux 6.2 or later, or remove waypoint.converter_fast_open"
	const cannot = "the converter takes no data from SYNs: MPTCP listeners of this kernel do not support it"
	switch {
	case old != nil && len(why) > 0:
		return warning(upgrade+"; and "+set, cannot+" (%v); %s is %d: %s", old, name, value, strings.Join(why, "; "))
	case old != nil:
		return warning(upgrade, cannot+" (%v)", old)
	case len(why) > 0:
		return warning(set, "%s is %d: %s", name, value, strings.Join(why, "; "))
	}
	return ok("%s is %d", name, value)
}

// checkPause checks whether connections of the converter start with a small congestion window again after each pause
// (RFC 2861). This slows MPTCP connections down more than TCP's (docs/kernel-behaviour.md).
func checkPause(_ context.Context, e *Env) Result {
	const name = "net.ipv4.tcp_slow_start_after_idle"
	switch value, err := e.sysctlInt("net/ipv4/tcp_slow_start_after_idle"); {
	case err != nil:
		return skipped("cannot read %s: %v", name, err)
	case value == 0:
		return ok("continues with the congestion window from before the pause (%s)", name)
	}
	return optional("sysctl -w "+name+"=0",
		"begins with a small congestion window, so answers of servers after a pause take longer over MPTCP than over TCP (docs/kernel-behaviour.md#a-server-that-sends-after-a-pause)")
}
