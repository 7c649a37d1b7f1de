package testbed

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
)

// plan contains everything about a network that follows from its Spec: interface names, addresses and routes.
// It changes nothing in the kernel.
type plan struct {
	hosts []hostPlan // as in Spec.Hosts
	links []linkPlan // as in Spec.Links
}

type hostPlan struct {
	HostSpec
	ifaces   []ifacePlan // in link order
	routes   []routePlan
	position int // in the Spec
}

// addr4 returns the host's address on its first link, by which others know the host. A host without links has none.
func (h hostPlan) addr4() netip.Addr { return h.addr(func(i ifacePlan) netip.Prefix { return i.net4 }) }
func (h hostPlan) addr6() netip.Addr { return h.addr(func(i ifacePlan) netip.Prefix { return i.net6 }) }

func (h hostPlan) addr(of func(ifacePlan) netip.Prefix) netip.Addr {
	if len(h.ifaces) == 0 {
		return netip.Addr{}
	}
	return of(h.ifaces[0]).Addr()
}

// iface returns the host's interface on a link. The host must be on that link.
func (h hostPlan) iface(link int) ifacePlan {
	for _, iface := range h.ifaces {
		if iface.link == link {
			return iface
		}
	}
	panic(fmt.Sprintf("host %s is not on link %d", h.Name, link))
}

type ifacePlan struct {
	link         int // index into plan.links
	name         string
	net4, net6   netip.Prefix // own address with the link's prefix length; net4 is invalid on a host without IPv4
	peer4, peer6 netip.Addr
	mtu          int
	moves        int // how often the host was renumbered there
}

type linkPlan struct {
	LinkSpec
	a, b       int // indexes into plan.hosts
	net4, net6 netip.Prefix
}

// routePlan routes a destination through an interface to the peer at the other end of its link.
type routePlan struct {
	dst4, dst6 netip.Prefix
	iface      int   // index into hostPlan.ifaces
	also       []int // further interfaces, if the host balances load
}

// linkNet4 returns the network of a link. Links are numbered from 1. Link n is 10.0.n.0/24 (RFC 1918), with .1 at its A
// end and .2 at its B end. The other addresses are for hosts that are renumbered. The network exists only in the hosts'
// namespaces.
func linkNet4(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), 0}), 24)
}

// linkNet6 returns the IPv6 network of a link, in RFC 4193 space: fd00::n:0/112.
func linkNet6(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 12: byte(n >> 8), 13: byte(n)}), 112)
}

// makePlan plans a network. The Spec must be valid.
func makePlan(s Spec) plan {
	var p plan
	index := map[string]int{}
	for i, h := range s.Hosts {
		index[h.Name] = i
		p.hosts = append(p.hosts, hostPlan{HostSpec: h, position: i})
	}
	for i, l := range s.Links {
		link := linkPlan{LinkSpec: l, a: index[l.A], b: index[l.B], net4: linkNet4(i + 1), net6: linkNet6(i + 1)}
		p.links = append(p.links, link)
		a4, a6 := link.net4.Addr().Next(), link.net6.Addr().Next()
		b4, b6 := a4.Next(), a6.Next()
		p.hosts[link.a].attach(i, link, a4, a6, b4, b6)
		p.hosts[link.b].attach(i, link, b4, b6, a4, a6)
	}
	for h := range p.hosts {
		p.hosts[h].routes = p.routes(h)
	}
	return p
}

func (h *hostPlan) attach(i int, l linkPlan, own4, own6, peer4, peer6 netip.Addr) {
	iface := ifacePlan{
		link: i, name: ifaceName(l.Name, i),
		net4: netip.PrefixFrom(own4, l.net4.Bits()), net6: netip.PrefixFrom(own6, l.net6.Bits()),
		peer4: peer4, peer6: peer6, mtu: l.mtu(),
	}
	if h.IPv6Only {
		iface.net4 = netip.Prefix{}
	}
	h.ifaces = append(h.ifaces, iface)
}

// ifaceName returns the link's own name if an interface can have it: at most 15 bytes, no number (tools take
// those for indexes), no dot (sysctl paths) and no reserved name. Otherwise it returns "link" and the link's
// position.
func ifaceName(link string, i int) string {
	letter := strings.ContainsFunc(link[:1], func(r rune) bool { return r > '9' })
	switch {
	case !letter, len(link) > 15, strings.Contains(link, "."),
		link == "lo", link == "all", link == "default", strings.HasPrefix(link, "link"):
		return fmt.Sprintf("link%d", i+1)
	}
	return link
}

// routes returns the routes of host h. Each link's network is reached by the cheapest path. If two cost the same, the
// path whose first link was declared first is taken. A host that does not forward, or has only one link, gets a default
// route through its first link, which replaces the routes that equal it.
func (p plan) routes(h int) []routePlan {
	dist, via := p.shortest(h)
	var routes []routePlan
	host := p.hosts[h]
	defaultVia := -1
	if len(host.ifaces) == 1 || len(host.ifaces) > 1 && !host.Forward {
		defaultVia = 0
		routes = append(routes, routePlan{
			dst4: netip.PrefixFrom(netip.IPv4Unspecified(), 0), dst6: netip.PrefixFrom(netip.IPv6Unspecified(), 0),
			iface: defaultVia,
		})
	}
	for _, l := range p.links {
		near := p.nearEnd(l, dist, via)
		if l.a == h || l.b == h || dist[near] == math.MaxInt || via[near] == defaultVia {
			continue
		}
		route := routePlan{dst4: l.net4, dst6: l.net6, iface: via[near]}
		if host.Balance {
			route.also = p.equal(h, near, dist, via[near])
		}
		routes = append(routes, route)
	}
	return routes
}

// nearEnd returns the end of l through which its network is reached. It prefers an end that forwards, so that each
// address of a host with several links is reached over that address's link.
func (p plan) nearEnd(l linkPlan, dist, via []int) int {
	a, b := p.hosts[l.a], p.hosts[l.b]
	if a.Forward != b.Forward {
		if a.Forward && dist[l.a] != math.MaxInt {
			return l.a
		}
		if b.Forward && dist[l.b] != math.MaxInt {
			return l.b
		}
	}
	if dist[l.b] < dist[l.a] || dist[l.b] == dist[l.a] && via[l.b] < via[l.a] {
		return l.b
	}
	return l.a
}

// shortest runs Dijkstra's algorithm from host src. It returns the cost to every host, and the interface of src by
// which the host is reached. If two interfaces cost the same, it takes the lower one. Paths lead only through hosts
// that forward.
func (p plan) shortest(src int) (dist, via []int) {
	dist, via = make([]int, len(p.hosts)), make([]int, len(p.hosts))
	done := make([]bool, len(p.hosts))
	for i := range dist {
		dist[i], via[i] = math.MaxInt, math.MaxInt
	}
	dist[src] = 0
	for {
		at := -1
		for i := range dist {
			if !done[i] && dist[i] != math.MaxInt && (at < 0 || dist[i] < dist[at]) {
				at = i
			}
		}
		if at < 0 {
			return dist, via
		}
		done[at] = true
		if at != src && !p.hosts[at].Forward {
			continue
		}
		for i, iface := range p.hosts[at].ifaces {
			l := p.links[iface.link]
			to := l.a + l.b - at
			cost, first := dist[at]+l.cost(), via[at]
			if at == src {
				first = i
			}
			if cost < dist[to] || cost == dist[to] && first < via[to] && !done[to] {
				dist[to], via[to] = cost, first
			}
		}
	}
}
