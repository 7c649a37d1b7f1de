package scenario

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/lab/middlebox"
)

// hostChecker checks one host.
type hostChecker struct {
	*checker
	host Host
	path string
}

func (c *hostChecker) check() {
	h := c.host
	c.name(c.path+".name", h.Name, hostName, hostNameForm)
	if h.Name == "localhost" {
		c.report(c.path+".name", "%q is not a name; %s", h.Name, hostNameForm)
	}
	for _, r := range h.Roles {
		oneOf(c.problems, c.path+".roles", r, RoleClient, RoleWaypoint, RoleServer, RoleRouter, RoleCoordinator, RoleConverter)
	}
	c.coordinator()
	if h.Has(RoleConverter) && h.Has(RoleClient) {
		c.report(c.path+".roles", "a client does not use a converter of its own, and the agent of %s is started for each run; use two hosts", h.Name)
	}
	c.kernel()
	if h.DCol != nil && !h.RunsAgent() {
		c.report(c.path+".dcol", "has no effect: %s runs no agent; give it the role client, waypoint, converter or coordinator", h.Name)
	}
	c.router()
	c.lan()
}

// lan checks the links to hosts for which the host is a gateway.
func (c *hostChecker) lan() {
	h := c.host
	if len(h.LAN) > 0 && (!h.Has(RoleClient) || !h.Has(RoleRouter)) {
		c.report(c.path+".lan", "a gateway forwards, and its agent uses converters: give %s the roles client and router", h.Name)
	}
	own := c.linksOf(h.Name)
	for i, name := range h.LAN {
		if c.known(c.path+".lan", name, "link of "+h.Name, own) && slices.Contains(h.LAN[:i], name) {
			c.report(c.path+".lan", "%q stands there twice", name)
		}
	}
}

// coordinator checks the role of coordinator.
func (c *hostChecker) coordinator() {
	if !c.host.Has(RoleCoordinator) {
		return
	}
	if first := c.Coordinator(); first != c.host.Name {
		c.report(c.path+".roles", "%q is the coordinator already; a collective has one", first)
	}
	if c.host.Has(RoleClient) {
		c.report(c.path+".roles", "the coordinator cannot be a client, whose agent is started for each run; use two hosts")
	}
}

// kernel checks the settings of the host's kernel.
func (c *hostChecker) kernel() {
	h := c.host
	if h.Subflows != nil && (*h.Subflows < 0 || *h.Subflows > maxSubflows) {
		c.report(c.path+".mptcp_subflows", "%d is not a number from 0 to %d", *h.Subflows, maxSubflows)
	}
	if !h.HasMPTCP() {
		if h.Has(RoleClient) {
			c.report(c.path+".mptcp", "%s is a client, whose agent needs MPTCP; leave it on", h.Name)
		}
		if h.Has(RoleConverter) {
			c.report(c.path+".mptcp", "%s is a converter, which speaks MPTCP with its clients; leave it on", h.Name)
		}
		if h.Subflows != nil {
			c.report(c.path+".mptcp_subflows", "has no effect: %s has no MPTCP", h.Name)
		}
	}
	if h.IPv6Only && h.Has(RoleRouter) {
		c.report(c.path+".ipv6_only", "%s is a router, which needs IPv4 for the others; give another host only IPv6", h.Name)
	}
	for _, key := range slices.Sorted(maps.Keys(h.Sysctls)) {
		c.sysctl(key, h.Sysctls[key])
	}
}

// sysctl checks one of the host's kernel parameters. Parameters outside of net belong to the machine, which the lab
// does not change.
func (c *hostChecker) sysctl(key string, value any) {
	if !strings.HasPrefix(key, "net.") || strings.Contains(key, "..") || strings.Contains(key, "/") {
		c.report(c.path+".sysctls", "%q is no parameter of a host; use names that begin with \"net.\", with dots and in quotes", key)
	}
	switch value.(type) {
	case string, int64:
	default:
		c.report(c.path+".sysctls", "%s: %v is neither a string nor a whole number", key, value)
	}
}

// middlebox checks a kind of middlebox. A kind may have a number.
func (c *hostChecker) middlebox(m Middlebox) {
	if m != NoMiddlebox && middlebox.Kind(m).Validate() != nil {
		oneOf(c.problems, c.path+".middlebox", m, Middleboxes()...)
	}
}

// router checks what the host does to other hosts' packets.
func (c *hostChecker) router() {
	h := c.host
	c.middlebox(h.Middlebox)
	if h.Quotes != "" {
		oneOf(c.problems, c.path+".quotes", h.Quotes, middlebox.AllQuotes()...)
	}
	if h.ICMP != "" {
		oneOf(c.problems, c.path+".icmp", h.ICMP, middlebox.AllICMP()...)
	}
	for _, key := range []struct {
		name string
		set  bool
	}{{"middlebox", h.Middlebox != NoMiddlebox}, {"nat", len(h.NAT) > 0}, {"quotes", h.Quotes != ""}, {"icmp", h.ICMP != ""}, {"balance", h.Balance}} {
		if key.set && !h.Has(RoleRouter) {
			c.report(c.path+"."+key.name, "has no effect: %s forwards nothing; give it the role router", h.Name)
		}
	}
	c.nat()
	if h.NATKind != "" {
		oneOf(c.problems, c.path+".nat_kind", h.NATKind, Symmetric, PortRestricted, AddressRestricted, FullCone)
		if len(h.NAT) == 0 {
			c.report(c.path+".nat_kind", "has no effect: %s has no NAT; say with nat which links are inside", h.Name)
		}
	}
	if len(h.NAT) == 0 && len(h.Forwards) > 0 {
		c.report(c.path+".forward", "has no effect: %s has no NAT; say with nat which links are inside", h.Name)
		return
	}
	taken := map[string]bool{}
	for i, f := range h.Forwards {
		c.forward(fmt.Sprintf("%s.forward[%d]", c.path, i), f, taken)
	}
}

// nat checks which links are inside the NAT.
func (c *hostChecker) nat() {
	own := c.linksOf(c.host.Name)
	inside := map[string]bool{}
	for _, name := range c.host.NAT {
		if !c.known(c.path+".nat", name, "link of "+c.host.Name, own) {
			continue
		}
		if inside[name] {
			c.report(c.path+".nat", "%q stands there twice", name)
		}
		inside[name] = true
	}
	if c.host.Has(RoleRouter) && len(inside) > 0 && len(inside) == len(own) {
		c.report(c.path+".nat", "all links of %s are inside; leave out those that lead to the Internet", c.host.Name)
	}
}

func (c *hostChecker) forward(path string, f Forward, taken map[string]bool) {
	oneOf(c.problems, path+".protocol", f.Protocol, ProtocolTCP, ProtocolUDP)
	if f.Port < 1 || f.Port > 65535 {
		c.report(path+".port", "%d is not a port; use 1 to 65535", f.Port)
	}
	c.known(path+".to", f.To, "host behind the NAT of "+c.host.Name, c.Inside(c.host))
	key := fmt.Sprintf("%s/%d", f.Protocol, f.Port)
	if taken[key] {
		c.report(path+".port", "%s is forwarded twice", key)
	}
	taken[key] = true
}

// variantHosts checks a variant's changes of hosts' kernel parameters and middleboxes. The network as declared must set
// the same parameters and have a middlebox there, because runs of other variants need those values.
func (c *checker) variantHosts(path string, v Variant) {
	for i, change := range v.Hosts {
		path := fmt.Sprintf("%s.host[%d]", path, i)
		if !c.known(path+".name", change.Name, "host", c.hostNames()) {
			continue
		}
		h, _ := c.Host(change.Name)
		if len(change.Sysctls) == 0 && change.Middlebox == NoMiddlebox {
			c.report(path+".sysctls", "is missing; give other values of the host's kernel parameters")
		}
		(&hostChecker{c, h, path}).middlebox(change.Middlebox)
		if change.Middlebox != NoMiddlebox && h.Middlebox == NoMiddlebox {
			c.report(path+".middlebox", "%s is no middlebox in the network as declared; make it one there", h.Name)
		}
		for _, key := range slices.Sorted(maps.Keys(change.Sysctls)) {
			if _, declared := h.Sysctls[key]; !declared {
				c.report(path+".sysctls", "%q is not among the sysctls of %s; give its value in other variants there", key, h.Name)
			}
			(&hostChecker{c, h, path}).sysctl(key, change.Sysctls[key])
		}
	}
}

// variantKinds checks a variant's kinds of detours.
func (c *checker) variantKinds(path string, v Variant) {
	for i, kind := range v.Kinds {
		oneOf(c.problems, path+".kinds", kind, Kinds()...)
		if slices.Contains(v.Kinds[:i], kind) {
			c.report(path+".kinds", "%q stands there twice", kind)
		}
	}
	byDefault := func(p Procedure) bool { return p.Detour == DefaultDetour }
	if len(v.Kinds) > 0 && !slices.ContainsFunc(c.Procedures, byDefault) {
		c.report(path+".kinds", "has no effect: no procedure has detour = %q", DefaultDetour)
	}
}

// families reports workloads between hosts that have no protocol in common, and detours that do not exist over IPv6.
func (c *checker) families(client, server Host) {
	if !client.IPv6Only && !server.IPv6Only {
		return
	}
	for i, p := range c.Procedures {
		if p.Detour == InBand {
			c.report(fmt.Sprintf("procedure[%d].detour", i), "in-band detours are for IPv4, and %s has only IPv6; use another kind",
				map[bool]string{true: client.Name, false: server.Name}[client.IPv6Only])
		}
	}
}
