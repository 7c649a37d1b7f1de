package testbed

import "fmt"

// Route lists the links over which packets from one host reach another host's first address, in order. The Spec must be
// valid.
func (s Spec) Route(from, to string) ([]string, error) {
	p := makePlan(s)
	at, target := -1, -1
	for i, h := range p.hosts {
		if h.Name == from {
			at = i
		}
		if h.Name == to {
			target = i
		}
	}
	if at < 0 || target < 0 {
		return nil, fmt.Errorf("route from %q to %q: one of them is no host", from, to)
	}
	var links []string
	for range p.links { // a route without loops has at most this length
		if at == target {
			return links, nil
		}
		via, ok := p.hosts[at].towards(p.hosts[target])
		if !ok {
			break
		}
		link := p.links[via.link]
		links = append(links, link.Name)
		at = link.a + link.b - at
	}
	return nil, fmt.Errorf("no route leads from %s to %s", from, to)
}

// towards returns the interface whose route to another host's first address has the longest prefix.
func (h hostPlan) towards(to hostPlan) (via ifacePlan, ok bool) {
	addr, longest := to.addr6(), -1
	for _, iface := range h.ifaces {
		if iface.net6.Contains(addr) {
			return iface, true
		}
	}
	for _, r := range h.routes {
		if r.dst6.Contains(addr) && r.dst6.Bits() > longest {
			via, longest = h.ifaces[r.iface], r.dst6.Bits()
		}
	}
	return via, longest >= 0
}
