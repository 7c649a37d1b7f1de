package client

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/converter/relay"
)

// nameServers sets the servers of those connections that go to converters. names has the converters' members. It asks the
// relay, and must not run in the loop.
func (c *Client) nameServers(names map[netip.AddrPort]string, list []*api.Connection) {
	var to []*api.Connection
	var ends []relay.Ends
	for _, conn := range list {
		if _, ok := names[conn.Remote]; ok {
			to, ends = append(to, conn), append(ends, relay.Ends{Local: conn.Local, Converter: conn.Remote})
		}
	}
	if len(to) == 0 {
		return
	}
	servers, err := c.config.Relay.Servers(ends)
	if err != nil {
		c.log.Debug("the servers of converted connections are not known", "err", err)
		return
	}
	for i, conn := range to {
		if servers[i].IsValid() {
			conn.Server, conn.Converter = servers[i], names[conn.Remote]
		}
	}
}

// converted returns the connections to a server that go through converters, the oldest first, and those that ended lately,
// the latest first. Without a port, server stands for all of its ports.
func (c *Client) converted(ctx context.Context, server netip.AddrPort) (open []api.Connection, closed []api.ClosedConnection, err error) {
	names, err := call(ctx, c.inbox, func(now time.Time) (map[netip.AddrPort]string, error) {
		for at := range c.converters.names {
			x := c.manager.Explain(at, c.host.sourceFor(at.Addr()), now)
			for _, conn := range x.Conns {
				open = append(open, describeConn(conn))
			}
			for _, conn := range x.Closed {
				closed = append(closed, api.ClosedConnection{Connection: describeConn(conn.ConnState), Ended: conn.Ended})
			}
		}
		return maps.Clone(c.converters.names), nil
	})
	if err != nil {
		return nil, nil, err
	}
	var all []*api.Connection
	for i := range open {
		all = append(all, &open[i])
	}
	for i := range closed {
		all = append(all, &closed[i].Connection)
	}
	c.nameServers(names, all)
	other := func(conn api.Connection) bool {
		return conn.Server.Addr() != server.Addr() || server.Port() != 0 && conn.Server.Port() != server.Port()
	}
	open = slices.DeleteFunc(open, other)
	closed = slices.DeleteFunc(closed, func(conn api.ClosedConnection) bool { return other(conn.Connection) })
	return open, closed, nil
}
