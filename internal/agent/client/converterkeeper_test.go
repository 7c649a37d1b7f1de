package client

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/tunnel"
)

// converterSession is a session with a waypoint that offers a converter.
type converterSession struct {
	state session.State
	grant wire.TunnelGrant
	err   error
	asked int
	last  wire.TunnelRequest
}

func (s *converterSession) State() session.State { return s.state }

func (s *converterSession) Tunnel(_ context.Context, r wire.TunnelRequest) (wire.TunnelGrant, error) {
	if r.Kind == wire.Converter {
		s.asked++
		s.last = r
	}
	return s.grant, s.err
}

func TestConverterKeeper(t *testing.T) {
	s := &converterSession{
		state: session.State{Up: true, Sessions: 1, Observed: netip.MustParseAddrPort("192.0.2.1:1"), RTT: 5 * time.Millisecond, Offers: []wire.Kind{wire.Converter}},
		grant: wire.TunnelGrant{Kind: wire.Converter, Port: 5124, Cookie: make([]byte, 24), Lease: 10 * time.Minute},
	}
	var wanted atomic.Bool
	var told []admittedConverter
	var refused []string
	lead := tunnel.Lead{Via: detour.Via{Waypoint: "bob", Addr: netip.MustParseAddr("192.0.2.7")}, Session: s}
	news := converterNews{
		admitted: func(a admittedConverter) { told = append(told, a) },
		refused:  func(why string) { refused = append(refused, why) },
		incoming: func(list []api.Incoming) { t.Errorf("of incoming connections, for which nothing was asked: %+v", list) },
	}
	k := newConverterKeeper(lead, &wanted, incoming{}, news, slog.New(slog.DiscardHandler))
	step := func(what string, asked, tells int) time.Duration {
		t.Helper()
		next := k.step(t.Context())
		if s.asked != asked || len(told) != tells {
			t.Fatalf("%s: asked %d times and told %d, want %d and %d", what, s.asked, len(told), asked, tells)
		}
		return next
	}
	step("not wanted", 0, 0)
	wanted.Store(true)
	if next := step("wanted", 1, 1); next < 6*time.Minute || next > 7*time.Minute {
		t.Errorf("a lease of ten minutes is renewed after %v", next)
	}
	if got := told[0]; got.Name != "bob" || got.At != netip.MustParseAddrPort("192.0.2.7:5124") || got.RTT != 5*time.Millisecond || got.expires.Before(time.Now()) {
		t.Errorf("told %+v", got)
	}
	step("nothing new", 1, 1)
	s.state.Observed = netip.MustParseAddrPort("198.51.100.1:1")
	step("seen at another address", 2, 2)
	s.state.Sessions++
	step("another session", 3, 3)
	s.state.Up = false
	step("no session: the cookie is still good", 3, 3)
	s.state.Up, s.state.Offers = true, []wire.Kind{wire.InBand}
	step("not offered any more", 3, 4)
	if told[3].At.IsValid() {
		t.Errorf("told %+v", told[3])
	}
	s.state.Offers, s.err = []wire.Kind{wire.Converter}, errors.New("refused")
	if next := step("refused", 4, 4); next < converterRetry-time.Second || next > converterRetry {
		t.Errorf("a refused request is repeated after %v", next)
	}
	s.err, s.grant.Cookie, s.state.Sessions = nil, nil, s.state.Sessions+1
	step("no cookie in the grant", 5, 4)
	s.grant.Cookie, s.state.Sessions = make([]byte, 24), s.state.Sessions+1
	step("admitted again", 6, 5)
	if want := []string{"refused", "the waypoint names no port, or gives no cookie", ""}; !slices.Equal(refused, want) {
		t.Errorf("reported %q, want %q", refused, want)
	}
	s.err, s.state.Sessions = errors.New("expelled"), s.state.Sessions+1
	step("refused again", 7, 5)
	wanted.Store(false)
	step("not wanted any more", 7, 5)
	if want := []string{"expelled", ""}; !slices.Equal(refused[3:], want) {
		t.Errorf("then reported %q, want %q", refused[3:], want)
	}
}

// A converter that is wanted in a tunnel is asked for a cookie that is good from there, and is used in no other way.
func TestConverterKeeperInTunnel(t *testing.T) {
	inside := netip.MustParseAddr("10.192.0.2")
	s := &converterSession{
		state: session.State{Up: true, Sessions: 1, Observed: netip.MustParseAddrPort("192.0.2.1:1"), Offers: []wire.Kind{wire.Converter}},
		grant: wire.TunnelGrant{Kind: wire.Converter, Port: 5124, Cookie: make([]byte, 24), Lease: 10 * time.Minute, From: inside},
	}
	var wanted atomic.Bool
	wanted.Store(true)
	var got admittedConverter
	var why string
	lead := tunnel.Lead{Via: detour.Via{Waypoint: "bob", Addr: netip.MustParseAddr("192.0.2.7")}, Session: s}
	news := converterNews{
		admitted: func(a admittedConverter) { got = a },
		refused:  func(reason string) { why = reason },
		incoming: func([]api.Incoming) {},
	}
	web := config.Incoming{Converter: "bob", Port: 8080, To: netip.MustParseAddrPort("127.0.0.1:80")}
	for name, in := range map[string]incoming{"alone": {}, "with incoming connections": {services: []config.Incoming{web}, listens: 5125}} {
		k := newConverterKeeper(lead, &wanted, in, news, slog.New(slog.DiscardHandler))
		k.tunnel = &atomic.Pointer[tunnelEnd]{}
		k.tunnel.Store(&tunnelEnd{why: noTunnelYet})
		step := func(what string, from netip.Addr, reason string) {
			t.Helper()
			k.step(t.Context())
			if got.From != from || got.At.IsValid() != from.IsValid() || !strings.Contains(why, reason) || (reason == "") != (why == "") {
				t.Errorf("%s, %s: admitted %+v, why not %q", name, what, got, why)
			}
		}
		s.state.Offers = []wire.Kind{wire.Converter}
		step("no tunnel is offered", netip.Addr{}, `offers no "wireguard"`)
		s.state.Offers = []wire.Kind{wire.Converter, wire.WireGuard}
		step("no tunnel yet", netip.Addr{}, noTunnelYet)
		k.setTunnel(tunnelEnd{local: inside})
		step("a tunnel", inside, "")
		if s.last.From != inside {
			t.Errorf("%s: asked %+v", name, s.last)
		}
		s.err, s.state.Sessions = &wire.Refusal{Code: wire.NotReady, RetryAfter: 5 * time.Second}, s.state.Sessions+1
		if next := k.step(t.Context()); next > 5*time.Second {
			t.Errorf("%sthe waypoint has restarted and does not know the tunnel yet: asked again after %v", name, next)
		}
		s.err, k.next = nil, time.Time{}
		step("the waypoint knows the tunnel", inside, "")
		k.setTunnel(tunnelEnd{why: "no handshake"})
		step("the tunnel ended", netip.Addr{}, "no handshake")
		k.setTunnel(tunnelEnd{local: netip.MustParseAddr("10.192.0.3")})
		step("the waypoint does not understand", netip.Addr{}, errNoConverterInTunnels.Error())
		k.setTunnel(tunnelEnd{local: inside})
		step("a tunnel again", inside, "")
		if got.At.Addr() != lead.Via.Addr || s.last.To != lead.Via.Addr {
			t.Errorf("%s: asked %+v, and calls %v", name, s.last, got.At)
		}
		s.grant.At, s.state.Sessions = netip.MustParseAddr("10.192.0.1"), s.state.Sessions+1
		step("it is behind a NAT", inside, "")
		if got.At != netip.AddrPortFrom(s.grant.At, 5124) {
			t.Errorf("%s: it calls a converter behind a NAT at %v", name, got.At)
		}
		s.grant.At, s.state.Sessions = netip.MustParseAddr("fd64::1"), s.state.Sessions+1
		k.setTunnel(tunnelEnd{why: "none"})
		k.step(t.Context())
		k.setTunnel(tunnelEnd{local: inside})
		step("it names an address of the other family", netip.Addr{}, "not of the family")
		s.grant.At, s.state.Sessions = netip.Addr{}, s.state.Sessions+1
		step("it is behind none", inside, "")
		k.setTunnel(tunnelEnd{why: "the end of this part"})
		step("no tunnel again", netip.Addr{}, "the end of this part")
	}
}

// A converter is asked for the ports of this host's services, also if it is not used otherwise. The cookies that it gets are
// good from its address only, each for one service. What was not granted is asked for again.
func TestConverterIsAskedForPorts(t *testing.T) {
	converter := netip.MustParseAddr("192.0.2.7")
	web := config.Incoming{Converter: "bob", Port: 8080, To: netip.MustParseAddrPort("127.0.0.1:80")}
	mail := config.Incoming{Converter: "bob", Port: 25, To: netip.MustParseAddrPort("127.0.0.1:25")}
	s := &converterSession{
		state: session.State{Up: true, Sessions: 1, Observed: netip.MustParseAddrPort("192.0.2.1:1"), Offers: []wire.Kind{wire.Converter}},
		grant: wire.TunnelGrant{
			Kind: wire.Converter, Port: 5124, Cookie: make([]byte, 24), Lease: 10 * time.Minute,
			Incoming: []wire.IncomingGrant{{Port: 8080}, {Port: 25, Refused: wire.PortForbidden}},
		},
	}
	var known []api.Incoming
	news := converterNews{
		admitted: func(admittedConverter) {}, refused: func(string) {}, incoming: func(list []api.Incoming) { known = list },
	}
	in := incoming{services: []config.Incoming{web, mail}, listens: 5125, key: cookie.Key{9}}
	lead := tunnel.Lead{Via: detour.Via{Waypoint: "bob", Addr: converter}, Session: s}
	k := newConverterKeeper(lead, &atomic.Bool{}, in, news, slog.New(slog.DiscardHandler))
	expect := func(what string, want ...api.Incoming) {
		t.Helper()
		if diff := cmp.Diff(want, known, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}), cmpopts.IgnoreFields(api.Incoming{}, "Why")); diff != "" {
			t.Errorf("%s: -want +got\n%s", what, diff)
		}
		for _, x := range known {
			if x.Granted != (x.Why == "") {
				t.Errorf("%s: %+v", what, x)
			}
		}
	}
	if next := k.step(t.Context()); next < converterRetry-time.Second || next > converterRetry {
		t.Errorf("a port that was refused is asked for again after %v", next)
	}
	of := func(x config.Incoming, granted bool) api.Incoming {
		return api.Incoming{Converter: "bob", Port: uint16(x.Port), Addr: converter, To: x.To, Granted: granted}
	}
	expect("one of two is granted", of(web, true), of(mail, false))
	if s.last.Port != 5125 || len(s.last.Incoming) != 2 || s.last.Incoming[0].Port != 8080 || s.last.Incoming[1].Port != 25 {
		t.Fatalf("asked for %+v", s.last)
	}
	for i, x := range in.services {
		proof := s.last.Incoming[i].Cookie
		if number, err := in.key.Open(proof, converter, time.Now()); number != serviceNumber(x) || err != nil {
			t.Errorf("the cookie for %+v is for %d: %v", x, number, err)
		}
		if _, err := in.key.Open(proof, netip.MustParseAddr("192.0.2.8"), time.Now()); err == nil {
			t.Error("the cookie is good from another address, too")
		}
	}
	s.state.Sessions, s.grant.Incoming = 2, nil
	k.step(t.Context())
	expect("by an older dcol", of(web, false), of(mail, false))
	s.state.Sessions, s.err = 3, errors.New("refused")
	k.step(t.Context())
	expect("refused altogether", of(web, false), of(mail, false))
	s.state.Offers = nil
	k.step(t.Context())
	expect("it offers no converter any more")
}
