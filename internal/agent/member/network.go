package member

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/agent/outside"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// followNetwork calls changed each time that this host's own addresses change, until ctx ends. Connections to the
// collective must then be made anew.
func followNetwork(ctx context.Context, changed func(), log *slog.Logger) error {
	routes, err := netstate.OpenAddresses()
	if err != nil {
		return err
	}
	defer routes.Close()
	news, err := netstate.WatchAddresses(ctx)
	if err != nil {
		return err
	}
	var before []netip.Addr
	for first := true; ; first = false {
		own, err := outside.OwnAddresses(routes)
		if err != nil {
			log.Warn("this host's addresses cannot be listed", "err", err)
		}
		slices.SortFunc(own, netip.Addr.Compare)
		// Ignore changes of routes. Without an address, no connection is possible.
		if !slices.Equal(own, before) && len(own) > 0 {
			if before = own; !first {
				changed()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-news:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(outside.Settle):
		}
	}
}

// addressesNow returns a function that lists this host's addresses; none if they cannot be listed.
func addressesNow(log *slog.Logger) func() []netip.Addr {
	return func() []netip.Addr {
		routes, err := netstate.OpenAddresses()
		if err != nil {
			log.Warn("members with private addresses are not used", "err", err)
			return nil
		}
		defer routes.Close()
		own, err := outside.OwnAddresses(routes)
		if err != nil {
			log.Warn("members with private addresses are not used", "err", err)
		}
		return own
	}
}
