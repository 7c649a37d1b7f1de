package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/internal/detour"
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

// converterKeeper keeps this host admitted to the converter at one address of a waypoint: it requests a cookie over the
// waypoint's session and renews it before it expires. It runs in a goroutine of its own and reports by converterNews.
type converterKeeper struct {
	lead     tunnel.Lead
	wanted   *atomic.Bool // for this host's own connections
	incoming incoming
	news     converterNews
	log      *slog.Logger
	poke     chan struct{}
	// tunnel holds this host's end of the tunnel to the converter. It is nil if converters are called without a tunnel.
	tunnel *atomic.Pointer[tunnelEnd]

	asked  occasion
	next   time.Time // when to ask at the latest
	told   bool      // admitted, as last told
	failed string    // why the last request failed
}

// converterNews are the functions that a converterKeeper calls with the results of its requests. They must not wait.
type converterNews struct {
	admitted func(admittedConverter) // the zero value: not admitted any more
	refused  func(why string)        // the last request failed; empty: it did not, or the converter is not asked any more
	incoming func([]api.Incoming)    // at which ports connections are taken for this host, or why not; nil: nothing is known any more
}

// occasion identifies the circumstances of a request. When they change, the keeper requests a new cookie: the waypoint
// may have restarted, and a cookie is valid only from the address that the waypoint sees.
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

// noTunnelYet is the reason given while a converter waits for its tunnel.
const noTunnelYet = "the WireGuard tunnel to it is not up yet (client.converter.tunnel)"

// errNoConverterInTunnels means that a waypoint's dcol is too old to accept connections to its converter
// from tunnels.
var errNoConverterInTunnels = errors.New("it accepts no connections to its converter from tunnels (client.converter.tunnel): its dcol is too old, and its operator must update it")

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

// step requests a cookie if one is due, and returns the delay until the next step.
func (k *converterKeeper) step(ctx context.Context) time.Duration {
	s := k.lead.Session.State()
	end := k.end(s)
	if end.why != "" && k.told { // its cookie is valid in the tunnel only
		k.told = false
		k.news.admitted(admittedConverter{})
	}
	if !k.wanted.Load() && len(k.incoming.services) == 0 {
		k.asked = occasion{}
		k.fail("")
		return time.Hour
	}
	if !s.Usable() || s.Closed != nil || !slices.Contains(s.Offers, wire.Converter) {
		// Without a session, the cookie stays valid. With one, a waypoint that is closed, or no longer
		// offers a converter, refuses it.
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

// end returns this host's end of the tunnel to the converter, or the zero value if it is called without a tunnel.
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

// ask requests a cookie and the ports for incoming connections, and returns the delay until the next request. While the
// tunnel is not up, the cookie cannot be used, and only the ports are taken from the answer.
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

// converterPause returns the delay until the next request after err. A waypoint that has restarted first has to grant the
// tunnel again before it accepts an address in it. That takes a moment, so the waypoint's own delay applies.
func converterPause(err error) time.Duration {
	var refused *wire.Refusal
	if errors.As(err, &refused) && refused.Code == wire.NotReady && refused.RetryAfter > 0 {
		return min(detour.Wait(refused.RetryAfter), converterRetry)
	}
	return converterRetry
}

// tellIncoming reports at which ports the waypoint takes connections for this host. It does nothing if this host has no
// services.
func (k *converterKeeper) tellIncoming(list []api.Incoming) {
	if len(k.incoming.services) > 0 {
		k.news.incoming(list)
	}
}

// fail reports why the last request failed, once for each reason. An empty reason clears it.
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
