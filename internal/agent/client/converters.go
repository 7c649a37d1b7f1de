package client

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/tunnel"
)

// converters holds what the client loop knows of other members' converters: which ones admit this host, refuse it or
// are on offer. The loop owns it; a converterKeeper for each address keeps the admission.
type converters struct {
	use      config.UseConverter
	wanted   *atomic.Bool // whether to be admitted to any; the keepers read it
	admitted map[detour.Via]admittedConverter
	refused  map[detour.Via]string // why the last request for admission failed
	offered  map[detour.Via]bool   // by sessions that are up
	incoming map[detour.Via][]api.Incoming
	plain    plainServers  // as last seen
	looks    time.Time     // when they are looked for again, at the earliest
	will     path.Steering // which waypoints may be used
	agent    uint32        // this process, as the kernel's programs know it; 0: unknown, or not needed
}

func newConverters(use config.UseConverter) converters {
	c := converters{use: use, wanted: &atomic.Bool{}, admitted: make(map[detour.Via]admittedConverter), refused: make(map[detour.Via]string), offered: make(map[detour.Via]bool),
		incoming: make(map[detour.Via][]api.Incoming)}
	c.wanted.Store(use != config.ConvertNever)
	return c
}

// list returns the converters whose admission lasts and which the operator wants, the nearest first.
func (c *converters) list(now time.Time) []relay.Converter {
	var list []relay.Converter
	for via, a := range c.admitted {
		if a.expires.Before(now) {
			delete(c.admitted, via)
			continue
		}
		if !c.will.Allows(via.Waypoint) {
			continue
		}
		list = append(list, a.Converter)
	}
	slices.SortFunc(list, relay.CompareConverters)
	return list
}

// sessionChanged notes whether a waypoint offers a converter.
func (c *converters) sessionChanged(v detour.Via, s session.State) {
	if s.Usable() && s.Closed == nil && slices.Contains(s.Offers, wire.Converter) {
		c.offered[v] = true
	} else {
		delete(c.offered, v)
	}
}

// offers returns the waypoints that offer a converter, of those that the operator wants.
func (c *converters) offers() (names []string) {
	for v := range c.offered {
		if c.will.Allows(v.Waypoint) {
			names = append(names, v.Waypoint)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// keepConverter begins to keep this host admitted to a waypoint's converter at one address.
func (c *Client) keepConverter(ctx context.Context, lead tunnel.Lead) keeper {
	news := converterNews{
		admitted: func(a admittedConverter) { c.converterChanged(ctx, lead.Via, a) },
		refused:  func(why string) { c.converterRefused(ctx, lead.Via, why) },
		incoming: func(list []api.Incoming) { c.incomingChanged(ctx, lead.Via, list) },
	}
	k := newConverterKeeper(lead, c.converters.wanted, c.incomingAt(lead.Via.Waypoint), news, c.config.Log.With("subsystem", "converter"))
	if c.config.Settings.Client.Converter.Tunnel != "" {
		k.tunnel = &atomic.Pointer[tunnelEnd]{}
		k.tunnel.Store(&tunnelEnd{why: noTunnelYet})
	}
	return k
}

// noTunnelYet is the reason given while a converter waits for its tunnel.
const noTunnelYet = "the WireGuard tunnel to it is not up yet (client.converter.tunnel)"

// endAt returns this host's end of a WireGuard tunnel to a waypoint's host, for connections to one of its addresses.
func (t *tunnels) endAt(v detour.Via) tunnelEnd {
	end := tunnelEnd{why: noTunnelYet}
	for key, s := range t.standings {
		if key.kind != path.WireGuard || key.via.Waypoint != v.Waypoint {
			continue
		}
		for _, open := range s.Tunnels {
			if open.Local.Is4() == v.Addr.Is4() {
				return tunnelEnd{local: open.Local}
			}
		}
		switch {
		case len(s.Tunnels) > 0:
			end.why = fmt.Sprintf("the WireGuard tunnel to it has no address of the kind of %v (client.converter.tunnel): see tunnel_ranges", v.Addr)
		case s.Why != "":
			end.why = fmt.Sprintf("the WireGuard tunnel to it is not up (client.converter.tunnel): %s", s.Why)
		}
	}
	return end
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

// converterChanged is called by a converterKeeper.
func (c *Client) converterChanged(ctx context.Context, v detour.Via, a admittedConverter) {
	c.post(ctx, func(now time.Time) {
		if c.roster.sessions[v] == nil {
			return // it was left meanwhile
		}
		if a.expires.IsZero() {
			delete(c.converters.admitted, v)
		} else {
			switch _, before := c.converters.admitted[v]; {
			case before:
			case a.At.Addr() != v.Addr:
				c.log.Info("connections to a converter get no detours, because it is behind a NAT", "converter", v.Waypoint, "address", v.Addr)
			case c.manager.Excludes(a.At.Addr()):
				c.log.Warn("connections to a converter get no detours, because its address is in client.exclude", "converter", v.Waypoint, "address", v.Addr)
			}
			c.converters.admitted[v] = a
		}
		c.tellRelay(now)
	})
}

// inTunnels reports whether addr is an address in tunnels. A converter behind a NAT is called at such an address.
func (c *Client) inTunnels(addr netip.Addr) bool {
	return slices.ContainsFunc(c.config.Settings.TunnelRanges, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// converterRefused is called by a converterKeeper.
func (c *Client) converterRefused(ctx context.Context, v detour.Via, why string) {
	c.post(ctx, func(time.Time) {
		if c.roster.sessions[v] == nil || why == "" {
			delete(c.converters.refused, v)
			return
		}
		c.converters.refused[v] = why
	})
}

// incomingChanged is called by a converterKeeper.
func (c *Client) incomingChanged(ctx context.Context, v detour.Via, list []api.Incoming) {
	c.post(ctx, func(time.Time) {
		if c.roster.sessions[v] == nil || len(list) == 0 {
			delete(c.converters.incoming, v)
			return
		}
		c.converters.incoming[v] = list
	})
}

// forgetConverters removes all converters at vias, because their waypoint is no longer used.
func (c *Client) forgetConverters(vias []detour.Via, now time.Time) {
	for _, v := range vias {
		delete(c.converters.admitted, v)
		delete(c.converters.refused, v)
		delete(c.converters.offered, v)
		delete(c.converters.incoming, v)
	}
	c.tellRelay(now)
}

// tellRelay sends the relay its current orders: the configuration, the admitted converters and the servers without MPTCP.
func (c *Client) tellRelay(now time.Time) {
	settings := c.config.Settings.Client
	settings.Converter.Use = c.converters.use
	use := Converting(settings, c.config.Settings.Waypoint.Marks)
	if use != nil {
		use.Converters, use.Plain = c.converters.list(now), c.converters.plain.list()
		use.Exclude = append(use.Exclude, c.host.neighbourhood()...)
		if c.converters.agent == 0 { // the relay could not leave this process alone
			use.Capture = nil
		} else if use.Capture != nil {
			use.Capture.Agent = c.converters.agent
		}
	}
	c.config.Relay.Change(func(s *relay.State) { s.Use = use })
}

// Convert changes for which servers converters are used.
func (c *Client) Convert(ctx context.Context, use config.UseConverter) (api.Converting, error) {
	return call(ctx, c, func(now time.Time) (api.Converting, error) {
		if _, ok := modes[use]; !ok && use != config.ConvertNever {
			return api.Converting{}, fmt.Errorf("%q is not never, auto or always", use)
		}
		c.converters.use = use
		c.converters.wanted.Store(use != config.ConvertNever)
		c.tellRelay(now)
		c.keepGateway(now)
		c.pokeTunnels()
		return c.describeConverting(now), nil
	})
}

func (c *Client) describeConverting(now time.Time) api.Converting {
	out := api.Converting{Use: string(c.converters.use), Converters: []api.Converter{}, Offered: c.converters.offers()}
	out.Incoming = c.converters.describeIncoming(c.config.Settings.Client.Converter.Incoming)
	if !c.converters.wanted.Load() {
		return out
	}
	for _, x := range c.converters.list(now) {
		to := api.Converter{Name: x.Name, Addr: x.At, RTT: milliseconds(x.RTT), BehindNAT: c.inTunnels(x.At.Addr())}
		to.Excluded = !to.BehindNAT && c.manager.Excludes(x.At.Addr())
		out.Converters = append(out.Converters, to)
	}
	for v, why := range c.converters.refused {
		out.Refused = append(out.Refused, api.RefusedConverter{Name: v.Waypoint, Why: why})
	}
	slices.SortFunc(out.Refused, func(a, b api.RefusedConverter) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Why, b.Why))
	})
	return out
}

// lookForPlain looks for connections that fell back to plain TCP, and tells the relay their servers. The next
// connections to these servers are converted.
func (c *Client) lookForPlain(now time.Time) {
	if c.converters.use != config.ConvertAuto || now.Before(c.converters.looks) {
		return
	}
	plain, err := c.host.plainConnections()
	c.converters.looks = now.Add(sampleShare * time.Since(now))
	if err != nil {
		c.log.Warn("cannot find out which servers speak no MPTCP", "err", err)
		return
	}
	if c.converters.plain.take(plain, now) {
		c.tellRelay(now)
	}
}
