package config

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/loglevel"
	"github.com/detour-collective/dcol/internal/tomlfile"
	"github.com/detour-collective/dcol/internal/units"
)

// check adds problems with values that have the right type.
func (c *Config) check(p *tomlfile.Problems) {
	if !label.MatchString(c.Name) {
		p.At("name", `%q is not a member's name: lower-case letters, digits and hyphens, as in its certificate`, c.Name)
	}
	if len(c.Roles) == 0 {
		p.At("roles", `must name at least one of "client", "waypoint", "coordinator", "router"`)
	}
	for i, r := range c.Roles {
		if r != RoleClient && r != RoleWaypoint && r != RoleCoordinator && r != RoleRouter {
			p.At("roles", `%q is not a role%s`, r, tomlfile.Nearest(string(r), []string{"client", "waypoint", "coordinator", "router"}))
		}
		if slices.Contains(c.Roles[:i], r) {
			p.At("roles", "%q is listed twice", r)
		}
	}
	if !slices.Contains(loglevel.Words, c.LogLevel) {
		p.At("log_level", "%q is not a level%s", c.LogLevel, tomlfile.Nearest(c.LogLevel, loglevel.Words))
	}
	for key, v := range map[string]string{"certificate": c.Identity.Certificate, "key": c.Identity.Key, "ca": c.Identity.CA} {
		if v == "" {
			p.At("identity."+key, "is missing: name a file that `dcol ca issue` wrote")
		}
	}
	if err := checkListen(c.Session.Listen); err != nil {
		p.At("session.listen", "%v", err)
	}
	if c.Metrics.Listen != "" {
		if err := checkListen(c.Metrics.Listen); err != nil {
			p.At("metrics.listen", "%v", err)
		}
	}
	checkTunnelRanges(p, c.TunnelRanges)
	c.checkCollective(p)
	c.checkPolicies(p)
	c.checkCongestion(p)
	c.Options.check(p)
	c.Trace.check(p)
	if c.Has(RoleClient) {
		c.Client.check(p)
		c.checkSteering(p)
		c.checkIncoming(p)
	}
	if c.Has(RoleRouter) {
		c.Router.check(p)
	}
	if c.Has(RoleWaypoint) {
		c.Waypoint.check(p)
		if _, port, err := net.SplitHostPort(c.Session.Listen); err == nil && port == strconv.Itoa(c.Waypoint.OpenVPNPort) && c.Waypoint.Gives(OpenVPN) {
			p.At("waypoint.openvpn_port", "%s is the sessions' port (session.listen): choose another port for OpenVPN", port)
		}
		if has4 := func(r netip.Prefix) bool { return r.Addr().Is4() }; c.Waypoint.Gives(OpenVPN) && !slices.ContainsFunc(c.TunnelRanges, has4) {
			p.At("tunnel_ranges", "has no IPv4 block, which OpenVPN needs: add one, or remove openvpn from waypoint.offers")
		}
	}
}

// mostTraceRate is the greatest rate of packets, per second, for traces of other members.
const mostTraceRate = 1000

func (t *Trace) check(p *tomlfile.Problems) {
	if t.Rate < 1 || t.Rate > mostTraceRate {
		p.At("trace.rate", "must be from 1 to %d packets per second, not %d", mostTraceRate, t.Rate)
	}
	if t.Destinations < 1 {
		p.At("trace.destinations_per_day", "must be at least 1, not %d; to trace for nobody, set vantage_point = false", t.Destinations)
	}
}

func checkListen(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf(`%q is not an address to listen on, such as ":45672" or "192.0.2.7:45672"`, addr)
	}
	if host != "" && net.ParseIP(host) == nil {
		return fmt.Errorf("%q is not an IP address", host)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%q is not a port (1 to 65535)", port)
	}
	return nil
}

func (c *Client) check(p *tomlfile.Problems) {
	// The kernel supports 8 subflows for each connection.
	if c.Subflows < 1 || c.Subflows > 8 {
		p.At("client.subflows", "must be from 1 to 8 (1: no detours), not %d", c.Subflows)
	}
	checkKinds(p, "client.kinds", kinds, c.Kinds, "to use no detours, set subflows = 1")
	if c.Selection != SelectWorth && c.Selection != SelectOldest {
		p.At("client.selection", `must be "worth" or "oldest", not %q`, c.Selection)
	}
	checkPorts(p, "client.tls_ports", c.TLSPorts)
	checkPorts(p, "client.bulk_ports", c.BulkPorts)
	checkPorts(p, "client.message_ports", c.MessagePorts)
	for _, port := range c.MessagePorts {
		if slices.Contains(c.BulkPorts, port) {
			p.At("client.message_ports", "%d is in client.bulk_ports, too: remove it from one of them", port)
		}
	}
	c.Converter.check(p)
	if c.Converter.Tunnel == WireGuard && !c.Uses(WireGuard) {
		p.At("client.converter.tunnel", `is "wireguard", and client.kinds has no "wireguard", so that there are no such tunnels: add it there`)
	}
	c.Budget.check(p)
	c.checkInactivityTimeout(p)
	if m := c.Mptcpify; m != MptcpifyNone && m != MptcpifyHost && !filepath.IsAbs(m) {
		p.At("client.mptcpify", `must be "none", "host" or the absolute path of a cgroup's folder, not %q`, m)
	}
	if c.Cgroup != "" && !filepath.IsAbs(c.Cgroup) {
		p.At("client.cgroup", `must be the absolute path of a cgroup's folder, or "" for all programs, not %q`, c.Cgroup)
	}
	names := map[string]bool{}
	for i, w := range c.Waypoints {
		at := fmt.Sprintf("client.waypoint[%d]", i)
		switch {
		case !label.MatchString(w.Name):
			p.At(at+".name", "%q is not a member's name: lower-case letters, digits and hyphens, as in its certificate", w.Name)
		case names[w.Name]:
			p.At(at+".name", "%q is listed twice: put all its addresses into one entry", w.Name)
		}
		names[w.Name] = true
		if len(w.Addresses) == 0 {
			p.At(at+".addresses", "is missing: name at least one IP address of the waypoint")
		}
		for _, a := range w.Addresses {
			checkReachable(p, at+".addresses", a)
		}
		if w.Port < 1 || w.Port > 65535 {
			p.At(at+".port", "%d is not a port (1 to 65535)", w.Port)
		}
	}
}

func (b *Budget) check(p *tomlfile.Problems) {
	switch {
	case len(b.Interfaces) > 0 && b.Metered == 0:
		p.At("client.budget.metered_interfaces", `needs client.budget.metered, such as "1GB" ("1B": no detours from there)`)
	case len(b.Interfaces) == 0 && b.Metered > 0:
		p.At("client.budget.metered", `needs client.budget.metered_interfaces, such as ["wwan0"]`)
	}
	for i, name := range b.Interfaces {
		if name == "" || len(name) > 15 || strings.ContainsAny(name, "/ ") {
			p.At("client.budget.metered_interfaces", "%q is not the name of an interface; `ip link` lists them", name)
		}
		if slices.Contains(b.Interfaces[:i], name) {
			p.At("client.budget.metered_interfaces", "%q is listed twice", name)
		}
	}
}

// checkSteering checks which waypoints must be used and which must not.
func (c *Config) checkSteering(p *tomlfile.Problems) {
	for key, names := range map[string][]string{"client.use": c.Client.Use, "client.avoid": c.Client.Avoid} {
		for i, name := range names {
			switch {
			case !label.MatchString(name):
				p.At(key, "%q is not a member's name: lower-case letters, digits and hyphens, as in its certificate", name)
			case name == c.Name:
				p.At(key, "%q is this host itself: name other members", name)
			case slices.Contains(names[:i], name):
				p.At(key, "%q is listed twice", name)
			}
		}
	}
	for _, name := range c.Client.Use {
		if slices.Contains(c.Client.Avoid, name) {
			p.At("client.avoid", "%q is in client.use, too: remove it from one of them", name)
		}
	}
	if c.Client.UseOnly && len(c.Client.Use) == 0 {
		p.At("client.use_only", "needs at least one waypoint in client.use; to use no detours, set subflows = 1")
	}
}

func (w *Waypoint) check(p *tomlfile.Problems) {
	checkKinds(p, "waypoint.offers", append(slices.Clone(kinds), Converter), w.Offers, "to offer nothing, remove the role")
	checkPorts(p, "waypoint.deny_ports", w.DenyPorts)
	checkPorts(p, "waypoint.openvpn_port", []int{w.OpenVPNPort})
	checkPorts(p, "waypoint.converter_port", []int{w.ConverterPort})
	w.checkIncoming(p)
	if w.ConverterFastOpen && !w.Gives(Converter) {
		p.At("waypoint.converter_fast_open", `needs "converter" in waypoint.offers`)
	}
	for key, n := range map[string]int{
		"mappings_per_member": w.MappingsPerMember, "requests_per_second": w.RequestsPerSecond,
		"tunnels_per_member": w.TunnelsPerMember,
	} {
		if n < 1 {
			p.At("waypoint."+key, "must be at least 1, not %d; to offer nothing, remove the role", n)
		}
	}
	if w.ConnectionsPerMember < 0 {
		p.At("waypoint.connections_per_member", "must be at least 0 (0: no limit), not %d", w.ConnectionsPerMember)
	}
	if n := w.ConnectionsPerSecond; n < 0 || n > mostOpened {
		p.At("waypoint.connections_per_second", "must be from 0 to %d (0: no limit), not %d", mostOpened, n)
	}
	for key, r := range map[string]units.Rate{"bandwidth": w.Bandwidth, "bandwidth_per_member": w.BandwidthPerMember} {
		switch {
		case r != 0 && r < leastRate:
			p.At("waypoint."+key, "must be at least %v, because TCP does not work below that, not %v; to offer nothing, remove the role", leastRate, r)
		case r > mostRate:
			p.At("waypoint."+key, `must be at most %v, the kernel's maximum, not %v; for no limit write "unlimited"`, mostRate, r)
		}
	}
	if d := w.MappingLifetime.Std(); d < 10*time.Second || d > 24*time.Hour {
		p.At("waypoint.mapping_lifetime", "must be from 10s to 24h, not %v", w.MappingLifetime)
	}
	named := make(map[string]bool)
	for i, m := range w.Members {
		key := fmt.Sprintf("waypoint.member[%d]", i)
		switch {
		case !label.MatchString(m.Name):
			p.At(key+".name", "%q is not a member's name: lower-case letters, digits and hyphens, as in its certificate", m.Name)
		case named[m.Name]:
			p.At(key+".name", "%q is listed twice: put all its terms into one table", m.Name)
		}
		named[m.Name] = true
		checkPorts(p, key+".ports", m.Ports)
	}
	if w.Log == "" {
		p.At("waypoint.log", "is empty: name a file, because a waypoint must log which member caused which connection")
	}
}

// mostOpened is the greatest limit of new connections per second. It is more than a host forwards, and within the range
// that the kernel can limit.
const mostOpened = 1_000_000

const (
	leastRate units.Rate = 8_000 // a full packet every second or two
	// mostRate, with its burst, is well within 64 bits of the unit in which nftables counts: the nanoseconds of a
	// second for each byte.
	mostRate units.Rate = 100e9
)

func checkKinds(p *tomlfile.Problems, key string, known, list []Kind, instead string) {
	if len(list) == 0 {
		p.At(key, "is empty: %s", instead)
	}
	var words []string
	for _, k := range known {
		words = append(words, string(k))
	}
	for i, k := range list {
		if !slices.Contains(known, k) {
			p.At(key, "%q is not a kind of detour%s", k, tomlfile.Nearest(string(k), words))
		}
		if slices.Contains(list[:i], k) {
			p.At(key, "%q is listed twice", k)
		}
	}
}

func checkPorts(p *tomlfile.Problems, key string, ports []int) {
	for _, n := range ports {
		if n < 1 || n > 65535 {
			p.At(key, "%d is not a port (1 to 65535)", n)
		}
	}
}
