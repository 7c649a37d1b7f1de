package attack

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/testbed"
)

// Waypoint is a member that offers detours and lies about them. It forwards nothing: its host has no rules.
type Waypoint struct {
	host     *testbed.Host
	identity *collective.Identity
	lie      plan.Lie
	server   netip.Addr // one of the addresses that it hands out
	log      *slog.Logger
	told     atomic.Int64 // lies

	mu   sync.Mutex
	stop func() error // ends the running server
}

// NewWaypoint makes a lying waypoint, which does not run yet.
func NewWaypoint(h *testbed.Host, id *collective.Identity, lie plan.Lie, server netip.Addr, log *slog.Logger) *Waypoint {
	return &Waypoint{host: h, identity: id, lie: lie, server: server, log: log}
}

// Told counts the lies so far.
func (w *Waypoint) Told() int64 { return w.told.Load() }

// Restart ends all sessions, so that clients ask anew, and serves again.
func (w *Waypoint) Restart() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.close(); err != nil {
		return err
	}
	s, err := testbed.On(w.host, func() (*session.Server, error) {
		return session.Listen(session.ServerConfig{
			Listen: fmt.Sprintf(":%d", crew.SessionPort), Identity: w.identity, Lease: w.lease(),
			Limits: session.DefaultLimits(), Log: w.log,
		})
	})
	if err != nil {
		return fmt.Errorf("serve lies: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, w) }()
	w.stop = func() error { cancel(); return <-ended }
	return nil
}

// Close ends the waypoint.
func (w *Waypoint) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.close()
}

func (w *Waypoint) close() error {
	stop := w.stop
	w.stop = nil
	if stop == nil {
		return nil
	}
	return stop()
}

// lease returns the duration of grants. A waypoint that lies about leases grants absurd ones in turns.
func (w *Waypoint) lease() time.Duration {
	if w.lie != plan.AbsurdLease {
		return time.Minute
	}
	return []time.Duration{0, time.Millisecond, 365 * 24 * time.Hour}[w.told.Load()%3]
}

// Offers implements session.Handler: everything.
func (w *Waypoint) Offers() []wire.Kind {
	return []wire.Kind{wire.WireGuard, wire.InBand, wire.Mapped}
}

// Closed implements session.Handler.
func (w *Waypoint) Closed() *session.Closed { return nil }

// Load implements session.Handler. At times it claims to be loaded for longer than is allowed. It always claims to give
// more than any network has.
func (w *Waypoint) Load() session.Load {
	return session.Load{Until: time.Now().Add(time.Duration(w.told.Load()%3) * 180 * 24 * time.Hour), Gives: 1e18}
}

// SessionUp implements session.Handler.
func (w *Waypoint) SessionUp(session.Peer) {}

// SessionDown implements session.Handler.
func (w *Waypoint) SessionDown(session.Peer) {}

// SessionMoved implements session.Handler.
func (w *Waypoint) SessionMoved(_, _ session.Peer) {}

// MemberLeft implements session.Handler.
func (w *Waypoint) MemberLeft(session.Peer, netip.Addr) {}

// Aside implements session.Handler.
func (w *Waypoint) Aside(context.Context, session.Peer, session.Stream) {}

// Map implements session.Handler: grants a port that leads nowhere.
func (w *Waypoint) Map(_ context.Context, _ session.Peer, req wire.MapRequest) (wire.MapGrant, *wire.Refusal) {
	w.told.Add(1)
	return wire.MapGrant{Port: max(req.Server.Port(), 1), Lease: w.lease()}, nil
}

// Tunnel implements session.Handler: grants addresses that are not its own.
func (w *Waypoint) Tunnel(_ context.Context, peer session.Peer, req wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal) {
	n := w.told.Add(1)
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails
	g := wire.TunnelGrant{Lease: w.lease()}
	if req.Kind == wire.InBand {
		g.Key, g.ClientPort = key[:16], true
		return g, nil
	}
	g.PublicKey, g.Port, g.MTU = key, crew.SessionPort, 1420
	g.Addresses = []netip.Prefix{netip.MustParsePrefix("10.193.3.7/22")}
	if w.lie == plan.ForeignAddress {
		foreign := []netip.Prefix{
			netip.PrefixFrom(req.Local, 24), netip.PrefixFrom(peer.Addr, peer.Addr.BitLen()), netip.MustParsePrefix("8.8.8.8/22"),
			netip.PrefixFrom(w.server, 30), netip.MustParsePrefix("10.0.0.1/8"),
		}
		first := foreign[int(n)%len(foreign)]
		if !first.IsValid() {
			first = foreign[1]
		}
		g.Addresses = []netip.Prefix{first}
	}
	return g, nil
}
