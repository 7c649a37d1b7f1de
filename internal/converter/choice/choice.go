// Package choice decides which connections go through a converter, and through which. It does no input or output, and is
// told the time.
//
// Its caller asks Choose for each connection, or Table for all. It reports the outcome (Carried, Failed, Unserved,
// Refused, Unreached), which changes later decisions (outcomes.go). account.go has the outcomes that count for one client
// only. excluded.go has the addresses that are excluded by a name. fastopen.go decides which connections have their message in the SYN.
package choice

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/converter/known"
)

// Mode selects the servers to which connections go through a converter.
type Mode int

// The modes of the configuration.
const (
	Never  Mode = iota
	Auto        // to servers that are known to speak plain TCP
	Always      // to all servers except those that are known to speak MPTCP
)

// Policy holds the user's settings.
type Policy struct {
	Mode            Mode
	ExcludePrefixes []netip.Prefix // such as private networks
	ExcludePorts    []uint16       // of servers
	ExcludeDomains  []string       // with all names below them
	// KeepIPv6 makes direct connections of a LAN's hosts come from the hosts' own IPv6 addresses.
	KeepIPv6 bool
	// FastOpen makes messages to converters go in the SYN, on paths where that works.
	FastOpen bool
}

// ExcludesName reports whether a name is an excluded domain, or below one.
func (p Policy) ExcludesName(name string) bool {
	name = strings.TrimSuffix(name, ".")
	for _, d := range p.ExcludeDomains {
		d = strings.TrimSuffix(d, ".")
		above, isSuffix := len(name)-len(d), len(name) >= len(d) && strings.EqualFold(name[len(name)-len(d):], d)
		if isSuffix && (above == 0 || name[above-1] == '.') {
			return true
		}
	}
	return false
}

const (
	serversMost = 16 << 10
	timesMost   = 16 << 10
	missedMost  = 16 << 10

	// timesFor is the time for which a measured time counts, because routes change.
	timesFor = time.Hour

	backoffLeast = 5 * time.Second
	backoffMost  = 5 * time.Minute

	// unservedFor is the time for which a converter that did not serve a connection to a server is not asked for that
	// server again. RFC 8803 wants the same after its error 64 (no resources).
	unservedFor = 30 * time.Second
	// UnreachedFor is the time for which connections go directly to a server that was reached neither through a
	// converter nor directly. Programs then get the kernel's own error. From a relay, which accepts a connection first,
	// they would get a reset.
	UnreachedFor = 10 * time.Second
	// refusalsMost is the number of different servers in a row after which a converter that refuses them all counts as
	// failed. It is more than one or two, because a program may have used up the converter's ports to a server.
	refusalsMost = 4
	// suspectPause is the least time between two questions to a converter whether it works.
	suspectPause = 3 * time.Second

	// trustFor is the time for which a converter that has just worked is trusted (see Trust). trustAnswers is the time
	// that a converter has to show that it still works once Trust allowed a connection, so that few connections trust
	// one that has ended or is frozen.
	trustFor     = 10 * time.Second
	trustAnswers = 500 * time.Millisecond
)

// Choice decides for one host. New makes it. It is not safe for concurrent use.
type Choice struct {
	policy     Policy
	servers    *known.Servers
	excluded   excluded
	times      *known.Map[way, time.Duration] // measured round-trip times to the server
	unserved   *known.Map[way, struct{}]      // ways that led to no connection, whoever the client was
	unreached  *known.Map[netip.AddrPort, struct{}]
	fast       *known.Map[path, fastPath]
	own        *Account // of this host
	accounts   *known.Map[Who, *Account]
	converters []*converter
}

// way is the way to a server through a converter.
type way struct {
	converter netip.AddrPort
	server    netip.Addr
}

type converter struct {
	addr      netip.AddrPort
	rtt       time.Duration // to it; zero: not measured
	backoff   time.Duration // zero: it works
	until     time.Time     // until then it is not used for new connections
	worked    time.Time     // when it last connected to a server
	trusted   time.Time     // when Trust first allowed it since it worked; zero: not yet
	suspected time.Time     // when Suspect last let it be asked
	refused   []netip.Addr  // at most refusalsMost servers that it refused since it last connected to one
}

// New returns a Choice without converters.
func New(p Policy) *Choice {
	return &Choice{
		policy:    withOwn(p),
		servers:   known.NewServers(serversMost),
		excluded:  newExcluded(),
		times:     known.NewMap[way, time.Duration](timesMost),
		unserved:  known.NewMap[way, struct{}](timesMost),
		unreached: known.NewMap[netip.AddrPort, struct{}](missedMost),
		fast:      known.NewMap[path, fastPath](fastPathsMost),
		own:       newAccount(ownServersMost),
		accounts:  known.NewMap[Who, *Account](accountsMost),
	}
}

// SetPolicy changes the user's settings. What was learned remains, except about names that are no longer excluded.
func (c *Choice) SetPolicy(p Policy) {
	c.policy = withOwn(p)
	c.endExclusions()
}

// portFTP is the port of FTP's control connections. Its servers may refuse data connections from another address (RFC 2577).
// Auto would convert the control connection alone, because the data connection's port is new each time.
const portFTP = 21

// withOwn adds to a policy what is excluded without the user's asking.
func withOwn(p Policy) Policy {
	p.ExcludePorts = slices.Concat(NeverPorts, p.ExcludePorts)
	p.ExcludePrefixes = ExcludedNetworks(p.ExcludePrefixes)
	if p.Mode == Auto {
		p.ExcludePorts = append(p.ExcludePorts, portFTP)
	}
	return p
}

// SetConverters replaces the known converters. If nothing is known about several converters, the first of them is
// preferred. What was learned about converters that remain is kept.
func (c *Choice) SetConverters(addrs []netip.AddrPort) {
	var list []*converter
	for _, addr := range addrs {
		if slices.ContainsFunc(list, func(v *converter) bool { return v.addr == addr }) {
			continue
		}
		if v := c.find(addr); v != nil {
			list = append(list, v)
		} else {
			list = append(list, &converter{addr: addr})
		}
	}
	c.converters = list
}

// ExcludesName reports whether connections to servers of this name go directly.
func (c *Choice) ExcludesName(name string) bool { return c.policy.ExcludesName(name) }

// ExcludesNames reports whether any name is excluded.
func (c *Choice) ExcludesNames() bool { return len(c.policy.ExcludeDomains) > 0 }

// Choose returns the converters through which a client's connection to a server is tried, in this order. If there are none,
// the connection goes directly.
func (c *Choice) Choose(who Who, server netip.AddrPort, now time.Time) []netip.AddrPort {
	server = unmapped(server)
	its := c.account(who, now)
	if _, speaks := its.speaks.Get(server, now); speaks || !c.wanted(server, now) {
		return nil
	}
	type candidate struct {
		addr netip.AddrPort
		time time.Duration
	}
	var list []candidate
	for _, v := range c.converters {
		if !c.serves(v, its, server, now) {
			continue
		}
		// The time to the converter is a lower bound of the time through it to the server. So a converter that could be
		// better is tried once for each server. After that, the measured time counts.
		t, measured := c.times.Get(way{v.addr, server.Addr()}, now)
		if !measured {
			t, measured = its.times.Get(way{v.addr, server.Addr()}, now)
		}
		if !measured {
			t = v.rtt
		}
		list = append(list, candidate{v.addr, t})
	}
	slices.SortStableFunc(list, func(a, b candidate) int { return int(a.time - b.time) })
	var order []netip.AddrPort
	for _, v := range list {
		order = append(order, v.addr)
	}
	return order
}

// serves reports whether a converter may be asked for a server. its is the client's account.
func (c *Choice) serves(v *converter, its *Account, server netip.AddrPort, now time.Time) bool {
	_, unserved := c.unserved.Get(way{v.addr, server.Addr()}, now)
	return !unserved && !now.Before(v.until) && its.serves(v.addr, server, now)
}

// IsPlain reports whether a server is known to speak no MPTCP.
func (c *Choice) IsPlain(server netip.AddrPort, now time.Time) bool {
	return c.servers.Support(unmapped(server), now) == known.Plain
}

// Source returns the address from which a direct connection for a host of the LAN is made. The zero Addr stands for an
// address of this host. It is not needed with a converter, because the server sees the converter's address.
func (c *Choice) Source(host netip.Addr) netip.Addr {
	if !c.policy.KeepIPv6 || !host.Is6() || host.Is4In6() || isIn(neverNetworks, host) {
		return netip.Addr{}
	}
	return host
}

// wanted reports whether a connection should go through a converter.
func (c *Choice) wanted(server netip.AddrPort, now time.Time) bool {
	if c.isExcluded(server, now) {
		return false
	}
	switch c.policy.Mode {
	case Auto:
		return c.servers.Support(server, now) == known.Plain
	case Always:
		return c.servers.Support(server, now) != known.MPTCP
	case Never:
	}
	return false
}

// isExcluded reports whether a connection goes directly, even if its server speaks no MPTCP.
func (c *Choice) isExcluded(server netip.AddrPort, now time.Time) bool {
	addr := server.Addr()
	if _, unreached := c.unreached.Get(server, now); unreached {
		return true
	}
	if _, excluded := c.excluded.Get(addr, now); excluded || c.isConverter(addr) {
		return true
	}
	return slices.Contains(c.policy.ExcludePorts, server.Port()) ||
		isIn(c.policy.ExcludePrefixes, addr)
}

// Table holds what Choose decides for all servers. It is for callers that cannot ask about each connection.
type Table struct {
	// Others reports whether connections to servers that are not in Servers go through a converter. The opposite holds
	// for those in Servers.
	Others  bool
	Servers map[netip.AddrPort]struct{}
	// Connections to these networks and ports always go directly.
	Networks map[netip.Prefix]struct{}
	Ports    map[uint16]struct{}
}

// Table returns what Choose decides now for this host.
func (c *Choice) Table(now time.Time) Table {
	t := Table{Servers: make(map[netip.AddrPort]struct{}), Networks: make(map[netip.Prefix]struct{}), Ports: make(map[uint16]struct{})}
	served := func(server netip.AddrPort) bool {
		return slices.ContainsFunc(c.converters, func(v *converter) bool { return c.serves(v, c.own, server, now) })
	}
	if c.policy.Mode == Never || !served(netip.AddrPort{}) {
		return t
	}
	if c.policy.Mode == Auto {
		for server, support := range c.servers.All(now) {
			if support == known.Plain && !c.isExcluded(server, now) && served(server) {
				t.Servers[server] = struct{}{}
			}
		}
		return t
	}
	t.Others = true
	for server, support := range c.servers.All(now) {
		if support == known.MPTCP {
			t.Servers[server] = struct{}{}
		}
	}
	for server := range c.unreached.All(now) {
		t.Servers[server] = struct{}{}
	}
	var unserved []netip.Addr // by at least one converter
	for w := range c.unserved.All(now) {
		unserved = append(unserved, w.server)
	}
	for _, server := range unserved {
		if !served(netip.AddrPortFrom(server, 0)) {
			t.Networks[alone(server)] = struct{}{}
		}
	}
	var silent []netip.AddrPort
	for e := range c.own.silent.All(now) {
		silent = append(silent, e.server)
	}
	for _, server := range silent {
		if !served(server) {
			t.Servers[server] = struct{}{}
		}
	}
	for _, p := range c.policy.ExcludePrefixes {
		t.Networks[p.Masked()] = struct{}{}
	}
	for addr := range c.excluded.All(now) {
		t.Networks[alone(addr)] = struct{}{}
	}
	for _, v := range c.converters {
		t.Networks[alone(v.addr.Addr())] = struct{}{}
	}
	for _, port := range c.policy.ExcludePorts {
		t.Ports[port] = struct{}{}
	}
	return t
}

// alone returns the network that consists of one address.
func alone(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	return netip.PrefixFrom(addr, addr.BitLen())
}

// Connections to these are never converted, whatever the policy.
var (
	// neverNetworks have the addresses that belong to this host, to its own link, or to no single host. Private
	// networks are not among them: the user decides about these.
	neverNetworks = []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::/127"),
		netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fe80::/10"),
		netip.MustParsePrefix("224.0.0.0/3"), netip.MustParsePrefix("ff00::/8"),
	}
	// NeverPorts are the ports at which no server can be.
	NeverPorts = []uint16{0}
)

// ExcludedNetworks returns all networks to which connections are never converted, given those that the user excludes.
func ExcludedNetworks(byUser []netip.Prefix) []netip.Prefix {
	return slices.Concat(neverNetworks, byUser)
}

// isIn reports whether an address is in one of the networks.
func isIn(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a.WithZone("")) })
}

func (c *Choice) isConverter(a netip.Addr) bool {
	return slices.ContainsFunc(c.converters, func(v *converter) bool { return v.addr.Addr() == a })
}

func (c *Choice) find(addr netip.AddrPort) *converter {
	for _, v := range c.converters {
		if v.addr == addr {
			return v
		}
	}
	return nil
}

func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
