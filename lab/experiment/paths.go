package experiment

import (
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/testbed"
)

// pathMap maps a peer's address to the path of a socket. On mapped and in-band detours, the client's peer is the
// waypoint. Through a tunnel the client's peer is the server, as on the direct path, but the client's own address
// differs: see hostSockets.path. The server's peer is the waypoint with every kind of detour, because all masquerade.
// Paths through a converter end at the converter, which is then the client's peer on the direct path.
type pathMap struct {
	client, server map[netip.Addr]string // as seen from that end
	converters     map[netip.Addr]bool
}

func newPathMap(s *scenario.Scenario, n *testbed.Network) pathMap {
	m := pathMap{client: map[netip.Addr]string{}, server: map[netip.Addr]string{}, converters: map[netip.Addr]bool{}}
	addresses := func(host string, into map[netip.Addr]string, path string) {
		for _, link := range s.Links {
			if h := n.Host(host); h != nil && (link.A == host || link.B == host) {
				v4, v6 := h.AddrOn(link.Name)
				into[v4], into[v6] = path, path
			}
		}
	}
	addresses(s.Workload.Server, m.client, scenario.DirectPath)
	addresses(s.Workload.Client, m.server, scenario.DirectPath)
	addresses(s.ClientAgent(), m.server, scenario.DirectPath)
	for _, w := range s.WithRole(scenario.RoleWaypoint) {
		addresses(w, m.client, w)
		addresses(w, m.server, w)
	}
	for _, h := range s.Hosts {
		m.translated(s, n, h)
	}
	m.addConverters(s, n)
	return m
}

// addConverters adds the addresses of converters. A converter on a waypoint's host is distinguished by its port: see
// hostSockets.path.
func (m pathMap) addConverters(s *scenario.Scenario, n *testbed.Network) {
	for _, name := range s.WithRole(scenario.RoleConverter) {
		for _, link := range s.Links {
			if h := n.Host(name); link.A == name || link.B == name {
				v4, v6 := h.AddrOn(link.Name)
				m.converters[v4], m.converters[v6] = true, true
			}
		}
	}
}

// translated adds the addresses of hosts behind a host's NAT as others see them. If the client is behind it,
// those addresses count as the client's: a waypoint behind the same NAT cannot be distinguished.
func (m pathMap) translated(s *scenario.Scenario, n *testbed.Network, h scenario.Host) {
	inside := s.Inside(h)
	for _, a := range outerAddrs(s, n, h) {
		if slices.Contains(inside, s.Workload.Client) {
			m.server[a] = scenario.DirectPath
			continue
		}
		for _, w := range s.WithRole(scenario.RoleWaypoint) {
			if slices.Contains(inside, w) {
				m.client[a], m.server[a] = w, w
				break
			}
		}
	}
}

// outerAddrs returns the external IPv4 addresses of a host's NAT, or none if it has no NAT.
func outerAddrs(s *scenario.Scenario, n *testbed.Network, h scenario.Host) []netip.Addr {
	var out []netip.Addr
	for _, l := range s.Links {
		if len(h.NAT) > 0 && (l.A == h.Name || l.B == h.Name) && !slices.Contains(h.NAT, l.Name) {
			v4, _ := n.Host(h.Name).AddrOn(l.Name)
			out = append(out, v4)
		}
	}
	return out
}

// reachedAt returns the addresses at which a client reaches a host. In IPv4 they are those of a NAT that forwards to
// the host, or the host's own. A client without IPv4 gets only IPv6 addresses.
func reachedAt(s *scenario.Scenario, n *testbed.Network, client, host string) []netip.Addr {
	at := []netip.Addr{n.Host(host).Addr4(), n.Host(host).Addr6()}
	for _, h := range s.Hosts {
		toHost := func(f scenario.Forward) bool { return f.To == host }
		if slices.ContainsFunc(h.Forwards, toHost) && !slices.Contains(s.Inside(h), client) {
			at[0] = outerAddrs(s, n, h)[0]
		}
	}
	from, _ := s.Host(client)
	return slices.DeleteFunc(at, func(a netip.Addr) bool { return !a.IsValid() || from.IPv6Only && a.Is4() })
}
