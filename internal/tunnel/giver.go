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

// Gate is the part of a waypoint that a Giver needs: it assigns source addresses to members.
// *waypoint.Waypoint implements it.
type Gate interface {
	AdmitTunnel(ctx context.Context, peer session.Peer, kind wire.Kind, addrs []netip.Addr, lease time.Duration) *wire.Refusal
	// RefuseTunnel counts and records a refusal.
	RefuseTunnel(ctx context.Context, peer session.Peer, refusal *wire.Refusal)
	RevokeTunnel(addrs []netip.Addr) error
}

// far is the waypoint's end of one kind of tunnel.
type far interface {
	// holder returns who the request is for, or false if the request lacks the necessary fields.
	holder(peer session.Peer, req wire.TunnelRequest) (holder, bool)
	// admit lets a holder in with these addresses, and adds to the grant what the client's end
	// needs. It may be called again for the same holder.
	admit(holder holder, addrs []netip.Prefix, g *wire.TunnelGrant) error
	expel(h holder) error
	// tend repairs what others may have changed, every second. anew reports that the interface was
	// created again, without addresses, routes and peers.
	tend(now time.Time, held []held) (anew bool, err error)
	// removed delivers something when another program has removed rules that checkRules restores.
	removed() <-chan struct{}
	checkRules() error
	iface() string
	// problem returns why members' tunnels do not work now although they are offered.
	problem() error
	mtu() int
	// peerMTU returns the largest packet to a member's address, or 0 for the interface's MTU.
	peerMTU(a netip.Addr) int
	close() error
}

// holder identifies the owner of a tunnel: one host of a member.
type holder struct {
	member string
	key    string // empty if a member has one tunnel at most
}

// GiveConfig configures a Giver of any kind.
type GiveConfig struct {
	Seed      [32]byte       // for choosing members' addresses; a secret that survives restarts
	Ranges    []netip.Prefix // from which the addresses are taken
	PerMember int            // limit of simultaneous tunnels for each member
	Lease     time.Duration
	Gate      Gate
	Log       *slog.Logger
}

// Giver grants tunnels of one kind to members.
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
	changed bool                // this host's addresses or routes changed since they were read
	looked  time.Time           // when the guard was last checked

	amiss string // the problem last logged
}

// held is a tunnel that a holder has.
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

// newGiver returns a Giver for the far end f. On an error it closes f.
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

// open guards the interface and gives it its addresses.
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

// Interface returns the name of the tunnel interface from which members' packets arrive.
func (g *Giver) Interface() string { return g.far.iface() }

// Gateway returns this host's own address in the tunnel of a member with the given address. It is invalid if there is
// none of that family.
func (g *Giver) Gateway(member netip.Addr) netip.Addr {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.pool.Gateways() {
		if p.Addr().Is4() == member.Is4() {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// Problem returns why members' tunnels do not work, or not fully, although they are offered. It
// returns nil if no problem is known.
func (g *Giver) Problem() error {
	if err := g.far.problem(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if ranges := g.pool.Unusable(); len(ranges) > 0 {
		return fmt.Errorf("no free tunnel addresses in %v, because this host uses these networks: set tunnel_ranges to another range, here and on all members", ranges[0])
	}
	return nil
}

// Give answers a member's request. An existing tunnel stays until its lease is over, even if a
// renewal is refused or fails.
func (g *Giver) Give(ctx context.Context, peer session.Peer, req wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h, ok := g.far.holder(peer, req)
	if !ok {
		return wire.TunnelGrant{}, &wire.Refusal{Code: wire.Malformed, Message: "a request for a WireGuard tunnel must contain the client's public key"}
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

// mayHave refuses a tunnel beyond the member's limit, and a key that belongs to another member.
func (g *Giver) mayHave(h holder, now time.Time) *wire.Refusal {
	if has, is := g.held[h.id()]; is {
		if has.member != h.member {
			return &wire.Refusal{Code: wire.Malformed, Message: "this key belongs to another member: generate your own"}
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

// admit changes a tunnel from before to next. If that fails, it restores the tunnel. The gate has
// let the holder in already.
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
		g.log.Warn("cannot take back a member's former address", "member", next.member, "err", err)
	}
	return nil
}

// route routes each of a member's addresses into the tunnel.
func (g *Giver) route(addrs []netip.Addr) error {
	for _, a := range addrs {
		if err := g.host.setPeer(g.far.iface(), a, g.far.peerMTU(a)); err != nil {
			return err
		}
	}
	return nil
}

// unroute removes the routes and the gate's admission for these addresses.
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

// Expel ends all tunnels of a member.
func (g *Giver) Expel(member string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for _, id := range slices.Clone(g.members[member]) {
		errs = append(errs, g.end(id))
	}
	return errors.Join(errs...)
}

// end ends one tunnel.
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

// id returns the key, which belongs to one holder only, or the member's name if there is no key.
func (h holder) id() string {
	if h.key != "" {
		return h.key
	}
	return h.member
}
