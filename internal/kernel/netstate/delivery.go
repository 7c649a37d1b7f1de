package netstate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// deliveryTable is the number of the routing table for SetDelivery. It follows the numbers of the tunnels' tables.
	deliveryTable = tunnelTableEnd
	// deliveryPriority comes before the tunnels' rules and those of other programs.
	deliveryPriority = tunnelPriority - 1
)

// SetDelivery makes this host keep packets with a mark in the bits of a mask, whatever their destination, so that they
// reach its transparent sockets. It does not touch what exists already. On a kernel without IPv6 it sets up IPv4 only.
func SetDelivery(mark, mask uint32) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback interface: %w", err)
	}
	for _, family := range deliveryFamilies {
		err := family.set(lo.Attrs().Index, mark, mask)
		if err != nil && (family.number == netlink.FAMILY_V4 || !isNoIPv6(err)) {
			return err
		}
	}
	return nil
}

// RemoveDelivery removes what SetDelivery created in this or another process. If there is nothing to remove, it returns
// nil.
func RemoveDelivery() error {
	var errs []error
	for _, family := range deliveryFamilies {
		rules, err := family.rules()
		if isNoIPv6(err) {
			continue
		}
		errs = append(errs, err)
		for _, r := range rules {
			if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("remove rule %d: %w", r.Priority, err))
			}
		}
		routes, err := family.routes()
		errs = append(errs, err)
		for _, r := range routes {
			errs = append(errs, deleteRoutes(r))
		}
	}
	return errors.Join(errs...)
}

type deliveryFamily struct {
	number int
	all    netip.Prefix
}

var deliveryFamilies = []deliveryFamily{
	{netlink.FAMILY_V4, netip.PrefixFrom(netip.IPv4Unspecified(), 0)},
	{netlink.FAMILY_V6, netip.PrefixFrom(netip.IPv6Unspecified(), 0)},
}

func (f deliveryFamily) set(lo int, mark, mask uint32) error {
	routes, err := f.routes()
	if err != nil {
		return err
	}
	// First, because without a route the rule has no effect.
	if len(routes) == 0 {
		route := netlink.Route{
			Dst: ipNet(f.all), Table: deliveryTable, Protocol: tunnelProtocol, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, LinkIndex: lo,
		}
		if err := netlink.RouteReplace(&route); err != nil {
			return fmt.Errorf("add a local route to %v in table %d: %w", f.all, route.Table, err)
		}
	}
	rules, err := f.rules()
	if err != nil {
		return err
	}
	isRight := func(r netlink.Rule) bool {
		return r.Mark == mark && r.Mask != nil && *r.Mask == mask && r.Priority == deliveryPriority
	}
	if !slices.ContainsFunc(rules, isRight) {
		rule := netlink.NewRule()
		rule.Family, rule.Priority, rule.Table, rule.Protocol = f.number, deliveryPriority, deliveryTable, tunnelProtocol
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

func (f deliveryFamily) rules() ([]netlink.Rule, error) {
	rules, err := consistent(func() ([]netlink.Rule, error) { return netlink.RuleList(f.number) })
	if err != nil {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	return slices.DeleteFunc(rules, func(r netlink.Rule) bool {
		return r.Protocol != tunnelProtocol || r.Table != deliveryTable
	}), nil
}

func (f deliveryFamily) routes() ([]netlink.Route, error) {
	routes, err := consistent(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(f.number, &netlink.Route{Table: deliveryTable}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list the routes in table %d: %w", deliveryTable, err)
	}
	return routes, nil
}
