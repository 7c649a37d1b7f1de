package scenario

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// coordinator checks the role of that name.
func (c *checker) coordinator(path string, h Host) {
	if !h.Has(RoleCoordinator) {
		return
	}
	if first := c.Coordinator(); first != h.Name {
		c.report(path+".roles", "%q is the coordinator already; a collective has one", first)
	}
	if h.Has(RoleClient) {
		c.report(path+".roles", "the coordinator cannot be a client, whose agent is started for each run; use two hosts")
	}
}

// hostKernel checks the settings of a host's kernel.
func (c *checker) hostKernel(path string, h Host) {
	if h.Subflows != nil && (*h.Subflows < 0 || *h.Subflows > maxSubflows) {
		c.report(path+".mptcp_subflows", "%d is not a number from 0 to %d", *h.Subflows, maxSubflows)
	}
	if !h.HasMPTCP() {
		if h.Has(RoleClient) {
			c.report(path+".mptcp", "%s is a client, whose agent needs MPTCP; leave it on", h.Name)
		}
		if h.Subflows != nil {
			c.report(path+".mptcp_subflows", "has no effect: %s has no MPTCP", h.Name)
		}
	}
	if h.IPv6Only && h.Has(RoleRouter) {
		c.report(path+".ipv6_only", "%s is a router, which needs IPv4 for the others; give another host only IPv6", h.Name)
	}
	for _, key := range slices.Sorted(maps.Keys(h.Sysctls)) {
		c.sysctl(path+".sysctls", key, h.Sysctls[key])
	}
}

// sysctl checks one of a host's kernel parameters. Those beside net are the
// machine's, which the lab leaves alone.
func (c *checker) sysctl(path, key string, value any) {
	if !strings.HasPrefix(key, "net.") || strings.Contains(key, "..") || strings.Contains(key, "/") {
		c.report(path, "%q is no parameter of a host; use names that begin with \"net.\", with dots and in quotes", key)
	}
	switch value.(type) {
	case string, int64:
	default:
		c.report(path, "%s: %v is neither a string nor a whole number", key, value)
	}
}

// variantKinds checks the kinds of detours that a variant has.
func (c *checker) variantKinds(path string, v Variant) {
	for i, kind := range v.Kinds {
		c.oneOf(path+".kinds", string(kind), kindNames()...)
		if slices.Contains(v.Kinds[:i], kind) {
			c.report(path+".kinds", "%q stands there twice", kind)
		}
	}
	byDefault := func(p Procedure) bool { return p.Detour == DefaultDetour }
	if len(v.Kinds) > 0 && !slices.ContainsFunc(c.Procedures, byDefault) {
		c.report(path+".kinds", "has no effect: no procedure has detour = %q", DefaultDetour)
	}
}

// families reports workloads between hosts that have no protocol in common, and
// detours that do not exist over IPv6.
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
