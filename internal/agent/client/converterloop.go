package client

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/tunnel"
)

// keepConverter begins to keep this host admitted to a waypoint's converter at one address.
func (c *Client) keepConverter(ctx context.Context, lead tunnel.Lead) keeper {
	v, settings := lead.Via, c.config.Settings.Client
	news := converterNews{
		admitted: func(a admittedConverter) {
			c.postFor(ctx, v, func(now time.Time) {
				if c.converters.setAdmitted(v, a) {
					c.logDetourless(v, a)
				}
				c.tellRelay(now)
			})
		},
		refused: func(why string) {
			c.postFor(ctx, v, func(time.Time) { c.converters.setRefused(v, why) })
		},
		incoming: func(list []api.Incoming) {
			c.postFor(ctx, v, func(time.Time) { c.converters.setIncoming(v, list) })
		},
	}
	k := newConverterKeeper(lead, c.converters.wanted, incomingAt(v.Waypoint, settings, c.config.Identity), news, c.config.Log.With("subsystem", "converter"))
	if settings.Converter.Tunnel != "" {
		k.tunnel = &atomic.Pointer[tunnelEnd]{}
		k.tunnel.Store(&tunnelEnd{why: noTunnelYet})
	}
	return k
}

// logDetourless logs if connections to a converter get no detours, and why.
func (c *Client) logDetourless(v detour.Via, a admittedConverter) {
	switch {
	case a.At.Addr() != v.Addr:
		c.log.Info("connections to a converter get no detours, because it is behind a NAT", "converter", v.Waypoint, "address", v.Addr)
	case c.manager.Excludes(a.At.Addr()):
		c.log.Warn("connections to a converter get no detours, because its address is in client.exclude", "converter", v.Waypoint, "address", v.Addr)
	}
}

// tellConverterKeepers gives the keepers of a waypoint's converter this host's end of the tunnel to it.
func (c *Client) tellConverterKeepers(waypoint string) {
	u := c.roster.using[waypoint]
	if u == nil {
		return
	}
	for _, k := range u.admissions {
		if converter, ok := k.(*converterKeeper); ok {
			converter.setTunnel(c.tunnels.endAt(converter.lead.Via))
		}
	}
}

// tellRelay sends the relay its current orders.
func (c *Client) tellRelay(now time.Time) {
	use := c.converters.orders(now, c.host.neighbourhood)
	c.config.Relay.Change(func(s *relay.State) { s.Use = use })
}

// Convert changes for which servers converters are used. It returns when the relay follows, or has failed to.
func (c *Client) Convert(ctx context.Context, use config.UseConverter) error {
	_, err := call(ctx, c.inbox, func(now time.Time) (struct{}, error) {
		if err := c.converters.setUse(use); err != nil {
			return struct{}{}, err
		}
		c.tellRelay(now)
		c.keepGateway(now)
		c.pokeTunnels()
		return struct{}{}, nil
	})
	if err != nil {
		return err
	}
	c.config.Relay.Settle(ctx)
	_, err = call(ctx, c.inbox, func(now time.Time) (struct{}, error) {
		c.keepGateway(now) // which leads no connection to a relay that does not know the converters yet
		return struct{}{}, nil
	})
	return err
}

// Converting returns the use of converters.
func (c *Client) Converting(ctx context.Context) (api.Converting, error) {
	return call(ctx, c.inbox, func(now time.Time) (api.Converting, error) {
		return c.converters.describe(now, c.manager.Excludes, c.config.Relay.Standing()), nil
	})
}
