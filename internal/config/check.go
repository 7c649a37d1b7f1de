package config

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/detour-collective/dcol/internal/tomlfile"
	"github.com/detour-collective/dcol/internal/units"
)

// check adds problems with values that have the right type.
func (c *Config) check(p *tomlfile.Problems) {
	if !label.MatchString(c.Name) {
		p.At("name", `%q is not a member's name: lower-case letters, digits and hyphens, as in its certificate`, c.Name)
	}
	if len(c.Roles) == 0 {
		p.At("roles", `must name at least one of "client", "waypoint", "coordinator"`)
	}
	for i, r := range c.Roles {
		if r != RoleClient && r != RoleWaypoint && r != RoleCoordinator {
			p.At("roles", `%q is not a role%s`, r, tomlfile.Nearest(string(r), []string{"client", "waypoint", "coordinator"}))
		}
		if slices.Contains(c.Roles[:i], r) {
			p.At("roles", "%q is there twice", r)
		}
	}
	levels := []string{"debug", "info", "warn", "error"}
	if !slices.Contains(levels, c.LogLevel) {
		p.At("log_level", "%q is not a level%s", c.LogLevel, tomlfile.Nearest(c.LogLevel, levels))
	}
	for key, v := range map[string]string{"certificate": c.Identity.Certificate, "key": c.Identity.Key, "ca": c.Identity.CA} {
		if v == "" {
			p.At("identity."+key, "is missing: the path of a file that `dcol ca issue` wrote")
		}
	}
	if err := checkListen(c.Session.Listen); err != nil {
		p.At("session.listen", "%v", err)
	}
	checkTunnelRanges(p, c.TunnelRanges)
	c.checkCollective(p)
	if c.Has(RoleClient) {
		c.Client.check(p)
	}
	if c.Has(RoleWaypoint) {
		c.Waypoint.check(p)
		if _, port, err := net.SplitHostPort(c.Session.Listen); err == nil && port == strconv.Itoa(c.Waypoint.OpenVPNPort) && c.Waypoint.Gives(OpenVPN) {
			p.At("waypoint.openvpn_port", "%s is the sessions' port (session.listen): OpenVPN needs one of its own", port)
		}
		if has4 := func(r netip.Prefix) bool { return r.Addr().Is4() }; c.Waypoint.Gives(OpenVPN) && !slices.ContainsFunc(c.TunnelRanges, has4) {
			p.At("tunnel_ranges", "has no IPv4 block: OpenVPN (waypoint.offers) cannot do without")
		}
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
		p.At("client.subflows", "%d is not from 1 to 8 (1: no detours)", c.Subflows)
	}
	checkKinds(p, "client.kinds", c.Kinds, "to use no detours, set subflows = 1")
	checkPorts(p, "client.tls_ports", c.TLSPorts)
	if m := c.Mptcpify; m != MptcpifyNone && m != MptcpifyHost && !filepath.IsAbs(m) {
		p.At("client.mptcpify", `%q is not "none", "host" or the path of a cgroup's folder`, m)
	}
	if c.Cgroup != "" && !filepath.IsAbs(c.Cgroup) {
		p.At("client.cgroup", `%q is not the path of a cgroup's folder ("": all programs)`, c.Cgroup)
	}
	names := map[string]bool{}
	for i, w := range c.Waypoints {
		at := fmt.Sprintf("client.waypoint[%d]", i)
		switch {
		case !label.MatchString(w.Name):
			p.At(at+".name", "%q is not a member's name: lower-case letters, digits and hyphens, as in its certificate", w.Name)
		case names[w.Name]:
			p.At(at+".name", "%q is there twice: give one entry all its addresses", w.Name)
		}
		names[w.Name] = true
		if len(w.Addresses) == 0 {
			p.At(at+".addresses", "is missing: at least one IP address of the waypoint")
		}
		for _, a := range w.Addresses {
			checkReachable(p, at+".addresses", a)
		}
		if w.Port < 1 || w.Port > 65535 {
			p.At(at+".port", "%d is not a port (1 to 65535)", w.Port)
		}
	}
}

func (w *Waypoint) check(p *tomlfile.Problems) {
	checkKinds(p, "waypoint.offers", w.Offers, "to give nothing, leave out the role")
	checkPorts(p, "waypoint.deny_ports", w.DenyPorts)
	checkPorts(p, "waypoint.openvpn_port", []int{w.OpenVPNPort})
	for key, n := range map[string]int{
		"mappings_per_member": w.MappingsPerMember, "requests_per_second": w.RequestsPerSecond,
		"tunnels_per_member": w.TunnelsPerMember,
	} {
		if n < 1 {
			p.At("waypoint."+key, "%d is not a number from 1 up; to give nothing, leave out the role", n)
		}
	}
	if w.ConnectionsPerMember < 0 {
		p.At("waypoint.connections_per_member", "%d is not a number from 0 up (0: no limit)", w.ConnectionsPerMember)
	}
	if n := w.ConnectionsPerSecond; n < 0 || n > mostOpened {
		p.At("waypoint.connections_per_second", "%d is not a number from 0 to %d (0: no limit)", n, mostOpened)
	}
	for key, r := range map[string]units.Rate{"bandwidth": w.Bandwidth, "bandwidth_per_member": w.BandwidthPerMember} {
		switch {
		case r != 0 && r < leastRate:
			p.At("waypoint."+key, "%v is less than %v, with which TCP gets nowhere; to give nothing, leave out the role", r, leastRate)
		case r > mostRate:
			p.At("waypoint."+key, `%v is more than %v, the most that the kernel can limit to: write "unlimited"`, r, mostRate)
		}
	}
	if d := w.MappingLifetime.Std(); d < 10*time.Second || d > 24*time.Hour {
		p.At("waypoint.mapping_lifetime", "%v is not from 10s to 24h", w.MappingLifetime)
	}
	if w.Log == "" {
		p.At("waypoint.log", "is empty: a waypoint must be able to say who caused what; name a file")
	}
}

// mostOpened is more new connections per second than a host forwards, and within what the kernel
// can limit.
const mostOpened = 1_000_000

const (
	leastRate units.Rate = 8_000 // a full packet every second or two
	// mostRate, with its burst, is well within the 64 bits of what nftables counts in: a second's
	// nanoseconds for each byte.
	mostRate units.Rate = 100e9
)

func checkKinds(p *tomlfile.Problems, key string, list []Kind, instead string) {
	if len(list) == 0 {
		p.At(key, "is empty: %s", instead)
	}
	var words []string
	for _, k := range kinds {
		words = append(words, string(k))
	}
	for i, k := range list {
		if !slices.Contains(kinds, k) {
			p.At(key, "%q is not a kind of detour%s", k, tomlfile.Nearest(string(k), words))
		}
		if slices.Contains(list[:i], k) {
			p.At(key, "%q is there twice", k)
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
