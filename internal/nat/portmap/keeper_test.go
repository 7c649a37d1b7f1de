package portmap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeRouter opens ports as its fields say.
type fakeRouter struct {
	mu       *sync.Mutex
	external netip.AddrPort
	err      error
	booted   time.Time
	opens    int
	ports    map[Want]uint16
}

func (r *fakeRouter) String() string { return "PCP" }

func (r *fakeRouter) open(_ context.Context, w Want, proposed uint16) (granted, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opens++
	if r.err != nil {
		return granted{}, r.err
	}
	at := r.external
	if at.Port() == 0 {
		at = netip.AddrPortFrom(at.Addr(), proposed)
	}
	r.ports[w] = at.Port()
	return granted{external: at, lifetime: lifetime, epoch: uint32(time.Since(r.booted) / time.Second), timed: true}, nil
}

func (r *fakeRouter) close(_ context.Context, w Want, external uint16) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ports[w] != external {
		return errors.New("it is not open")
	}
	delete(r.ports, w)
	return nil
}

func (r *fakeRouter) restart() {
	r.booted = time.Now()
	clear(r.ports)
}

// home is a host and its surroundings, under one lock.
type home struct {
	*Keeper
	mu      sync.Mutex
	router  *fakeRouter
	found   int
	findErr error
	network Network
	changes []State
	stop    func()
}

// begin runs a Keeper for a moment, until it has opened what it can.
func begin(t *testing.T, change ...func(*home)) *home {
	t.Helper()
	h := &home{
		router:  &fakeRouter{external: netip.MustParseAddrPort("203.0.113.9:0"), booted: time.Now().Add(-time.Hour), ports: make(map[Want]uint16)},
		network: Network{Gateway: netip.MustParseAddr("192.168.1.1"), Own: netip.MustParseAddr("192.168.1.2")},
	}
	h.router.mu = &h.mu
	h.Keeper = NewKeeper(Config{
		Wants: []Want{session, {UDP, 1194}},
		Network: func() (Network, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if !h.network.Gateway.IsValid() {
				return Network{}, errors.New("no default route")
			}
			return h.network, nil
		},
		Changed: func(s State) { h.now(func() { h.changes = append(h.changes, s) }) },
		Log:     slog.New(slog.DiscardHandler),
	})
	h.find = func(context.Context, Network, [12]byte) (router, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.found++
		if h.findErr != nil {
			return nil, h.findErr
		}
		return h.router, nil
	}
	for _, f := range change {
		f(h)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := h.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	h.stop = func() { cancel(); <-ended }
	t.Cleanup(h.stop)
	synctest.Wait()
	return h
}

// now calls f under the lock.
func (h *home) now(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

func (h *home) external(t *testing.T, want string) {
	t.Helper()
	got, open := h.State().External(session)
	if !open && want != "" || open && got.String() != want {
		t.Errorf("open is %v, want %q; %+v", got, want, h.State())
	}
}

func TestKeeperOpensAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := begin(t)
		h.external(t, "203.0.113.9:45672")
		if s := h.State(); s.Router != "PCP" || s.Problem != "" || len(s.Mappings) != 2 || !s.Mappings[0].Until.Equal(time.Now().Add(lifetime)) {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Hour + time.Second) // not exactly at the time of a renewal
		synctest.Wait()
		h.mu.Lock()
		if h.router.opens != 2*61 || len(h.changes) != 1 {
			t.Errorf("in an hour, %d renewals, %d changes", h.router.opens, len(h.changes))
		}
		h.mu.Unlock()
		h.stop()
		if len(h.router.ports) != 0 || len(h.State().Mappings) != 0 {
			t.Errorf("ports stay open: %v", h.router.ports)
		}
	})
}

// A restart of the router and a change of its address are noticed within a minute.
func TestKeeperFollowsRouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := begin(t)
		time.Sleep(10 * time.Minute)
		h.now(func() { h.router.restart(); h.router.external = netip.MustParseAddrPort("203.0.113.77:0") })
		time.Sleep(renewEvery)
		synctest.Wait()
		h.external(t, "203.0.113.77:45672")
		if s := h.State(); s.Restarts != 1 || h.router.ports[session] != 45672 {
			t.Errorf("%+v, open %v", s, h.router.ports)
		}
		// If the router opens another port than requested, the Keeper requests that port from then on.
		h.now(func() { h.router.external = netip.MustParseAddrPort("203.0.113.77:50000") })
		time.Sleep(renewEvery)
		synctest.Wait()
		h.external(t, "203.0.113.77:50000")
		h.now(func() { h.router.external = netip.MustParseAddrPort("203.0.113.77:0") })
		time.Sleep(renewEvery)
		synctest.Wait()
		h.external(t, "203.0.113.77:50000")
	})
}

// The ports of a router that is not reachable for a while stay open until their lifetimes end.
func TestKeeperRouterAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := begin(t)
		h.now(func() { h.router.err = errNoAnswer })
		time.Sleep(lifetime - time.Second)
		synctest.Wait()
		h.external(t, "203.0.113.9:45672")
		if s := h.State(); !strings.Contains(s.Problem, "no answer") || !strings.Contains(s.Problem, "45672/udp") {
			t.Errorf("%+v", s)
		}
		if h.found < 4 {
			t.Errorf("what the router speaks was found out %d times", h.found)
		}
		time.Sleep(renewEvery)
		synctest.Wait()
		h.external(t, "")
		h.now(func() { h.router.err = nil })
		time.Sleep(renewEvery)
		synctest.Wait()
		h.external(t, "203.0.113.9:45672")
		if s := h.State(); s.Problem != "" {
			t.Errorf("%+v", s)
		}
	})
}

func TestKeeperRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := begin(t, func(h *home) { h.router.err = &RefusedError{By: "PCP", Why: "not allowed", Code: 2} })
		if s := h.State(); s.Router != "PCP" || !strings.Contains(s.Problem, "not allowed") || !strings.Contains(s.Fix, "to 192.168.1.2") {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if h.router.opens > 2*8 {
			t.Errorf("in an hour, it was asked %d times", h.router.opens)
		}
	})
}

func TestKeeperFindsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := begin(t, func(h *home) { h.findErr = fmt.Errorf("%w (PCP: read udp: connection refused)", ErrNoProtocol) })
		if s := h.State(); s.Router != "" || !strings.HasSuffix(s.Problem, "nor UPnP") || !strings.Contains(s.Fix, "45672/udp and port 1194/udp to 192.168.1.2") {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if h.found > 8 {
			t.Errorf("in an hour, it was asked %d times", h.found)
		}
		// The protocol is switched on.
		h.now(func() { h.findErr = nil })
		time.Sleep(findEvery)
		synctest.Wait()
		h.external(t, "203.0.113.9:45672")
	})
}

// In another network, another router is asked at once.
func TestKeeperMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := begin(t)
		h.now(func() { h.network = Network{} })
		h.NetworkChanged()
		synctest.Wait()
		h.external(t, "")
		if s := h.State(); !strings.Contains(s.Problem, "no default route") {
			t.Errorf("%+v", s)
		}
		h.now(func() {
			h.network = Network{Gateway: netip.MustParseAddr("10.0.0.1"), Own: netip.MustParseAddr("10.0.0.9")}
			h.router = &fakeRouter{mu: &h.mu, external: netip.MustParseAddrPort("198.51.100.9:0"), ports: make(map[Want]uint16)}
		})
		h.NetworkChanged()
		synctest.Wait()
		h.external(t, "198.51.100.9:45672")
		if s := h.State(); s.Network != h.network || s.Restarts != 0 || h.found != 2 {
			t.Errorf("%+v, found %d times", s, h.found)
		}
	})
}

// A router that claims to be connected but has no address opens nothing.
func TestKeeperRouterOffline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := begin(t, func(h *home) { h.router.external = netip.MustParseAddrPort("0.0.0.0:45672") })
		if s := h.State(); len(s.Mappings) != 0 || !strings.Contains(s.Problem, "no external address") {
			t.Errorf("%+v", s)
		}
	})
}
