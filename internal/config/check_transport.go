package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"time"

	"github.com/detour-collective/dcol/internal/tcpopt"
	"github.com/detour-collective/dcol/internal/tomlfile"
	"github.com/detour-collective/dcol/internal/units"
)

// congestionName matches the names that the kernel has room for.
var congestionName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,14}$`)

// congestionMax limits the number of tables. The kernel's program looks at 64 combinations of ports and networks for a
// cgroup.
const congestionMax = 64

func (c *Config) checkCongestion(p *tomlfile.Problems) {
	if len(c.Congestion) > congestionMax {
		p.At("congestion", "there are %d tables: at most %d", len(c.Congestion), congestionMax)
	}
	for i, t := range c.Congestion {
		t.check(p, fmt.Sprintf("congestion[%d]", i))
	}
}

// Check returns an error if the table is not allowed in a configuration.
func (t *Congestion) Check() error {
	p := tomlfile.Decode("request", nil, &Config{})
	t.check(p, "congestion")
	return p.Err()
}

func (t *Congestion) check(p *tomlfile.Problems, at string) {
	if !congestionName.MatchString(t.Use) {
		p.At(at+".use", `must be "lia", "olia", "balia", "wvegas" or one of the kernel's (sysctl net.ipv4.tcp_available_congestion_control), not %q`, t.Use)
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

func checkNetworks(p *tomlfile.Problems, key string, networks []netip.Prefix) {
	for _, n := range networks {
		if n != n.Masked() {
			p.At(key, "%v has bits beyond its length: write %v", n, n.Masked())
		}
	}
}

// Bounds of [options].
const (
	leastTimeout = time.Second
	windowMax    = 1000 // segments; more would fill the queues of most paths at once
	delayMin     = 2    // percent; what the option holds
	delayMax     = 398
	segmentsMax  = 255
	networksMax  = 256
)

func (o *Options) check(p *tomlfile.Problems) {
	checkNetworks(p, "options.networks", o.Networks)
	checkNetworks(p, "options.accept.trusted", o.Accept.Trusted)
	for key, list := range map[string][]netip.Prefix{"networks": o.Networks, "accept.trusted": o.Accept.Trusted} {
		if len(list) > networksMax {
			p.At("options."+key, "has %d networks: at most %d", len(list), networksMax)
		}
	}
	o.Ask.check(p)
	checkRate(p, "options.accept.rate_min", o.Accept.RateMin)
	a := o.Accept
	if most := a.UserTimeoutMax.Std(); most != 0 && (a.UserTimeoutMin.Std() < leastTimeout || most < a.UserTimeoutMin.Std() || most > tcpopt.UserTimeoutMax) {
		p.At("options.accept.user_timeout_max", "must be from user_timeout_min, which is at least 1s, to %v, not %v", tcpopt.UserTimeoutMax, most)
	}
	for _, name := range a.Congestion {
		checkNumbered(p, "options.accept.congestion", name)
	}
	if n := a.InitialWindow; n < 0 || n > windowMax {
		p.At("options.accept.initial_window", "must be from 1 to %d segments (0: none is granted), not %d", windowMax, n)
	}
	if (a.InitialWindow > 0) != (len(a.Trusted) > 0) {
		p.At("options.accept.initial_window", "needs networks in trusted, and trusted needs initial_window: a stranger could have this host flood a third one")
	}
}

// checkRate reports a rate that the option cannot hold.
func checkRate(p *tomlfile.Problems, key string, rate units.Cap) {
	if rate.On && (rate.Rate < tcpopt.RateUnit || rate.Rate > tcpopt.RateMax) {
		p.At(key, `must be from %v to %v, or "unlimited" (none), not %v`, units.Rate(tcpopt.RateUnit), units.Rate(tcpopt.RateMax), rate)
	}
}

func (a *AskOptions) check(p *tomlfile.Problems) {
	checkRate(p, "options.ask.rate", a.Rate)
	if d := a.UserTimeout.Std(); d != 0 && (d < leastTimeout || d > tcpopt.UserTimeoutMax) {
		p.At("options.ask.user_timeout", "must be from %v to %v (0s: it is not asked for), not %v", leastTimeout, tcpopt.UserTimeoutMax, d)
	}
	if a.Congestion != "" {
		checkNumbered(p, "options.ask.congestion", a.Congestion)
	}
	if n := a.InitialWindow; n < 0 || n > windowMax {
		p.At("options.ask.initial_window", "must be from 1 to %d segments (0: it is not asked for), not %d", windowMax, n)
	}
	if n := a.AckDelay; n != 0 && (n < delayMin || n > delayMax) {
		p.At("options.ask.ack_delay", "must be from %d to %d percent (0: it is not asked for), not %d", delayMin, delayMax, n)
	}
	if n := a.AckSegments; n < 0 || n > segmentsMax || (n > 0) != (a.AckDelay > 0) {
		p.At("options.ask.ack_segments", "must be from 1 to %d with ack_delay, and 0 without, not %d", segmentsMax, n)
	}
}

// checkNumbered reports a congestion control that has no number in the option.
func checkNumbered(p *tomlfile.Problems, key, name string) {
	if _, ok := tcpopt.CongestionNumber(name); !ok {
		p.At(key, "%q has no number in the option%s", name, tomlfile.Nearest(name, tcpopt.CongestionNames()))
	}
}
