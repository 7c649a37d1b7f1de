package netstate

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// tunnelTables plus the index of a tunnel's interface is the number of its routing table.
	tunnelTables   = 0xdc000000
	tunnelTableEnd = tunnelTables + 1<<24
	// tunnelPriority comes after the table local and before the rules of other programs (strongSwan
	// has 220, systemd's l3mdev 1000, Tailscale 5210), because the source address alone decides.
	tunnelPriority = 200
	// tunnelProtocol marks our rules and routes (rtm_protocol), so that we remove no others. Nobody else has registered
	// it (iproute2, rt_protos).
	tunnelProtocol = 0xdc
)

func tunnelTable(ifIndex int) (int, error) {
	table := tunnelTables + ifIndex
	if table >= tunnelTableEnd {
		return 0, fmt.Errorf("interface index %d is too large for a routing table number: restart the host", ifIndex)
	}
	return table, nil
}

func isTunnelTable(table int) bool { return table > tunnelTables && table < tunnelTableEnd }

// setRoutes fills the table of each address family in sources with two routes. The first sends all packets out by the
// interface. The second drops them if the interface is down. Without it, packets would leave by the main table with an
// address that is invalid there.
func setRoutes(ifIndex, table int, sources []netip.Addr) error {
	for _, unspecified := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		i := slices.IndexFunc(sources, func(a netip.Addr) bool { return a.BitLen() == unspecified.BitLen() })
		routes := tunnelRoutes(unspecified, ifIndex, table)
		if i < 0 {
			if err := deleteRoutes(routes...); err != nil {
				return err
			}
			continue
		}
		if leavesBy(ifIndex, sources[i]) {
			continue
		}
		for _, r := range routes {
			if err := netlink.RouteReplace(&r); err != nil {
				return fmt.Errorf("add route to %v in table %d: %w", r.Dst, table, err)
			}
		}
	}
	return nil
}

func tunnelRoutes(unspecified netip.Addr, ifIndex, table int) []netlink.Route {
	all := ipNet(netip.PrefixFrom(unspecified, 0))
	return []netlink.Route{
		{Dst: all, Table: table, Protocol: tunnelProtocol, Type: unix.RTN_UNREACHABLE, Priority: math.MaxUint32},
		{Dst: all, Table: table, Protocol: tunnelProtocol, LinkIndex: ifIndex, Scope: netlink.SCOPE_LINK, Priority: 1},
	}
}

// leavesBy reports whether packets from source already leave by the interface. It asks the kernel about a documentation
// address (RFC 5737, RFC 3849). Setting the routes again would wake all programs that watch routes, including this one.
func leavesBy(ifIndex int, source netip.Addr) bool {
	dst := netip.AddrFrom4([4]byte{192, 0, 2, 1})
	if source.Is6() {
		dst = netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1})
	}
	routes, err := netlink.RouteGetWithOptions(dst.AsSlice(), &netlink.RouteGetOptions{SrcAddr: source.AsSlice()})
	return err == nil && len(routes) > 0 && routes[0].LinkIndex == ifIndex
}

func deleteRoutes(routes ...netlink.Route) error {
	for _, r := range routes {
		err := netlink.RouteDel(&r)
		if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENODEV) && !isNoIPv6(err) {
			return fmt.Errorf("remove route to %v in table %d: %w", r.Dst, r.Table, err)
		}
	}
	return nil
}

// addRules makes packets from these addresses use a table. Until setRoutes fills it, they are dropped. It leaves out IPv6
// on a kernel without it.
func addRules(ifIndex, table int, sources []netip.Addr) error {
	rules, err := tunnelRules()
	if err != nil {
		return err
	}
	for _, addr := range sources {
		if slices.ContainsFunc(rules, func(r netlink.Rule) bool { return r.Table == table && isRuleFor(r, addr) }) {
			continue
		}
		// First, because a rule whose table is empty would send packets out by the main table.
		unreachable := tunnelRoutes(netip.PrefixFrom(addr, 0).Masked().Addr(), ifIndex, table)[0]
		err := netlink.RouteReplace(&unreachable)
		if err == nil {
			rule := netlink.NewRule()
			rule.Priority, rule.Table, rule.Protocol = tunnelPriority, table, tunnelProtocol
			rule.Src = ipNet(netip.PrefixFrom(addr, addr.BitLen()))
			err = netlink.RuleAdd(rule)
		}
		if err != nil && (addr.Is4() || !isNoIPv6(err)) {
			return fmt.Errorf("add rule for packets from %v: %w", addr, err)
		}
	}
	return nil
}

// removeRules removes the rules by which packets from other addresses use a table.
func removeRules(table int, sources []netip.Addr) error {
	rules, err := tunnelRules()
	if err != nil {
		return err
	}
	for _, r := range rules {
		if r.Table != table || slices.ContainsFunc(sources, func(addr netip.Addr) bool { return isRuleFor(r, addr) }) {
			continue
		}
		if err := errors.Join(deleteRule(r), deleteFlowsFrom(prefixOf(r.Src))); err != nil {
			return err
		}
	}
	return nil
}

func isRuleFor(r netlink.Rule, addr netip.Addr) bool {
	return r.Priority == tunnelPriority && prefixOf(r.Src) == netip.PrefixFrom(addr, addr.BitLen())
}

// tunnelRules returns the rules of all our tunnels.
func tunnelRules() ([]netlink.Rule, error) {
	var rules []netlink.Rule
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := consistent(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
		if isNoIPv6(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list routing rules: %w", err)
		}
		for _, r := range list {
			if r.Protocol == tunnelProtocol && isTunnelTable(r.Table) && r.Src != nil {
				rules = append(rules, r)
			}
		}
	}
	return rules, nil
}

// deleteRule removes the rule of a tunnel's address.
func deleteRule(r netlink.Rule) error {
	if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove rule %d for packets from %v: %w", r.Priority, r.Src, err)
	}
	return nil
}
