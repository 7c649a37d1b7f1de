package session

import (
	"context"
	"net/netip"

	"github.com/detour-collective/dcol/internal/collective"
)

// Try begins a session and ends it at once. The error, a *Problem, says in words why the member of that
// name cannot be reached there.
func Try(ctx context.Context, identity *collective.Identity, name string, at netip.AddrPort) error {
	line, heard, err := dial(ctx, ClientConfig{Identity: identity, Name: name, Addr: at})
	if err != nil {
		return explain(where{waypoint: name, addr: at, heard: heard}, err)
	}
	closeLine(line.conn, closeDone, "")
	line.close()
	return nil
}
