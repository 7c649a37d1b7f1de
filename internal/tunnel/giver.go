package tunnel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/vpn"
)

// Gate is what a Giver needs of the waypoint: packets from these addresses are a
// member's. It is *waypoint.Waypoint.
type Gate interface {
	AdmitTunnel(ctx context.Context, peer session.Peer, kind wire.Kind, addrs []netip.Addr, lease time.Duration) *wire.Refusal
	// RefuseTunnel counts and records a refusal.
	RefuseTunnel(ctx context.Context, peer session.Peer, refusal *wire.Refusal)
	RevokeTunnel(addrs []netip.Addr) error
}

// far is the waypoint's end of one kind of tunnel.
type far interface {
	// holder is who asks; false: the request lacks what it takes.
	holder(peer session.Peer, req wire.TunnelRequest) (holder, bool)
	// admit lets a holder in with these addresses, and adds to the grant what its
	// end must know. It may be called again for the same holder.
	admit(holder holder, addrs []netip.Prefix, g *wire.TunnelGrant) error
	expel(h holder) error
	// tend looks after what others may change, every second. anew: the interface is
	// another one, without addresses and routes, and nobody is let in.
	tend(now time.Time, held []held) (anew bool, err error)
	iface() string
	// problem says why members' tunnels do not work now, though they are offered.
	problem() error
	mtu() int
	// peerMTU is the largest packet to a member's address; 0: the interface's.
	peerMTU(a netip.Addr) int
	close() error
}

// holder is who has a tunnel: one host of a member.
type holder struct {
	member string
	key    string // empty where a member has one tunnel at most
}

// GiveConfig is what a Giver of any kind needs.
type GiveConfig struct {
	Seed      [32]byte       // of the members' addresses; a secret that outlives restarts
	Ranges    []netip.Prefix // that the addresses are taken from
	PerMember int            // tunnels of a member at a time
	Lease     time.Duration
	Gate      Gate
	Log       *slog.Logger
}

// Giver gives tunnels of one kind to members.
type Giver struct {
	kind   wire.Kind
	config GiveConfig
	far    far
	host   host
	guard  guard // keeps this host's own traffic out
	log    *slog.Logger

	mu      sync.Mutex
	pool    *vpn.Pool
	held    map[string]held     // by the holder's id
	members map[string][]string // ids of a member's tunnels
	changed bool                // this host's addresses or routes, since they were read
	looked  time.Time           // when the guard was last looked at

	amiss string // as it was last complained about
}

// held is what a holder has.
type held struct {
	holder
	assigned []netip.Prefix // its addresses, with their subnets' length
	until    time.Time
}

func (h held) addrs() []netip.Addr {
	var list []netip.Addr
	for _, p := range h.assigned {
		list = append(list, p.Addr())
	}
	return list
}

// newGiver makes a giver of a far end, which it closes if it cannot.
func newGiver(kind wire.Kind, config GiveConfig, f far, on host) (*Giver, error) {
	g := &Giver{
		kind: kind, config: config, far: f, host: on, log: config.Log.With("kind", kind.String()),
		held: make(map[string]held), members: make(map[string][]string),
	}
	if err := g.open(); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return g, nil
}

// open guards the interface, and gives it its addresses.
func (g *Giver) open() (err error) {
	if g.guard, err = g.host.guardOutput(g.far.iface()); err != nil {
		return err
	}
	used, err := g.host.usedPrefixes(g.far.iface())
	if err == nil {
		g.pool = vpn.NewPool(g.config.Seed, g.config.Ranges, used)
		err = g.setUp()
	}
	if err != nil {
		return errors.Join(err, g.guard.Close())
	}
	return nil
}

// Interface is the tunnel interface that members' packets come in by.
func (g *Giver) Interface() string { return g.far.iface() }

// Problem says why members' tunnels do not work now, or not in full, though they
// are offered; nil: nothing is known to be amiss.
func (g *Giver) Problem() error {
	if err := g.far.problem(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if ranges := g.pool.Unusable(); len(ranges) > 0 {
		return fmt.Errorf("this host's own networks leave no room for tunnels' addresses in %v: set tunnel_ranges, here and at the members", ranges[0])
	}
	return nil
}

// Give answers a member's request. What a member has it keeps until its lease is
// over, also when a renewal is refused or fails.
func (g *Giver) Give(ctx context.Context, peer session.Peer, req wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h, ok := g.far.holder(peer, req)
	if !ok {
		return wire.TunnelGrant{}, &wire.Refusal{Code: wire.Malformed, Message: "a request for a WireGuard tunnel names the client's own key"}
	}
	now := time.Now()
	if refusal := g.mayHave(h, now); refusal != nil {
		g.config.Gate.RefuseTunnel(ctx, peer, refusal)
		return wire.TunnelGrant{}, refusal
	}
	before := g.held[h.id()]
	assigned, err := g.pool.Choose(h.id(), before.assigned, req.Avoid)
	if err != nil {
		return wire.TunnelGrant{}, &wire.Refusal{Code: wire.Busy, Message: err.Error(), RetryAfter: retryLater}
	}
	next := held{holder: h, assigned: assigned, until: now.Add(g.config.Lease)}
	if refusal := g.config.Gate.AdmitTunnel(ctx, peer, g.kind, next.addrs(), g.config.Lease); refusal != nil {
		return wire.TunnelGrant{}, refusal
	}
	grant := wire.TunnelGrant{Kind: g.kind, Lease: g.config.Lease, Addresses: assigned, MTU: uint16(g.far.mtu())}
	if err := g.admit(before, next, &grant); err != nil {
		g.log.Error("member gets no tunnel", "member", peer.Name, "err", err)
		return wire.TunnelGrant{}, &wire.Refusal{Code: wire.Internal, RetryAfter: retryLater}
	}
	return grant, nil
}

// mayHave refuses a tunnel more than a member may have, and a key that is another
// member's.
func (g *Giver) mayHave(h holder, now time.Time) *wire.Refusal {
	if has, is := g.held[h.id()]; is {
		if has.member != h.member {
			return &wire.Refusal{Code: wire.Malformed, Message: "the key is another member's: make one of your own"}
		}
		return nil
	}
	ids := g.members[h.member]
	if len(ids) < g.config.PerMember {
		return nil
	}
	first := slices.MinFunc(ids, func(a, b string) int { return g.held[a].until.Compare(g.held[b].until) })
	return &wire.Refusal{
		Code: wire.QuotaTunnels, Message: fmt.Sprintf("%d of %d", len(ids), g.config.PerMember),
		RetryAfter: wire.Span(g.held[first].until.Sub(now)),
	}
}

// admit has a tunnel be as it is to be next, or else leaves it as it was before.
// The gate has let the holder in already.
func (g *Giver) admit(before, next held, grant *wire.TunnelGrant) error {
	added, gone := without(next.addrs(), before.addrs()), without(before.addrs(), next.addrs())
	err := g.route(added)
	if err == nil {
		err = g.far.admit(next.holder, next.assigned, grant)
	}
	if err != nil {
		err = errors.Join(err, g.unroute(added))
		switch {
		case before.until.IsZero():
			err = errors.Join(err, g.far.expel(next.holder))
		case len(added)+len(gone) > 0:
			err = errors.Join(err, g.far.admit(before.holder, before.assigned, &wire.TunnelGrant{}))
		}
		return err
	}
	if before.until.IsZero() {
		g.members[next.member] = append(g.members[next.member], next.id())
	}
	g.held[next.id()] = next
	g.pool.Take(added...)
	g.pool.Release(gone...)
	if err := g.unroute(gone); err != nil {
		g.log.Warn("a member's former address is not taken back", "member", next.member, "err", err)
	}
	return nil
}

// route leads packets to members' addresses, each by itself, into the tunnel.
func (g *Giver) route(addrs []netip.Addr) error {
	for _, a := range addrs {
		if err := g.host.setPeer(g.far.iface(), a, g.far.peerMTU(a)); err != nil {
			return err
		}
	}
	return nil
}

// unroute ends what route began, and what the gate lets in from there.
func (g *Giver) unroute(addrs []netip.Addr) error {
	if len(addrs) == 0 {
		return nil
	}
	var errs []error
	for _, a := range addrs {
		errs = append(errs, g.host.removePeer(g.far.iface(), a))
	}
	return errors.Join(append(errs, g.config.Gate.RevokeTunnel(addrs))...)
}

func without(list, others []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return slices.Contains(others, a) })
}

// Expel takes back what a member has.
func (g *Giver) Expel(member string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for _, id := range slices.Clone(g.members[member]) {
		errs = append(errs, g.end(id))
	}
	return errors.Join(errs...)
}

// end takes back a tunnel.
func (g *Giver) end(id string) error {
	h := g.held[id]
	delete(g.held, id)
	ids := g.members[h.member]
	if ids = slices.DeleteFunc(ids, func(other string) bool { return other == id }); len(ids) > 0 {
		g.members[h.member] = ids
	} else {
		delete(g.members, h.member)
	}
	g.pool.Release(h.addrs()...)
	return errors.Join(g.far.expel(h.holder), g.unroute(h.addrs()))
}

// id is the key, which is one holder's, or else the member's name.
func (h holder) id() string {
	if h.key != "" {
		return h.key
	}
	return h.member
}
