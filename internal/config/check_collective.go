package config

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/detour-collective/dcol/internal/tomlfile"
)

// maxChosen bounds the number of waypoints chosen from the directory. Each needs a session, and an
// interface for each kind of tunnel.
const maxChosen = 32

// word matches a region.
var word = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

func (c *Config) checkCollective(p *tomlfile.Problems) {
	m := c.Collective
	for i, s := range m.Coordinators {
		checkServer(p, fmt.Sprintf("collective.coordinators[%d]", i), s)
	}
	if m.Joined() && c.Identity.CRL == "" {
		p.At("identity.crl", "is missing: name the file with the revocation lists")
	}
	if m.Waypoints < 0 || m.Waypoints > maxChosen {
		p.At("collective.waypoints", "must be from 0 to %d (0: only those in this file), not %d", maxChosen, m.Waypoints)
	}
	for _, a := range m.Addresses {
		checkReachable(p, "collective.addresses", a)
	}
	if m.Region != "" && !word.MatchString(m.Region) {
		p.At("collective.region", "must be a word of at most 32 characters a-z, 0-9 and '-', not %q", m.Region)
	}
	if c.Has(RoleCoordinator) {
		c.Coordinator.check(p)
		if !m.Joined() {
			p.At("collective.coordinators", "is missing: name this host too, as in %q, because a coordinator is a member of its collective", c.Name+"@192.0.2.1:45672")
		}
	}
}

func checkReachable(p *tomlfile.Problems, key string, a netip.Addr) {
	if a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a.Is4In6() {
		p.At(key, "%v is not an address at which a waypoint can be reached", a)
	}
}

// checkServer checks a member's name with its address.
func checkServer(p *tomlfile.Problems, key, s string) {
	name, address, ok := strings.Cut(s, "@")
	host, port, err := net.SplitHostPort(address)
	switch n, numErr := strconv.Atoi(port); {
	case !ok || err != nil || host == "":
		p.At(key, `%q is not NAME@HOST:PORT, such as "hub@192.0.2.1:45672"`, s)
	case !label.MatchString(name):
		p.At(key, "%q is not a member's name: lower-case letters, digits and hyphens, as in its certificate", name)
	case numErr != nil || n < 1 || n > 65535:
		p.At(key, "%q is not a port (1 to 65535)", port)
	}
}

func (c *Coordinator) check(p *tomlfile.Problems) {
	if c.Dir == "" {
		p.At("coordinator.dir", "is empty: name the directory that `dcol init` created")
	}
	ports := map[string]string{}
	for _, l := range []struct{ key, addr string }{{"listen", c.Listen}, {"bus_listen", c.BusListen}} {
		if err := checkListen(l.addr); err != nil {
			p.At("coordinator."+l.key, "%v", err)
			continue
		}
		_, port, _ := net.SplitHostPort(l.addr)
		if other, taken := ports[port]; taken {
			p.At("coordinator."+l.key, "%s is also the port of coordinator.%s: choose another", port, other)
		}
		ports[port] = l.key
	}
	if len(c.Addresses) == 0 {
		p.At("coordinator.addresses", "is missing: name at least one host name or IP address at which members reach this host")
	}
	for i, s := range c.BusServers {
		checkServer(p, fmt.Sprintf("coordinator.bus_servers[%d]", i), s)
	}
}
