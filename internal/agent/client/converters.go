package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/tunnel"
)

const (
	// converterAnswer limits the wait for a waypoint's answer to a request for admission.
	converterAnswer = 5 * time.Second
	// converterRetry is the delay before a request is repeated that failed or was refused.
	converterRetry = 30 * time.Second
)

// admittedConverter is a converter to which this host is admitted.
type admittedConverter struct {
	relay.Converter
	expires time.Time
}

// converterKeeper keeps this host admitted to the converter at one address of a waypoint.
type converterKeeper struct {
	lead     tunnel.Lead
	wanted   *atomic.Bool // for this host's own connections
	incoming incoming
	news     converterNews
	log      *slog.Logger
	poke     chan struct{}
	// tunnel has how the converter is reached in a tunnel; nil: it is reached as any server.
	tunnel *atomic.Pointer[tunnelEnd]

	asked  occasion
	next   time.Time // when to ask at the latest
	told   bool      // admitted, as last told
	failed string    // why the last request failed
}

// converterNews is told how the keeper's requests end. Its functions must not wait.
type converterNews struct {
	admitted func(admittedConverter) // the zero value: not admitted any more
	refused  func(why string)        // the last request failed; empty: it did not, or the converter is not asked any more
	incoming func([]api.Incoming)    // at which ports connections are taken for this host, or why not; nil: nothing is known any more
}

// occasion is the situation in which an admission was asked for. In another one it must be asked for again: the
// waypoint may have restarted, and a cookie is valid only from the address that the waypoint sees.
type occasion struct {
	sessions uint64
	observed netip.Addr
	from     netip.Addr // in a tunnel
}

// tunnelEnd is this host's end of a tunnel to a converter's host.
type tunnelEnd struct {
	local netip.Addr // of the converter's family; zero: there is no tunnel
	why   string     // there is none
}

// errNoConverterInTunnels means that a waypoint has not understood from where its converter is called.
var errNoConverterInTunnels = errors.New("it takes no connections to its converter out of its tunnels (client.converter.tunnel): its dcol is older, update it")

func newConverterKeeper(lead tunnel.Lead, wanted *atomic.Bool, in incoming, news converterNews, log *slog.Logger) *converterKeeper {
	return &converterKeeper{lead: lead, wanted: wanted, incoming: in, news: news, log: log.With("converter", lead.Via.Waypoint), poke: make(chan struct{}, 1)}
}

// Poke implements keeper.
func (k *converterKeeper) Poke() {
	select {
	case k.poke <- struct{}{}:
	default: // an earlier Poke is still pending
	}
}

// Run implements keeper.
func (k *converterKeeper) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.poke:
		case <-timer.C:
		}
		timer.Reset(k.step(ctx))
	}
}

// step asks if it is time to, and returns when to look again.
func (k *converterKeeper) step(ctx context.Context) time.Duration {
	s := k.lead.Session.State()
	end := k.end(s)
	if end.why != "" && k.told { // its cookie is good in the tunnel only
		k.told = false
		k.news.admitted(admittedConverter{})
	}
	if !k.wanted.Load() && len(k.incoming.services) == 0 {
		k.asked = occasion{}
		k.fail("")
		return time.Hour
	}
	if !s.Usable() || s.Closed != nil || !slices.Contains(s.Offers, wire.Converter) {
		// A cookie is good without a session; a waypoint that is closed, or no converter any more, refuses it.
		if s.Usable() && k.told {
			k.told = false
			k.news.admitted(admittedConverter{})
			k.tellIncoming(nil)
		}
		k.asked = occasion{}
		k.fail("")
		return time.Hour
	}
	if end.why != "" && k.wanted.Load() {
		k.fail(end.why)
	}
	if end.why != "" && len(k.incoming.services) == 0 {
		k.asked = occasion{}
		return time.Hour
	}
	if now := (occasion{s.Sessions, s.Observed.Addr(), end.local}); now != k.asked || !time.Now().Before(k.next) {
		k.asked = now
		k.next = time.Now().Add(k.ask(ctx, s, end))
	}
	return max(time.Until(k.next), time.Millisecond)
}

// end returns how the converter is reached in a tunnel; the zero value: as any server.
func (k *converterKeeper) end(s session.State) tunnelEnd {
	if k.tunnel == nil {
		return tunnelEnd{}
	}
	if s.Usable() && !slices.Contains(s.Offers, wire.WireGuard) {
		return tunnelEnd{why: `it offers no "wireguard", and client.converter.tunnel asks for it: use another waypoint, or ask its operator to add "wireguard" to waypoint.offers`}
	}
	return *k.tunnel.Load()
}

// setTunnel gives the keeper this host's end of the tunnel to the converter.
func (k *converterKeeper) setTunnel(end tunnelEnd) {
	if k.tunnel != nil && *k.tunnel.Swap(&end) != end {
		k.Poke()
	}
}

// ask asks for a cookie, and returns when to ask again. Without the tunnel that is wanted, it asks for incoming connections
// only.
func (k *converterKeeper) ask(ctx context.Context, s session.State, end tunnelEnd) time.Duration {
	asking, cancel := context.WithTimeout(ctx, converterAnswer)
	defer cancel()
	request := wire.TunnelRequest{Kind: wire.Converter}
	if end.local.IsValid() {
		request.From, request.To = end.local, k.lead.Via.Addr
	}
	k.incoming.request(&request, k.lead.Via.Addr, time.Now())
	g, err := k.lead.Session.Tunnel(asking, request)
	if err == nil && (g.Port == 0 || len(g.Cookie) == 0) {
		err = errors.New("the waypoint names no port, or gives no cookie")
	}
	incoming := k.incoming.granted(k.lead.Via, g, err)
	k.tellIncoming(incoming)
	if err == nil && end.why == "" && g.From != end.local {
		err = errNoConverterInTunnels
	}
	at := k.lead.Via.Addr
	if err == nil && g.At.IsValid() && end.local.IsValid() { // it is behind a NAT
		if at = g.At; at.Is4() != end.local.Is4() {
			err = fmt.Errorf("it names %v as its end of the tunnel, which is not of the family of %v", at, end.local)
		}
	}
	if err != nil {
		if end.why == "" {
			k.fail(err.Error())
		}
		return converterPause(err)
	}
	lease := detour.Lease(g.Lease)
	if end.why == "" {
		k.fail("")
		k.told = true
		k.news.admitted(admittedConverter{
			Converter: relay.Converter{
				Name: k.lead.Via.Waypoint, At: netip.AddrPortFrom(at, g.Port), Cookie: g.Cookie, RTT: s.RTT, From: end.local,
			},
			expires: time.Now().Add(lease),
		})
	}
	if slices.ContainsFunc(incoming, func(x api.Incoming) bool { return !x.Granted }) {
		return min(converterRetry, lease*2/3)
	}
	return lease * 2 / 3
}

// converterPause returns how long not to ask again after err. A waypoint that has restarted is not ready for an address in a tunnel
// before it has given that tunnel again, which takes a moment.
func converterPause(err error) time.Duration {
	var refused *wire.Refusal
	if errors.As(err, &refused) && refused.Code == wire.NotReady && refused.RetryAfter > 0 {
		return min(detour.Wait(refused.RetryAfter), converterRetry)
	}
	return converterRetry
}

// tellIncoming gives the relay the services for which connections are taken, if there are any.
func (k *converterKeeper) tellIncoming(list []api.Incoming) {
	if len(k.incoming.services) > 0 {
		k.news.incoming(list)
	}
}

// fail notes why the last request failed; empty: it did not.
func (k *converterKeeper) fail(why string) {
	if why == k.failed {
		return
	}
	if why != "" {
		k.log.Info("not admitted to a converter", "err", why)
	}
	k.failed = why
	k.news.refused(why)
}

var modes = map[config.UseConverter]choice.Mode{config.ConvertAuto: choice.Auto, config.ConvertAlways: choice.Always}

// Converting returns what the relay has to do for this host by its configuration; nil: nothing.
// marks are the bits of packet marks that are ours.
func Converting(c config.Client, marks uint32) *relay.Use {
	mode, ok := modes[c.Converter.Use]
	if !ok {
		return nil
	}
	use := &relay.Use{
		Mode: mode, Exclude: slices.Concat(c.Exclude, c.Converter.Exclude), ExcludeDomains: c.Converter.ExcludeDomains,
		ExcludePrograms: c.Converter.ExcludePrograms, Proxy: c.Converter.Proxy, Gateway: c.Converter.Gateway, KeepIPv6: c.Converter.KeepIPv6,
		FastOpen: c.Converter.FastOpen,
	}
	switch folder := c.Converter.Capture; folder {
	case config.CaptureNone, "":
	case config.CaptureHost:
		use.Capture = &relay.Capture{Exclude: c.Converter.ExcludeCgroups}
	default:
		use.Capture = &relay.Capture{Cgroup: folder, Exclude: c.Converter.ExcludeCgroups}
	}
	use.ExcludePorts = portNumbers(c.Converter.ExcludePorts)
	if c.Converter.Tunnel != "" {
		use.TunnelMark = tunnelMark(marks)
	}
	return use
}

// tunnelMark returns the mark of the relay's sockets to converters in tunnels: the second of our bits. A gateway uses it in
// the marks of connections only, and a waypoint's marks have the highest, too.
func tunnelMark(marks uint32) uint32 {
	marks &^= marks & -marks
	return marks & -marks
}

// converters are the use of other members' converters.
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

// noTunnelYet is why a converter is not used for which a tunnel is wanted.
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

// inTunnels reports whether an address is one in tunnels. A converter behind a NAT is called at its own.
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

// forgetConverters forgets those of a waypoint that is not used any more.
func (c *Client) forgetConverters(vias []detour.Via, now time.Time) {
	for _, v := range vias {
		delete(c.converters.admitted, v)
		delete(c.converters.refused, v)
		delete(c.converters.offered, v)
		delete(c.converters.incoming, v)
	}
	c.tellRelay(now)
}

// tellRelay gives the relay what it has to do for this host.
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
