package netstate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// markedTable is a routing table for packets with a mark, whatever their destination.
type markedTable struct {
	number, priority int // the priority is its rule's
	kind             int // of its only route
}

// The tables' numbers follow those of the tunnels' tables.
var (
	// delivery comes before the tunnels' rules and those of other programs.
	delivery = markedTable{number: tunnelTableEnd, priority: tunnelPriority - 1, kind: unix.RTN_LOCAL}
	// tunnelsOnly comes behind the tunnels' rules and before those of other programs.
	tunnelsOnly = markedTable{number: tunnelTableEnd + 1, priority: tunnelPriority + 1, kind: unix.RTN_UNREACHABLE}
)

// SetDelivery makes this host keep packets with a mark in the bits of a mask, whatever their destination, so that they
// reach its transparent sockets. It does not touch what exists already. On a kernel without IPv6 it sets up IPv4 only.
func SetDelivery(mark, mask uint32) error { return delivery.set(mark, mask) }

// RemoveDelivery removes what SetDelivery created in this or another process. If there is nothing to remove, it returns
// nil.
func RemoveDelivery() error { return delivery.remove() }

// SetTunnelsOnly makes packets with a mark in the bits of a mask leave from tunnels' addresses (see Tunnel) or not at all,
// whichever firewall rules there are. It does not touch what exists already. On a kernel without IPv6 it sets up IPv4 only.
func SetTunnelsOnly(mark, mask uint32) error { return tunnelsOnly.set(mark, mask) }

// RemoveTunnelsOnly removes what SetTunnelsOnly created in this or another process. If there is nothing to remove, it
// returns nil.
func RemoveTunnelsOnly() error { return tunnelsOnly.remove() }

func (t markedTable) set(mark, mask uint32) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback interface: %w", err)
	}
	for _, f := range families {
		err := t.setFamily(f, lo.Attrs().Index, mark, mask)
		if err != nil && (f.number == netlink.FAMILY_V4 || !isNoIPv6(err)) {
			return err
		}
	}
	return nil
}

func (t markedTable) remove() error {
	var errs []error
	for _, f := range families {
		rules, err := t.rules(f)
		if isNoIPv6(err) {
			continue
		}
		errs = append(errs, err)
		for _, r := range rules {
			if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("remove rule %d: %w", r.Priority, err))
			}
		}
		routes, err := t.routes(f)
		errs = append(errs, err)
		for _, r := range routes {
			errs = append(errs, deleteRoutes(r))
		}
	}
	return errors.Join(errs...)
}

type family struct {
	number int
	all    netip.Prefix
}

var families = []family{
	{netlink.FAMILY_V4, netip.PrefixFrom(netip.IPv4Unspecified(), 0)},
	{netlink.FAMILY_V6, netip.PrefixFrom(netip.IPv6Unspecified(), 0)},
}

func (t markedTable) setFamily(f family, lo int, mark, mask uint32) error {
	routes, err := t.routes(f)
	if err != nil {
		return err
	}
	// First, because without a route the rule has no effect.
	if len(routes) == 0 {
		route := netlink.Route{Dst: ipNet(f.all), Table: t.number, Protocol: tunnelProtocol, Type: t.kind}
		if t.kind == unix.RTN_LOCAL {
			route.Scope, route.LinkIndex = netlink.SCOPE_HOST, lo
		}
		if err := netlink.RouteReplace(&route); err != nil {
			return fmt.Errorf("add a route to %v in table %d: %w", f.all, route.Table, err)
		}
	}
	rules, err := t.rules(f)
	if err != nil {
		return err
	}
	isRight := func(r netlink.Rule) bool {
		return r.Mark == mark && r.Mask != nil && *r.Mask == mask && r.Priority == t.priority
	}
	if !slices.ContainsFunc(rules, isRight) {
		rule := netlink.NewRule()
		rule.Family, rule.Priority, rule.Table, rule.Protocol = f.number, t.priority, t.number, tunnelProtocol
		rule.Mark, rule.Mask = mark, &mask
		if err := netlink.RuleAdd(rule); err != nil {
			return fmt.Errorf("add a rule for packets with the mark %#x/%#x: %w", mark, mask, err)
		}
	}
	for _, r := range rules {
		if isRight(r) {
			continue
		}
		if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove rule %d: %w", r.Priority, err)
		}
	}
	return nil
}

func (t markedTable) rules(f family) ([]netlink.Rule, error) {
	rules, err := consistent(func() ([]netlink.Rule, error) { return netlink.RuleList(f.number) })
	if err != nil {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	return slices.DeleteFunc(rules, func(r netlink.Rule) bool {
		return r.Protocol != tunnelProtocol || r.Table != t.number
	}), nil
}

func (t markedTable) routes(f family) ([]netlink.Route, error) {
	routes, err := consistent(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(f.number, &netlink.Route{Table: t.number}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list the routes in table %d: %w", t.number, err)
	}
	return routes, nil
}
