package session

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
)

func (g *granter) close(c *Closed) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = c
}

// A member learns that a waypoint is closed when its session begins, and at once when that changes. The session
// continues.
func TestClosedIsTold(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	until := time.Now().Add(3 * time.Hour)
	g := &granter{closed: &Closed{Code: wire.OutsideHours, Until: until}}
	w := startServer(t, served{Identity: a.identity("bob"), Handler: g})
	m := startClient(t, a.identity("alice"), "bob", w.at)
	s := m.awaitUp()
	if s.Closed == nil || s.Closed.Code != wire.OutsideHours || s.Closed.Until.Sub(until).Abs() > 2*time.Second || !s.Usable() {
		t.Errorf("the greeting said %+v", s.Closed)
	}
	g.close(nil)
	w.Tell()
	m.await("open", func(s State) bool { return s.Up && s.Closed == nil })
	g.close(&Closed{Code: wire.SwitchedOff})
	w.Tell()
	s = m.await("switched off", func(s State) bool { return s.Closed != nil })
	if s.Closed.Code != wire.SwitchedOff || !s.Closed.Until.IsZero() || s.Sessions != 1 || len(s.Offers) != 1 {
		t.Errorf("it was told %+v", s)
	}
	m.mustMap("203.0.113.5:443") // the handler would refuse requests
	w.crash()
	m.await("down", func(s State) bool { return !s.Up && s.Closed == nil })
}

// A member learns at once that it can have mapped detours only, and that it can have others again.
func TestMappedOnlyIsTold(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	var limited atomic.Bool
	g := &granter{offers: []wire.Kind{wire.InBand, wire.Mapped}}
	w := startServer(t, served{Identity: a.identity("bob"), Handler: g, MappedOnly: func(member string) bool { return member == "alice" && limited.Load() }})
	alice, carol := startClient(t, a.identity("alice"), "bob", w.at), startClient(t, a.identity("carol"), "bob", w.at)
	carol.awaitUp()
	for _, is := range []bool{false, true, false} {
		limited.Store(is)
		w.Tell()
		alice.await("its offers", func(s State) bool { return s.Up && len(s.Offers) == 1 == is && slices.Contains(s.Offers, wire.Mapped) })
	}
	if s := alice.State(); s.Sessions != 1 {
		t.Errorf("alice has had %d sessions", s.Sessions)
	}
	if s := carol.State(); len(s.Offers) != 2 {
		t.Errorf("carol is offered %v", s.Offers)
	}
}

func (g *granter) load(load Load) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.loaded = load
}

// A member learns until when a waypoint is loaded when its session begins, and whenever that changes. No waypoint can
// state a long time.
func TestLoadedIsTold(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	g := &granter{loaded: Load{Until: time.Now().Add(365 * 24 * time.Hour)}}
	w := startServer(t, served{Identity: a.identity("bob"), Handler: g})
	loads := make(chan Load, 100)
	m := startClientOf(t, ClientConfig{Identity: a.identity("alice"), Name: "bob", Addr: w.at, Loaded: func(load Load) { loads <- load }})
	began := time.Now()
	s := m.awaitUp()
	if until := s.Load.Until; until.Before(began.Add(longestLoaded-time.Second)) || until.After(time.Now().Add(longestLoaded+time.Second)) {
		t.Errorf("loaded for a year, taken for %v", until.Sub(began))
	}
	next := func() Load {
		select {
		case load := <-loads:
			return load
		case <-time.After(20 * time.Second):
			t.Fatal("the load was not told")
			return Load{}
		}
	}
	g.load(Load{})
	w.Tell()
	if load := next(); load != (Load{}) || m.State().Load != (Load{}) {
		t.Errorf("no longer loaded, taken for %+v", load)
	}
	g.load(Load{Until: time.Now().Add(30 * time.Second), Gives: 2e6})
	began = time.Now()
	w.Tell()
	if load := next(); load.Until.Before(began.Add(22*time.Second)) || load.Until.After(time.Now().Add(38*time.Second)) || load.Gives != 2e6 {
		t.Errorf("loaded for 30 s, and 2 Mbit/s for one more, taken for %v and %v", load.Until.Sub(began), load.Gives)
	}
	var least, most time.Duration
	for n := range 8 { // it would be told of each with the same time, were they not spread
		g.load(Load{Until: time.Now().Add(20 * time.Second), Gives: float64(n + 1)})
		began = time.Now()
		w.Tell()
		lasts := next().Until.Sub(began)
		if n == 0 {
			least, most = lasts, lasts
		}
		least, most = min(least, lasts), max(most, lasts)
	}
	if most-least < 500*time.Millisecond {
		t.Errorf("the ends of eight loads of 20 s are told as %v to %v", least, most)
	}
	if s := m.State(); s.Sessions != 1 || !s.Usable() || len(m.changes) > 0 {
		t.Errorf("another change than of the load: %+v, %d changes", s, len(m.changes))
	}
	g.load(Load{Gives: 1e6}) // one member uses all of its capacity
	w.Tell()
	if load := next(); load != (Load{Gives: 1e6}) || m.State().Load != load {
		t.Errorf("not loaded, but gives little: %+v", load)
	}
	g.load(Load{Until: time.Now().Add(-time.Second)}) // in the past
	w.Tell()
	if load := next(); load != (Load{}) {
		t.Errorf("loaded until a second ago, taken for %+v", load)
	}
	m.mustMap("203.0.113.5:443")
}

// The end of a load is compared by the monotonic clock, so that a change of the wall clock does not move it. A repeated
// greeting reports the same load.
func TestLoadEndsByTheMonotonicClock(t *testing.T) {
	now := time.Now()
	h := wire.Hello{LoadedFor: 20 * time.Second, LoadedGives: 5}
	load := loadOf(h, now)
	if !strings.Contains(load.Until.String(), " m=") || load.Until.Sub(now) != h.LoadedFor {
		t.Errorf("it ends at %v", load.Until)
	}
	for _, c := range []struct {
		h     wire.Hello
		after time.Duration
		same  bool
	}{
		{wire.Hello{LoadedFor: 10 * time.Second, LoadedGives: 5}, 10*time.Second + 300*time.Millisecond, true},
		{wire.Hello{LoadedFor: 20 * time.Second, LoadedGives: 5}, 10 * time.Second, false},
		{wire.Hello{LoadedFor: 20 * time.Second, LoadedGives: 6}, 0, false},
		{wire.Hello{LoadedGives: 5}, 0, false},
	} {
		if other := loadOf(c.h, now.Add(c.after)); load.equal(other) != c.same || other.equal(load) != c.same {
			t.Errorf("%+v after %v: the same: %v", c.h, c.after, !c.same)
		}
	}
	if !(Load{}).equal(loadOf(wire.Hello{}, now)) {
		t.Error("two waypoints without load differ")
	}
}

// A request tells the waypoint whether the client has another waypoint.
func TestSoleIsTold(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	g := &granter{decide: func(_ context.Context, _ Peer, r wire.MapRequest) (wire.MapGrant, *wire.Refusal) {
		if !r.Sole {
			return wire.MapGrant{}, &wire.Refusal{Code: wire.Loaded, RetryAfter: time.Second}
		}
		return wire.MapGrant{Port: r.Proposed, Lease: time.Minute}, nil
	}}
	w := startServer(t, served{Identity: a.identity("bob"), Handler: g})
	m := startClient(t, a.identity("alice"), "bob", w.at)
	m.awaitUp()
	server := netip.MustParseAddrPort("203.0.113.5:443")
	if _, err := m.Map(t.Context(), server, 443, false); !errors.Is(err, &wire.Refusal{Code: wire.Loaded}) {
		t.Errorf("with another waypoint: %v", err)
	}
	if _, err := m.Map(t.Context(), server, 443, true); err != nil {
		t.Errorf("with no other: %v", err)
	}
}

// Repeated news counts as one change. After any number of changes, everybody knows the last one.
func TestNewsWhileMuchHappens(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	g := &granter{}
	w := startServer(t, served{Identity: a.identity("bob"), Handler: g})
	var members []*member
	for _, name := range []string{"alice", "carol", "dave"} {
		m := startClient(t, a.identity(name), "bob", w.at)
		m.awaitUp()
		members = append(members, m)
	}
	for range 20 {
		w.Tell()
	}
	for _, m := range members {
		m.mustMap("203.0.113.5:443")
		if len(m.changes) > 0 {
			t.Errorf("nothing has changed, and yet %d changes were told", len(m.changes))
		}
	}
	var telling sync.WaitGroup
	for i := range 50 {
		telling.Go(func() {
			g.close([]*Closed{nil, {Code: wire.SwitchedOff}, {Code: wire.OutsideHours}}[i%3])
			w.Tell()
		})
	}
	telling.Wait()
	g.close(&Closed{Code: wire.QuotaTraffic})
	w.Tell()
	for _, m := range members {
		m.await("the last word", func(s State) bool { return s.Closed != nil && s.Closed.Code == wire.QuotaTraffic })
	}
}

func TestClosedInWords(t *testing.T) {
	until := time.Date(2026, 10, 5, 22, 0, 0, 0, time.Local)
	for want, c := range map[string]Closed{
		"outside-hours until 5 Oct 22:00: the waypoint is closed at this hour; use another waypoint": {wire.OutsideHours, until},
		"switched-off: the waypoint's operator has switched it off; use another waypoint":            {Code: wire.SwitchedOff},
		"code 99: the waypoint is closed for now":                                                    {Code: 99},
	} {
		if got := c.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
