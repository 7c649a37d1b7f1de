package session

import (
	"context"
	"net"
	"net/netip"

	"github.com/detour-collective/dcol/internal/collective"
)

// Try opens a session and ends it at once. The error is a *Problem that explains why the named member cannot be reached
// at this address. way is as in ClientConfig.Way.
func Try(ctx context.Context, identity *collective.Identity, name string, at netip.AddrPort, way func(context.Context, *net.UDPConn, netip.AddrPort) error) error {
	line, heard, err := dial(ctx, ClientConfig{Identity: identity, Name: name, Addr: at, Way: way})
	if err != nil {
		return explain(where{waypoint: name, addr: at, heard: heard}, err)
	}
	closeLine(line.conn, closeDone, "")
	line.close()
	return nil
}
