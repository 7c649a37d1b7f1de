package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/tomlfile"
	"github.com/detour-collective/dcol/internal/units"
)

const (
	policiesMax = 64
	subflowsMax = 8 // the greatest number that the kernel supports for each connection
	// roundTripMax is longer than the round trip of any path that carries data.
	roundTripMax = 10 * time.Second
	// A shorter user timeout would end subflows that only lose a few packets.
	leastUserTimeout, longestUserTimeout = time.Second, time.Hour
)

func (c *Config) checkPolicies(p *tomlfile.Problems) {
	if len(c.Policies) > policiesMax {
		p.At("policy", "there are %d tables: at most %d", len(c.Policies), policiesMax)
	}
	if len(c.Policies) > 0 && !c.Has(RoleClient) {
		p.At("policy", `needs the role "client"`)
	}
	for i := range c.Policies {
		c.Policies[i].check(p, fmt.Sprintf("policy[%d]", i))
	}
}

// inactivityTimeoutMax limits the memory for connections that lost their peer.
const inactivityTimeoutMax = 24 * time.Hour

func (c *Client) checkInactivityTimeout(p *tomlfile.Problems) {
	if d := c.InactivityTimeout.Std(); d > inactivityTimeoutMax || d%time.Second != 0 {
		p.At("client.inactivity_timeout", "must be whole seconds, at most %v (0s: the host's), not %v", inactivityTimeoutMax, d)
	}
}

func (t *Policy) check(p *tomlfile.Problems, at string) {
	if !slices.Contains(policyNames, string(t.Use)) {
		p.At(at+".use", "%q is not a policy%s", t.Use, tomlfile.Nearest(string(t.Use), policyNames))
		return
	}
	if t.Cgroup != "" && !filepath.IsAbs(t.Cgroup) {
		p.At(at+".cgroup", `must be the absolute path of a cgroup's folder, or "" for all programs, not %q`, t.Cgroup)
	}
	checkPorts(p, at+".ports", t.Ports)
	checkNetworks(p, at+".networks", t.Networks)
	switch {
	case t.Subflows < 0 || t.Subflows > subflowsMax:
		p.At(at+".subflows", "must be from 1 to %d (0: the default), not %d", subflowsMax, t.Subflows)
	case t.Use == UsePorts && t.Subflows < 2:
		p.At(at+".subflows", "must be from 2 to %d for %s, not %d", subflowsMax, UsePorts, t.Subflows)
	case t.Use == UsePaths && (t.Subflows == 1 || t.Subflows == subflowsMax):
		p.At(at+".subflows", "must be from 2 to %d for %s (0: 2), not %d: they are beside the first one", subflowsMax-1, UsePaths, t.Subflows)
	case t.Use == UseSingle && t.Subflows > 0:
		p.At(at+".subflows", "remove it: with %s there is one subflow at a time", UseSingle)
	}
	for i, name := range t.Uplinks {
		if name == "" || slices.Contains(t.Uplinks[:i], name) {
			p.At(at+".uplinks", "%q is empty or listed twice: list each interface once", name)
		}
	}
	if len(t.Uplinks) > 0 && !t.OfUplinks() {
		p.At(at+".use", "uplinks are for %s, %s and %s, not for %s", UseFullMesh, UseBackup, UseSingle, t.Use)
	}
	if t.Detours && !t.OfUplinks() && t.Use != UsePaths {
		p.At(at+".use", "detours besides are for %s, %s, %s and %s, not for %s", UseFullMesh, UseBackup, UseSingle, UsePaths, t.Use)
	}
	switch {
	case t.Server != "" && t.Use != UsePaths && t.Use != UseDetours:
		p.At(at+".server", "is for %s and %s, not for %s: remove it", UsePaths, UseDetours, t.Use)
	case t.Server != "":
		checkServer(p, at+".server", t.Server)
	}
	if d := t.AboveRTT.Std(); d > roundTripMax {
		p.At(at+".above_rtt", "must be at most %v (0s: none), not %v", roundTripMax, d)
	}
	for name, rate := range t.Limit {
		if name == "" {
			p.At(at+".limit", `needs the name of an interface or a waypoint, such as limit = { wwan0 = "4mbit" }`)
		}
		checkLimit(p, at+".limit."+name, rate)
	}
	checkLimit(p, at+".near_quota", t.NearQuota)
	if t.Traffic != "" && !slices.Contains(trafficNames, string(t.Traffic)) {
		p.At(at+".traffic", `%q is not a kind of traffic%s: it must be "short", "bulk" or "messages", or "" to find it`, t.Traffic, tomlfile.Nearest(string(t.Traffic), trafficNames))
	}
	if t.Announce && t.RefuseJoins {
		p.At(at+".announce", "remove it, or refuse_joins: who is told of an address may join there")
	}
	if t.NearQuota.On && len(t.Quota) == 0 {
		p.At(at+".near_quota", `needs quotas, such as quota = { wwan0 = "500MB" }`)
	}
	if d := t.UserTimeout.Std(); d > 0 && (d < leastUserTimeout || d > longestUserTimeout) {
		p.At(at+".user_timeout", "must be from %v to %v (0s: the kernel's), not %v", leastUserTimeout, longestUserTimeout, d)
	}
	if t.QuotaEvery > 0 && len(t.Quota) == 0 {
		p.At(at+".quota_every", `needs quotas, such as quota = { wwan0 = "500MB" }`)
	}
}

// checkLimit reports a limit with which a subflow would hold up its connection for minutes.
func checkLimit(p *tomlfile.Problems, key string, limit units.Cap) {
	if limit.On && limit.Rate != 0 && limit.Rate < int64(leastRate) {
		p.At(key, `must be at least %v, because TCP does not work below that, not %v; to use no subflows on the path, write "0"`, leastRate, limit)
	}
}
