package netstate

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Uplink is an address from which this host reaches the Internet.
type Uplink struct {
	Address
	Interface string
}

// Uplinks returns the usable addresses of the interfaces with a default route in any routing table: one for each
// interface and address family, in the order of interfaces.
func (a *Addresses) Uplinks() ([]Uplink, error) {
	names, err := a.Interfaces()
	if err != nil {
		return nil, err
	}
	name := make(map[int]string, len(names))
	for _, i := range names {
		if !i.Loopback {
			name[i.Index] = i.Name
		}
	}
	usable, err := a.Usable()
	if err != nil {
		return nil, err
	}
	leads, err := a.defaultRoutes()
	if err != nil {
		return nil, err
	}
	type side struct {
		ifIndex int
		is4     bool
	}
	var list []Uplink
	seen := make(map[side]bool)
	for _, u := range usable {
		s := side{u.IfIndex, u.Addr.Is4()}
		if name[u.IfIndex] == "" || seen[s] || !leads[s.is4][u.IfIndex] {
			continue
		}
		seen[s] = true
		list = append(list, Uplink{u, name[u.IfIndex]})
	}
	return list, nil
}

// defaultRoutes returns the interfaces that have default routes, for IPv4 (true) and IPv6 (false).
func (a *Addresses) defaultRoutes() (map[bool]map[int]bool, error) {
	leads := map[bool]map[int]bool{true: {}, false: {}}
	for is4, family := range map[bool]int{true: netlink.FAMILY_V4, false: netlink.FAMILY_V6} {
		routes, err := consistent(func() ([]netlink.Route, error) {
			return a.handle.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			if !isDefault(&r) || r.Type != unix.RTN_UNICAST {
				continue
			}
			leads[is4][r.LinkIndex] = true
			for _, hop := range r.MultiPath {
				leads[is4][hop.LinkIndex] = true
			}
		}
	}
	return leads, nil
}

func isDefault(r *netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}
