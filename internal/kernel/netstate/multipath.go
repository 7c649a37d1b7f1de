package netstate

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// MultipathRoute is a route with several next hops.
type MultipathRoute struct {
	Prefix netip.Prefix
	// NextHops are in the order in which the kernel divides the hashes of packets among them.
	NextHops []NextHop
	// Resilient reports that the next hops form a resilient group, which assigns hashes to them by a table.
	Resilient bool
}

// NextHop is a next hop of a MultipathRoute.
type NextHop struct {
	Gateway   netip.Addr // invalid: the destination is a neighbour
	Interface int        // index
	Weight    int        // at least 1
	// Dead reports that the kernel does not use the next hop now.
	Dead bool
}

// MultipathRoutes returns the routes of the main table that have several next hops, sorted by prefix. If a prefix has
// several routes, only the one with the lowest metric counts. Routes for a type of service are left out. within lists
// the prefixes of routes with a single next hop that are part of such a multipath route's prefix.
func MultipathRoutes() (all []MultipathRoute, within []netip.Prefix, err error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	defer conn.Close()
	groups, err := dumpGroups(conn)
	if err != nil {
		return nil, nil, fmt.Errorf("list the groups of next hops: %w", err)
	}
	best := map[netip.Prefix]routeMessage{}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		messages, err := dump(conn, unix.RTM_GETROUTE, rtmsg(family))
		if err != nil {
			return nil, nil, fmt.Errorf("list the routes: %w", err)
		}
		for _, m := range messages {
			r, err := decodeRoute(m.Data)
			if err != nil {
				return nil, nil, err
			}
			old, known := best[r.prefix]
			if r.usable() && (!known || r.metric < old.metric) {
				best[r.prefix] = r
			}
		}
	}
	several := map[netip.Prefix]bool{}
	for prefix, r := range best {
		route := MultipathRoute{Prefix: prefix, NextHops: r.nextHops}
		if g, ok := groups[r.group]; ok && r.group != 0 {
			route.NextHops, route.Resilient = g.nextHops, g.resilient
		}
		if len(route.NextHops) > 1 {
			all, several[prefix] = append(all, route), true
		}
	}
	for prefix := range best {
		if !several[prefix] && partOf(prefix, several) {
			within = append(within, prefix)
		}
	}
	slices.SortFunc(all, func(a, b MultipathRoute) int { return a.Prefix.Compare(b.Prefix) })
	slices.SortFunc(within, netip.Prefix.Compare)
	return all, within, nil
}

// partOf reports whether a prefix is part of one of the others.
func partOf(p netip.Prefix, others map[netip.Prefix]bool) bool {
	for bits := range p.Bits() {
		if others[netip.PrefixFrom(p.Addr(), bits).Masked()] {
			return true
		}
	}
	return false
}

func rtmsg(family uint8) []byte { return append([]byte{family}, make([]byte, unix.SizeofRtMsg-1)...) }

// dump requests all objects of a kind. It repeats the request if they change while they are read.
func dump(conn *netlink.Conn, kind netlink.HeaderType, header []byte) ([]netlink.Message, error) {
	for began := time.Now(); ; {
		messages, err := conn.Execute(netlink.Message{
			Header: netlink.Header{Type: kind, Flags: netlink.Request | netlink.Dump}, Data: header,
		})
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(messages, func(m netlink.Message) bool { return m.Header.Flags&netlink.DumpInterrupted != 0 }) {
			return messages, nil
		}
		if time.Since(began) > restless {
			return nil, fmt.Errorf("they have changed too often for %v to be read", restless)
		}
	}
}

// WatchRoutes sends once now, and again after each change of a route, a next hop, a routing rule or an interface, until
// ctx ends; then it closes the channel. Changes that follow each other are sent as one.
func WatchRoutes(ctx context.Context) (<-chan struct{}, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, fmt.Errorf("watch routes: %w", err)
	}
	for _, group := range []uint32{
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEXTHOP,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
	} {
		if err := conn.JoinGroup(group); err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("watch routes: %w", err)
		}
	}
	changed, out := make(chan struct{}, 1), make(chan struct{}, 1)
	out <- struct{}{}
	go func() {
		defer close(changed)
		for {
			if _, err := conn.Receive(); err != nil && !isLost(err) {
				return
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	go func() {
		defer close(out)
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		defer stop()
		for range changed {
			select {
			case <-ctx.Done():
				return
			case <-time.After(settle):
			}
			select {
			case out <- struct{}{}:
			default: // the reader has not taken the last one yet
			}
		}
	}()
	return out, nil
}

// ForeignRules reports whether there are routing rules that lead to tables other than local, main and default.
func ForeignRules() (bool, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return false, fmt.Errorf("open rtnetlink: %w", err)
	}
	defer conn.Close()
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		messages, err := dump(conn, unix.RTM_GETRULE, rtmsg(family))
		if err != nil {
			return false, fmt.Errorf("list the routing rules: %w", err)
		}
		for _, m := range messages {
			const tableAt = 4 // in struct fib_rule_hdr
			if len(m.Data) <= tableAt {
				return false, errShortRoute
			}
			switch m.Data[tableAt] {
			case unix.RT_TABLE_LOCAL, unix.RT_TABLE_MAIN, unix.RT_TABLE_DEFAULT:
			default:
				return true, nil
			}
		}
	}
	return false, nil
}
