package tunnel

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/vpn"
	"github.com/detour-collective/dcol/internal/waypoint"
)

// Gate is what a Giver needs of the waypoint: packets from these addresses are a
// member's. It is *waypoint.Waypoint.
type Gate interface {
	AdmitTunnel(ctx context.Context, peer waypoint.Peer, kind wire.Kind, addrs []netip.Addr, lease time.Duration) *wire.Refusal
	RevokeTunnel(addrs []netip.Addr) error
}

// far is the waypoint's end of one kind of tunnel.
type far interface {
	// holder is who asks; false: the request lacks what it takes.
	holder(peer waypoint.Peer, req wire.TunnelRequest) (holder, bool)
	// admit lets a holder in with these addresses, and adds to the grant what its
	// end must know. It may be called again for the same holder.
	admit(holder holder, addrs []netip.Prefix, g *wire.TunnelGrant) error
	expel(h holder) error
	// tend looks after what others may change, every second. anew: the interface is
	// another one, without addresses, and nobody is let in.
	tend(now time.Time, held map[holder][]netip.Addr) (anew bool, err error)
	iface() string
	// problem says why members' tunnels do not work now, though they are offered.
	problem() error
	mtu() int
	close() error
}

// holder is who has a tunnel: one host of a member.
type holder struct {
	member string
	key    string // empty where a member has one tunnel at most
}

// Giver gives tunnels of one kind to members.
type Giver struct {
	kind  wire.Kind
	lease time.Duration
	gate  Gate
	far   far
	host  host
	log   *slog.Logger

	mu   sync.Mutex
	pool *vpn.Pool
	held map[string]held // by the holder's name in the pool

	amiss string // as it was last complained about
}

// held is what a holder has.
type held struct {
	holder
	assigned []netip.Prefix // its addresses, with their subnets' length
}

func (h held) addrs() []netip.Addr {
	var list []netip.Addr
	for _, p := range h.assigned {
		list = append(list, p.Addr())
	}
	return list
}

// newGiver makes a giver of a far end, which it closes if it cannot.
func newGiver(name string, kind wire.Kind, lease time.Duration, gate Gate, f far, on host, log *slog.Logger) (*Giver, error) {
	used, err := on.usedPrefixes()
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	return &Giver{
		kind: kind, lease: lease, gate: gate, far: f, host: on, log: log.With("kind", kind.String()),
		pool: vpn.NewPool(name+" "+kind.String(), used...), held: make(map[string]held),
	}, nil
}

// Interface is the tunnel interface that members' packets come in by.
func (g *Giver) Interface() string { return g.far.iface() }

// Problem says why members' tunnels do not work now, though they are offered; nil:
// nothing is known to be amiss.
func (g *Giver) Problem() error { return g.far.problem() }

// Run takes back what nobody asked for again, until ctx ends; then everything.
func (g *Giver) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return g.stop()
		case now := <-tick.C:
			g.expire(now)
			g.tend(now)
		}
	}
}

// stop ends the far end and takes its interface back. Requests may still be under way.
func (g *Giver) stop() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Join(g.far.close(), g.host.removeTunnel(g.far.iface()))
}

// Give answers a member's request.
func (g *Giver) Give(ctx context.Context, peer waypoint.Peer, req wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h, ok := g.far.holder(peer, req)
	if !ok {
		return wire.TunnelGrant{}, &wire.Refusal{Code: wire.Malformed, Message: "a request for a WireGuard tunnel names the client's key"}
	}
	assigned, err := g.pool.Take(h.name(), req.Avoid, time.Now().Add(g.lease))
	if err != nil {
		return wire.TunnelGrant{}, &wire.Refusal{Code: wire.Busy, Message: err.Error(), RetryAfter: retryLater}
	}
	now := held{holder: h, assigned: assigned.Addresses}
	grant := wire.TunnelGrant{Kind: g.kind, Lease: g.lease, Addresses: assigned.Addresses, MTU: uint16(g.far.mtu())}
	if refusal := g.admit(ctx, peer, now, &grant); refusal != nil {
		g.pool.Release(h.name())
		if err := g.end(h.name()); err != nil {
			g.log.Warn("a refused member's tunnel is not taken back", "member", peer.Name, "err", err)
		}
		return wire.TunnelGrant{}, refusal
	}
	return grant, nil
}

// admit lets the holder in, at the gate and at the far end.
func (g *Giver) admit(ctx context.Context, peer waypoint.Peer, now held, grant *wire.TunnelGrant) *wire.Refusal {
	before := g.held[now.name()]
	g.held[now.name()] = now
	if refusal := g.gate.AdmitTunnel(ctx, peer, g.kind, now.addrs(), g.lease); refusal != nil {
		return refusal
	}
	err := errors.Join(g.setUp(), g.far.admit(now.holder, now.assigned, grant))
	if gone := without(before.addrs(), now.addrs()); err == nil && len(gone) > 0 {
		err = g.gate.RevokeTunnel(gone)
	}
	if err != nil {
		g.log.Error("member gets no tunnel", "member", peer.Name, "err", err)
		return &wire.Refusal{Code: wire.Internal, RetryAfter: retryLater}
	}
	return nil
}

// setUp gives the waypoint's interface its addresses.
func (g *Giver) setUp() error {
	return g.host.setTunnel(netstate.Tunnel{Interface: g.far.iface(), MTU: g.far.mtu(), Addresses: g.pool.Gateways()})
}

func without(list, others []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return slices.Contains(others, a) })
}

// Expel takes back what a member has.
func (g *Giver) Expel(member string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for name, h := range g.held {
		if h.member == member {
			g.pool.Release(name)
			errs = append(errs, g.end(name))
		}
	}
	return errors.Join(errs...)
}

func (g *Giver) expire(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.pool.Expire(now) {
		if err := g.end(e.Holder); err != nil {
			g.log.Warn("a tunnel whose lease is over is not taken back", "err", err)
		}
	}
}

// tend has the far end look after itself, and lets everybody in again if it had to
// begin anew.
func (g *Giver) tend(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	addrs := make(map[holder][]netip.Addr, len(g.held))
	for _, h := range g.held {
		addrs[h.holder] = h.addrs()
	}
	anew, err := g.far.tend(now, addrs)
	if anew {
		err = errors.Join(err, g.setUp())
		for _, h := range g.held {
			err = errors.Join(err, g.far.admit(h.holder, h.assigned, &wire.TunnelGrant{}))
		}
	}
	g.complain(err)
}

// complain says what is amiss with the far end, once as long as it is.
func (g *Giver) complain(err error) {
	if err == nil {
		g.amiss = ""
		return
	}
	if text := err.Error(); text != g.amiss {
		g.amiss = text
		g.log.Warn("tunnels cannot be looked after", "err", err)
	}
}

// end takes back what is out of the pool already.
func (g *Giver) end(name string) error {
	h := g.held[name]
	delete(g.held, name)
	return errors.Join(g.far.expel(h.holder), g.gate.RevokeTunnel(h.addrs()))
}

func (h holder) name() string { return h.member + " " + h.key }
