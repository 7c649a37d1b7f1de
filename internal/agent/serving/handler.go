package serving

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/agent/outside"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/trace/vantage"
	"github.com/detour-collective/dcol/internal/waypoint"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
)

// announcer notifies members when the waypoint opens or closes, or when its load changes.
type announcer struct {
	server *session.Server
	closed atomic.Pointer[session.Closed] // nil: the waypoint is open
	load   atomic.Pointer[session.Load]   // nil: the waypoint is not loaded
}

func (a *announcer) announce(s giving.Standing) {
	var closed *session.Closed
	if s.Closed() {
		closed = &session.Closed{Code: s.Cause.Code(), Until: s.Until}
	}
	a.closed.Store(closed)
	a.server.Tell()
}

func (a *announcer) announceLoad(until time.Time, gives float64) {
	a.load.Store(&session.Load{Until: until, Gives: gives})
	a.server.Tell()
}

// Load implements session.Handler.
func (a *announcer) Load() session.Load {
	if load := a.load.Load(); load != nil {
		return *load
	}
	return session.Load{}
}

// Closed implements session.Handler.
func (a *announcer) Closed() *session.Closed { return a.closed.Load() }

// handler implements session.Handler with the parts of the waypoint role.
type handler struct {
	*announcer
	way       *waypoint.Waypoint
	doorman   *doorman
	expelling *expeller
	vantage   *vantage.Server // nil: not allowed
	offered
}

func newHandler(ctx context.Context, c Config, server *session.Server, o *outside.Outside) (*handler, error) {
	h := &handler{announcer: &announcer{server: server}, doorman: newDoorman(ctx, o, c.Log.With("subsystem", "nat"))}
	var err error
	if h.way, err = startWaypoint(c, o.Seen(), h.announcer); err != nil {
		return nil, err
	}
	h.vantage = vantagePoint(c, h.way)
	h.offered = openOffers(ctx, c, h.way, server.Addr())
	if err := h.way.SetTunnelInterfaces(h.interfaces()); err != nil {
		return nil, errors.Join(err, h.way.Close())
	}
	snap, err := h.way.Snapshot()
	if err != nil {
		return nil, errors.Join(err, h.way.Close())
	}
	var hurry <-chan struct{}
	if c.Member != nil {
		hurry = c.Member.TrustChanged()
	}
	h.expelling = newExpeller(c.Identity.Check, h.expel, hurry, c.Log.With("subsystem", "expulsion"))
	for _, m := range snap.Members { // of an earlier agent
		h.expelling.seen(collective.Member{Name: m.Name, Serial: m.Serial})
	}
	return h, nil
}

func peer(p session.Peer) session.Peer {
	return session.Peer{ID: p.ID, Name: p.Name, Serial: p.Serial, Key: p.Key, Addr: p.Addr, Proof: p.Proof}
}

// SessionUp implements session.Handler.
func (h *handler) SessionUp(p session.Peer) {
	h.expelling.seen(memberOf(p))
	h.way.SessionUp(peer(p))
}

// SessionDown implements session.Handler.
func (h *handler) SessionDown(p session.Peer) {
	h.way.SessionDown(peer(p))
	h.expelling.sessionDown(p)
}

// SessionMoved implements session.Handler.
func (h *handler) SessionMoved(before, now session.Peer) { h.way.SessionMoved(peer(before), peer(now)) }

// MemberLeft implements session.Handler.
func (h *handler) MemberLeft(now session.Peer, from netip.Addr) { h.way.MemberLeft(peer(now), from) }

// Aside implements session.Handler: it traces for other members.
func (h *handler) Aside(ctx context.Context, p session.Peer, s session.Stream) {
	h.vantage.Serve(ctx, p.Name, s)
}

// Offers implements session.Handler.
func (h *handler) Offers() []wire.Kind { return h.offers }

// Map implements session.Handler.
func (h *handler) Map(ctx context.Context, p session.Peer, r wire.MapRequest) (wire.MapGrant, *wire.Refusal) {
	if !slices.Contains(h.offers, wire.Mapped) {
		return wire.MapGrant{}, &wire.Refusal{Code: wire.NotOffered}
	}
	return h.way.Map(ctx, peer(p), r)
}

// Tunnel implements session.Handler.
func (h *handler) Tunnel(ctx context.Context, p session.Peer, r wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal) {
	if g := h.givers[r.Kind]; g != nil {
		granted, refusal := g.Give(ctx, peer(p), r)
		if refusal == nil && r.Port != 0 {
			h.doorman.admit(p.Name, netip.AddrPortFrom(p.Addr, r.Port))
		}
		return granted, refusal
	}
	if r.Kind == wire.InBand {
		return h.way.InBand(ctx, peer(p), r) // it refuses if in-band detours are off
	}
	if r.Kind == wire.Converter {
		return h.converter(ctx, p, r)
	}
	return wire.TunnelGrant{}, &wire.Refusal{Code: wire.NotOffered}
}

// converter admits a member to the converter. In a tunnel, a converter behind a NAT is called at its end of the tunnel, because
// its host does not have the address that the member knows.
func (h *handler) converter(ctx context.Context, p session.Peer, r wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal) {
	granted, refusal := h.way.Converter(ctx, peer(p), r)
	if g := h.givers[wire.WireGuard]; refusal == nil && g != nil && r.From.IsValid() && r.To.IsValid() && !h.way.HasAddress(r.To) {
		granted.At = g.Gateway(r.From)
	}
	return granted, refusal
}

// expel ends all leases and connections of a member.
func (h *handler) expel(member string) error {
	err := h.way.Expel(member)
	for _, g := range h.givers {
		err = errors.Join(err, g.Expel(member))
	}
	return err
}
