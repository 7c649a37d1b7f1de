package scenario

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

func (c *checker) procedures() {
	detours := slices.Concat([]Detour{NoDetour}, Kinds(), []Detour{DefaultDetour})
	seen := map[string]bool{}
	for i, p := range c.Procedures {
		path := fmt.Sprintf("procedure[%d]", i)
		c.name(path+".name", p.Name, plainName, plainNameForm)
		if p.Name == All {
			c.report(path+".name", "%q means every procedure; call this one something else", p.Name)
		} else {
			c.unique(path+".name", p.Name, seen)
		}
		transport := oneOf(c.problems, path+".transport", p.Transport, TCP, MPTCP)
		detour := oneOf(c.problems, path+".detour", p.Detour, detours...)
		if transport && detour {
			c.procedure(path, p)
			c.converting(path, p)
		}
	}
}

func (c *checker) procedure(path string, p Procedure) {
	waypoints := c.WithRole(RoleWaypoint)
	for _, v := range p.Via {
		c.known(path+".via", v, "waypoint", waypoints)
	}
	plain := p.Transport == TCP
	switch {
	case p.Detour == NoDetour && len(p.Via) > 0:
		c.report(path+".via", `has no effect without a detour; set detour to one of %s`, strings.Join(Words(Kinds()), ", "))
	case p.Detour != NoDetour && len(waypoints) == 0:
		c.report(path+".detour", "there is no waypoint; give a host the role waypoint")
	case p.Detour == DefaultDetour && c.Coordinator() != "" && len(p.Via) < len(waypoints):
		c.report(path+".via", "has no effect: with a coordinator and detour = %q clients choose among all waypoints", DefaultDetour)
	case p.Detour == DefaultDetour && plain:
		c.report(path+".detour", `a plain TCP connection takes the detour that it is told to; set transport = "mptcp", or one of %s`,
			strings.Join(Words([]Detour{Mapped, WireGuard, OpenVPN}), ", "))
	case p.Detour == InBand && plain:
		c.report(path+".detour", `a plain TCP connection cannot take an in-band detour: the server's address goes into the SYNs of subflows, `+
			`which the agent makes, and this SYN is the program's; set transport = "mptcp", or another detour`)
	case p.Detour != NoDetour && plain && len(p.Via) != 1:
		c.report(path+".via", "a TCP connection goes through one waypoint; name it: %s", list(waypoints))
	case p.Detour.IsTunnel() && plain && c.Gateway() != "":
		c.report(path+".detour", `the tunnel ends at the gateway %s, so the program cannot bind to it; use %q`, c.Gateway(), Mapped)
	case p.Detour.IsTunnel() && plain && c.Workload.Kind == Command && !says(c.Workload.ClientCommand, LocalMark):
		c.report(path+".detour", "a command must bind its socket to the tunnel: put %s for that address into workload.client_command", LocalMark)
	}
	switch {
	case plain && p.Subflows != 0:
		c.report(path+".subflows", `a TCP connection has none; remove it or set transport = "mptcp"`)
	case p.Detour == DefaultDetour && p.Subflows == 0:
	case !plain && (p.Subflows < 1 || p.Subflows > maxSubflows):
		c.report(path+".subflows", "%d is not a number from 1 to %d", p.Subflows, maxSubflows)
	case !plain && p.Detour == NoDetour && p.Subflows > 1:
		c.report(path+".subflows", `more than one needs a detour; set detour to one of %s`, strings.Join(Words(Kinds()), ", "))
	}
	c.agent(path, p)
	if client, ok := c.Host(c.ClientAgent()); ok && p.NeedsAgent() && !client.Has(RoleClient) {
		c.report(path, "needs an agent on %q; give that host the role client", client.Name)
	}
}

// agent checks a procedure's settings for the client's agent.
func (c *checker) agent(path string, p Procedure) {
	if len(p.DCol) > 0 && !p.NeedsAgent() {
		c.report(path+".dcol", "has no effect: no agent runs on the client")
	}
	if p.Restart && (p.WarmUp == 0 || !p.NeedsAgent()) {
		c.report(path+".restart", "has no effect without a warm_up, and without an agent on the client")
	}
	switch w := c.Workload; {
	case p.WarmUp == 0:
	case w.Kind == HTTP || w.Kind == Command:
		c.report(path+".warm_up", "the workload %q has no duration; workloads that can run before: %s", w.Kind,
			strings.Join(Words([]WorkloadKind{Upload, Download, Stream, Requests}), ", "))
	case p.WarmUp < 0 || w.IsTransfer() && p.WarmUp.Std()%time.Second != 0:
		c.report(path+".warm_up", "%v is not a whole number of seconds, which is all iperf3 knows", p.WarmUp)
	case w.Interval > p.WarmUp:
		c.report(path+".warm_up", "%v is shorter than the workload's interval, %v", p.WarmUp, w.Interval)
	}
}

// converting checks how a procedure uses converters.
func (c *checker) converting(path string, p Procedure) {
	if !oneOf(c.problems, path+".converter", p.Converter, ConvertNever, ConvertAuto, ConvertAlways) ||
		p.Proxy != "" && !oneOf(c.problems, path+".proxy", p.Proxy, SOCKS5, HTTPProxy) {
		return
	}
	converters := c.WithRole(RoleConverter)
	switch {
	case !p.Converts() && p.Proxy != "":
		c.report(path+".proxy", `has no effect: an agent that uses no converters has no proxy; set converter to "auto" or "always"`)
		return
	case !p.Converts() && p.Capture:
		c.report(path+".capture", `has no effect: an agent that uses no converters leads nothing to them; set converter to "auto" or "always"`)
		return
	case !p.Converts():
		return
	case p.Transport == TCP:
		c.report(path+".converter", `the client speaks MPTCP with a converter; set transport = "mptcp"`)
		return
	case len(converters) == 0:
		c.report(path+".converter", "there is no converter; give a host the role converter")
		return
	}
	if i := slices.IndexFunc(c.Hosts, func(h Host) bool { return h.Has(RoleWaypoint) && h.Has(RoleConverter) }); i >= 0 && p.Detour == DefaultDetour {
		c.report(path+".detour", "with %q what a waypoint offers is left to its agent, and by default that is no converter; "+
			"take one of the two roles from %s, or name the kind of detour", DefaultDetour, c.Hosts[i].Name)
	}
	switch w := c.Workload; {
	case p.Proxy != "" && c.Gateway() != "":
		c.report(path+".proxy", "the connections of %s are led to converters by its gateway, %s; leave out one of the two", w.Client, c.Gateway())
	case p.Capture && c.Gateway() != "":
		c.report(path+".capture", "the connections of %s are led to converters by its gateway, %s; leave out one of the two", w.Client, c.Gateway())
	case p.Capture && p.Proxy != "":
		c.report(path+".capture", "the program uses the proxy; leave out one of the two")
	case p.Proxy == "":
	case w.Kind == Upload || w.Kind == Download:
		c.report(path+".proxy", "iperf3, which makes the workload %q, cannot use a proxy; use the workload %q", w.Kind, HTTP)
	case (w.Kind == Stream || w.Kind == Requests) && p.Proxy != SOCKS5:
		c.report(path+".proxy", "the programs of the workload %q know only %q", w.Kind, SOCKS5)
	case w.Kind == Command && !says(w.ClientCommand, ProxyMark):
		c.report(path+".proxy", "a command must use the proxy: put %s for its URL into workload.client_command", ProxyMark)
	}
}

func says(argv []string, mark string) bool {
	return slices.ContainsFunc(argv, func(arg string) bool { return strings.Contains(arg, mark) })
}
