package netstate

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tunnelPrefix begins the names of all our interfaces.
const tunnelPrefix = "dcol"

// RemoveTunnel removes what SetTunnel created, and the interface if it still exists. It also removes rules and routes
// of tunnel interfaces that are gone. If there is nothing to remove, it returns nil. Connections from the tunnel's
// addresses continue if another tunnel gets these within ten minutes.
func RemoveTunnel(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !isLinkGone(err) {
		return fmt.Errorf("remove tunnel interface %s: %w", name, err)
	}
	if err := removeOrphans(); err != nil {
		return fmt.Errorf("remove tunnel interface %s: %w", name, err)
	}
	return nil
}

// removeOrphans removes rules whose table belongs to no interface, and their tables.
func removeOrphans() error {
	links, err := consistent(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	present := make(map[int]bool)
	for _, l := range links {
		present[tunnelTables+l.Attrs().Index] = true
	}
	rules, err := tunnelRules()
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range rules {
		if present[r.Table] {
			continue
		}
		addr := netip.IPv4Unspecified()
		if r.Family == netlink.FAMILY_V6 {
			addr = netip.IPv6Unspecified()
		}
		errs = append(errs, deleteRule(r), limitFlowsFrom(prefixOf(r.Src)), deleteRoutes(tunnelRoutes(addr, r.Table-tunnelTables, r.Table)...))
	}
	return errors.Join(errs...)
}

// CleanUpTunnels removes all of our tunnel interfaces in this namespace with their rules and routes. Any process may
// have created them.
func CleanUpTunnels() error {
	links, err := consistent(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("clean up tunnels: list interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		if !strings.HasPrefix(l.Attrs().Name, tunnelPrefix) {
			continue
		}
		if err := netlink.LinkDel(l); err != nil && !isLinkGone(err) {
			errs = append(errs, fmt.Errorf("remove interface %s: %w", l.Attrs().Name, err))
		}
	}
	rules, err := tunnelRules()
	errs = append(errs, err)
	for _, r := range rules {
		errs = append(errs, deleteRule(r), deleteFlowsFrom(prefixOf(r.Src)))
	}
	routes, err := allRoutes()
	errs = append(errs, err)
	for _, r := range routes {
		if isTunnelTable(r.Table) && r.Protocol == tunnelProtocol {
			errs = append(errs, deleteRoutes(r))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clean up tunnels: %w", err)
	}
	return nil
}

func isLinkGone(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) || errors.Is(err, unix.ENODEV)
}

// allRoutes lists the routes of every table and family.
func allRoutes() ([]netlink.Route, error) {
	routes, err := consistent(func() ([]netlink.Route, error) {
		every := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, every, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return routes, nil
}
