package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"

	"github.com/detour-collective/dcol/internal/tomlfile"
)

// congestionName matches the names that the kernel has room for.
var congestionName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,14}$`)

// congestionMax bounds the tables; with their ports and networks, the kernel's program looks at 64 for a cgroup.
const congestionMax = 64

func (c *Config) checkCongestion(p *tomlfile.Problems) {
	if len(c.Congestion) > congestionMax {
		p.At("congestion", "there are %d tables: at most %d", len(c.Congestion), congestionMax)
	}
	for i, t := range c.Congestion {
		at := fmt.Sprintf("congestion[%d]", i)
		if !congestionName.MatchString(t.Use) {
			p.At(at+".use", `must be "lia", "olia", "balia" or one of the kernel's (sysctl net.ipv4.tcp_available_congestion_control), not %q`, t.Use)
		}
		if t.Cgroup != "" && !filepath.IsAbs(t.Cgroup) {
			p.At(at+".cgroup", `must be the absolute path of a cgroup's folder, or "" for all programs, not %q`, t.Cgroup)
		}
		checkPorts(p, at+".ports", t.Ports)
		checkNetworks(p, at+".networks", t.Networks)
		if n := max(1, len(t.Ports)) * max(1, len(t.Networks)); n > congestionMax {
			p.At(at, "has %d combinations of ports and networks: at most %d", n, congestionMax)
		}
	}
}

func checkNetworks(p *tomlfile.Problems, key string, networks []netip.Prefix) {
	for _, n := range networks {
		if n != n.Masked() {
			p.At(key, "%v has bits beyond its length: write %v", n, n.Masked())
		}
	}
}
