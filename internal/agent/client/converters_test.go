package client

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

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
}

func (s *converterSession) State() session.State { return s.state }

func (s *converterSession) Tunnel(_ context.Context, r wire.TunnelRequest) (wire.TunnelGrant, error) {
	if r.Kind == wire.Converter {
		s.asked++
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
	k := newConverterKeeper(lead, &wanted, func(a admittedConverter) { told = append(told, a) }, func(why string) { refused = append(refused, why) }, slog.New(slog.DiscardHandler))
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

// A converter whose admission has expired is not used, and the nearest comes first.
func TestConvertersList(t *testing.T) {
	now := time.Now()
	c := newConverters("auto")
	for addr, x := range map[string]struct{ rtt, left time.Duration }{
		"192.0.2.1": {20 * time.Millisecond, time.Minute}, "192.0.2.2": {0, time.Minute}, "192.0.2.3": {time.Millisecond, -time.Second},
		"192.0.2.4": {10 * time.Millisecond, time.Minute},
	} {
		a := admittedConverter{expires: now.Add(x.left)}
		a.At, a.RTT = netip.AddrPortFrom(netip.MustParseAddr(addr), 5124), x.rtt
		c.admitted[detour.Via{Addr: a.At.Addr()}] = a
	}
	var got []string
	for _, x := range c.list(now) {
		got = append(got, x.At.Addr().String())
	}
	if want := []string{"192.0.2.4", "192.0.2.1", "192.0.2.2"}; len(got) != len(want) || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("%v, want %v", got, want)
	}
}
