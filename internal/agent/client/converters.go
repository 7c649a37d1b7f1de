package client

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/agent/relaying"
	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// converters holds what the client loop knows of other members' converters: which ones admit this host, refuse it or
// are on offer. The loop owns it; a converterKeeper for each address keeps the admission.
type converters struct {
	settings *config.Config
	use      config.UseConverter
	wanted   *atomic.Bool // whether to be admitted to any; the keepers read it
	admitted map[detour.Via]admittedConverter
	names    map[netip.AddrPort]string // of the members whose converters have admitted this host, by the converter's address
	refused  map[detour.Via]string     // why the last request for admission failed
	offered  map[detour.Via]bool       // by sessions that are up
	incoming map[detour.Via][]api.Incoming
	will     path.Steering // which waypoints may be used
	agent    uint32        // this process, as the kernel's programs know it; 0: unknown, or not needed
}

func newConverters(settings *config.Config) converters {
	use := settings.Client.Converter.Use
	c := converters{
		settings: settings, use: use, wanted: &atomic.Bool{}, admitted: make(map[detour.Via]admittedConverter), names: make(map[netip.AddrPort]string),
		refused: make(map[detour.Via]string), offered: make(map[detour.Via]bool), incoming: make(map[detour.Via][]api.Incoming),
	}
	c.wanted.Store(use != config.ConvertNever)
	return c
}

// setUse changes for which servers converters are used.
func (c *converters) setUse(use config.UseConverter) error {
	if _, ok := modes[use]; !ok && use != config.ConvertNever {
		return fmt.Errorf("%q is not never, auto or always", use)
	}
	c.use = use
	c.wanted.Store(use != config.ConvertNever)
	return nil
}

// setClient takes over changed settings of the client role. The choice of servers stays; setUse changes it.
func (c *converters) setClient(client config.Client) {
	settings := *c.settings // which others share
	settings.Client = client
	c.settings = &settings
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

// setAdmitted records an admission, or its end if a is the zero value. It reports whether there was no admission before.
func (c *converters) setAdmitted(v detour.Via, a admittedConverter) (begins bool) {
	if a.expires.IsZero() {
		delete(c.admitted, v)
		return false
	}
	_, before := c.admitted[v]
	c.admitted[v], c.names[a.At] = a, v.Waypoint
	return !before
}

// setRefused records why the last request for admission failed. An empty reason clears it.
func (c *converters) setRefused(v detour.Via, why string) {
	if why == "" {
		delete(c.refused, v)
		return
	}
	c.refused[v] = why
}

// setIncoming records at which ports a converter takes connections for this host, or why not. An empty list clears it.
func (c *converters) setIncoming(v detour.Via, list []api.Incoming) {
	if len(list) == 0 {
		delete(c.incoming, v)
		return
	}
	c.incoming[v] = list
}

// forget removes the converters at vias, because their waypoint is no longer used.
func (c *converters) forget(vias []detour.Via) {
	for _, v := range vias {
		delete(c.admitted, v)
		delete(c.refused, v)
		delete(c.offered, v)
		delete(c.incoming, v)
	}
}

// orders returns what the relay has to do: the configuration and the admitted converters. It
// returns nil if there is nothing, and only the proxy if no converter is used. neighbours returns this host's own
// networks, whose servers need no converter.
func (c *converters) orders(now time.Time, neighbours func() []netip.Prefix) *relay.Use {
	client := c.settings.Client
	client.Converter.Use = c.use
	use := Converting(client, c.settings.Waypoint.Marks)
	if use == nil || c.use == config.ConvertNever {
		return use
	}
	use.Converters = c.list(now)
	use.Exclude = append(use.Exclude, neighbours()...)
	if c.agent == 0 { // the relay could not leave this process alone
		use.Capture = nil
	} else if use.Capture != nil {
		use.Capture.Agent = c.agent
	}
	return use
}

// describe returns the converters' part of the status. It lists the converters that the relay has confirmed: only those carry
// connections. excludes reports whether the path manager gives connections to an address no detours.
func (c *converters) describe(now time.Time, excludes func(netip.Addr) bool, s relaying.Standing) api.Converting {
	out := api.Converting{Use: string(c.use), Converters: []api.Converter{}, Offered: c.offers(), Incoming: c.describeIncoming()}
	if !c.wanted.Load() {
		return out
	}
	r := s.Relay
	for _, x := range c.confirmed(now, s.Use) {
		to := api.Converter{Name: x.Name, Addr: x.At, RTT: milliseconds(x.RTT), BehindNAT: c.inTunnels(x.At.Addr())}
		to.Excluded = !to.BehindNAT && excludes(x.At.Addr())
		if r != nil && now.Before(r.Aside[x.At].Until) {
			to.AsideUntil, to.Refuses = r.Aside[x.At].Until, r.Aside[x.At].Refuses
		}
		out.Converters = append(out.Converters, to)
	}
	if r != nil {
		out.ExcludedAll = r.ExcludedAll
		for _, e := range r.Excluded {
			out.Excluded = append(out.Excluded, api.ExcludedAddress{Addr: e.Addr, Name: e.Name, Until: e.Until})
		}
	}
	for v, why := range c.refused {
		out.Refused = append(out.Refused, api.RefusedConverter{Name: v.Waypoint, Why: why})
	}
	slices.SortFunc(out.Refused, func(a, b api.RefusedConverter) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Why, b.Why))
	})
	return out
}

// confirmed returns those of list to which the orders lead that the relay has confirmed. Before that, the relay would connect
// directly. A renewed cookie makes no difference.
func (c *converters) confirmed(now time.Time, orders *relay.Use) []relay.Converter {
	return slices.DeleteFunc(c.list(now), func(x relay.Converter) bool {
		return orders == nil || !slices.ContainsFunc(orders.Converters, func(has relay.Converter) bool { return has.At == x.At && has.From == x.From })
	})
}

// why returns a sentence for dcol why about connections to an address that go through a converter instead. It is empty if
// this process knows that none do. Only the relay knows which servers speak MPTCP and which names are excluded.
func (c *converters) why(server netip.Addr, now time.Time) string {
	list := c.list(now)
	isConverter := slices.ContainsFunc(list, func(x relay.Converter) bool { return x.At.Addr() == server })
	networks := choice.ExcludedNetworks(unconverted(c.settings.Client))
	excluded := slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(server) })
	if _, used := modes[c.use]; !used || len(list) == 0 || isConverter || excluded {
		return ""
	}
	when := "if the server is known to speak no MPTCP"
	if c.use == config.ConvertAlways {
		when = "unless the server is known to speak MPTCP"
	}
	var at []string
	for _, x := range list {
		at = append(at, fmt.Sprintf("%v (%s)", x.At.Addr(), x.Name))
	}
	return fmt.Sprintf("a connection is converted %s, and then goes to %s; `dcol why` with that address explains its paths", when, strings.Join(at, " or "))
}

// inTunnels reports whether addr is an address in tunnels. A converter behind a NAT is called at such an address.
func (c *converters) inTunnels(addr netip.Addr) bool {
	return slices.ContainsFunc(c.settings.TunnelRanges, func(p netip.Prefix) bool { return p.Contains(addr) })
}
