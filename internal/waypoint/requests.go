package waypoint

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/lease"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// maxBatch bounds the requests that share a transaction, and so the wait of each.
const maxBatch = 512

// mapRequest is a request for a mapping that is sent to the loop, with the channel for its answer.
type mapRequest struct {
	lease.MappingRequest
	answer chan lease.MappingAnswer // holds one, so that the loop never waits
}

// request returns a member's request in the terms of package lease.
func request(p session.Peer, id uint64) lease.Request {
	return lease.Request{ID: id, Session: p.ID, Name: p.Name, Serial: p.Serial, Client: clean(p.Addr)}
}

// clean returns an address in the form that leases use: IPv4 as IPv4, and without a zone.
func clean(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

// unasked returns the refusal of a request that did not reach the loop.
func unasked(ctx context.Context, id uint64) *wire.Refusal {
	if ctx.Err() != nil {
		return &wire.Refusal{ID: id, Code: wire.Busy}
	}
	return &wire.Refusal{ID: id, Code: wire.ShuttingDown}
}

// Map returns a port of this host that leads to a server. Concurrent calls share a transaction.
func (w *Waypoint) Map(ctx context.Context, peer session.Peer, req wire.MapRequest) (wire.MapGrant, *wire.Refusal) {
	r := &mapRequest{lease.MappingRequest{Request: request(peer, req.ID), Server: req.Server, Proposed: req.Proposed, Sole: req.Sole}, make(chan lease.MappingAnswer, 1)}
	select {
	case w.requests <- r:
	case <-ctx.Done():
		return wire.MapGrant{}, unasked(ctx, req.ID)
	case <-w.stop:
		return wire.MapGrant{}, &wire.Refusal{ID: req.ID, Code: wire.ShuttingDown}
	}
	select {
	case a := <-r.answer:
		return a.Grant, a.Refusal
	case <-ctx.Done():
		return wire.MapGrant{}, unasked(ctx, req.ID)
	case <-w.stop:
		return wire.MapGrant{}, &wire.Refusal{ID: req.ID, Code: wire.ShuttingDown}
	}
}

// waiting returns first and the requests that are waiting now. A single request is not delayed. While it is written, others
// gather for the next transaction.
func (w *Waypoint) waiting(first *mapRequest) []*mapRequest {
	requests := []*mapRequest{first}
	for len(requests) < maxBatch {
		select {
		case r := <-w.requests:
			requests = append(requests, r)
			continue
		default:
		}
		break
	}
	return requests
}

// serve decides about requests for mappings, writes the mappings to the kernel, and answers.
func (l *loop) serve(requests []*mapRequest) {
	wanted := make([]lease.MappingRequest, len(requests))
	for i, r := range requests {
		wanted[i] = r.MappingRequest
	}
	batch, err := l.tryMappings(wanted)
	if err != nil {
		// The kernel's table differs from the leases: it is gone, or has a mapping that they lack.
		if err = l.table.reconcile(err); err == nil {
			batch, err = l.tryMappings(wanted)
		}
	}
	if err != nil {
		l.log.Error("cannot write mappings", "requests", len(requests), "err", err)
		l.problems.set(problemTable, err.Error())
	} else {
		l.problems.clear(problemTable)
	}
	for i, a := range batch.Answers(err != nil) {
		if a.Entry != nil {
			l.record.Write(*a.Entry)
		}
		requests[i].answer <- a
	}
}

// tryMappings decides about requests and writes the decisions. If it returns an error, nothing has changed.
func (l *loop) tryMappings(requests []lease.MappingRequest) (*lease.Batch, error) {
	now := time.Now()
	l.surroundings.refreshListeners(now)
	batch := l.leases.Decide(requests, l.conditions(now))
	change, needed := batch.Change()
	if !needed {
		return batch, nil
	}
	if err := l.table.kernel.Commit(change); err != nil {
		batch.Undo()
		return batch, err
	}
	batch.Written()
	return batch, nil
}

// conditions returns the conditions under which requests are decided now.
func (l *loop) conditions(now time.Time) lease.Conditions {
	_, why := l.offersInBand()
	return lease.Conditions{Now: now, Giving: l.giver.standing, LoadedUntil: l.loadedUntil, Policy: l.surroundings.policy, PortTaken: l.surroundings.taken, PortUnusable: l.config.PortUnusable, NoInBand: why, Of: l.limited.of}
}

// refused counts and records the refusal of a detour that leads to any server.
func (l *loop) refused(r lease.Request, refusal *wire.Refusal, now time.Time) *wire.Refusal {
	if e := l.leases.NoteRefusal(r, netip.AddrPort{}, refusal, now); e != nil {
		l.record.Write(*e)
	}
	return refusal
}

// InBandMode selects the SYNs that name a server and are forwarded to it.
type InBandMode = rules.InBandMode

// The modes. Without the authenticator, all hosts that share a member's address share its detours.
const (
	InBandOff           = rules.InBandOff
	InBandOpen          = rules.InBandOpen
	InBandAuthenticated = rules.InBandAuthenticated
)

// OffersInBand reports whether members can have in-band detours, and why not.
func (w *Waypoint) OffersInBand() (ok bool, why string) { return w.loop.offersInBand() }

// offersInBand may be called from any goroutine, because it reads only constant state.
func (l *loop) offersInBand() (ok bool, why string) {
	switch {
	case l.config.InBand == InBandOff:
		return false, "in-band detours are switched off ([waypoint] offers)"
	case l.config.InBand == InBandAuthenticated && l.kernel.receiver == nil:
		return false, "in-band detours are not offered, because their SYNs cannot be authenticated: " + l.kernel.noReceiver.Error()
	}
	return true, ""
}

// InBand admits the peer's address to in-band detours, until the lease ends or the member's last session from
// there does. If SYNs are authenticated, each grant has a new key. The earlier key stays valid for its own
// lease.
func (w *Waypoint) InBand(ctx context.Context, peer session.Peer, req wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal) {
	r := lease.InBandRequest{Request: request(peer, req.ID)}
	r.ClientPort = req.Local == r.Client
	if w.loop.config.InBand == InBandAuthenticated {
		_, _ = rand.Read(r.Key[:]) // never fails
	}
	var refusal *wire.Refusal
	if err := w.askIn(ctx, func() { refusal = w.loop.admitInBand(r, time.Now()) }); err != nil {
		refusal = unasked(ctx, req.ID)
	}
	if refusal != nil {
		return wire.TunnelGrant{}, refusal
	}
	grant := wire.TunnelGrant{ID: req.ID, Kind: wire.InBand, Lease: w.loop.config.MappingLifetime, Client: r.Client}
	if w.loop.config.InBand == InBandAuthenticated {
		grant.Key, grant.ClientPort = r.Key[:], r.ClientPort
	}
	return grant, nil
}

func (l *loop) admitInBand(r lease.InBandRequest, now time.Time) *wire.Refusal {
	admitting, refusal := l.leases.AdmitInBand(r, l.conditions(now))
	if refusal != nil {
		return l.refused(r.Request, refusal, now)
	}
	if err := l.admit(admitting); err != nil {
		l.log.Error("cannot admit to in-band detours", "member", r.Name, "err", err)
		return l.refused(r.Request, lease.Failed(r.ID), now)
	}
	return nil
}

// Converter admits the peer to this host's converter until the lease is over: from its session's address, or from an address
// that it has in a WireGuard tunnel.
func (w *Waypoint) Converter(ctx context.Context, peer session.Peer, req wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal) {
	own := w.loop.config.Converter
	if own == nil {
		return wire.TunnelGrant{}, &wire.Refusal{ID: req.ID, Code: wire.NotOffered}
	}
	r, now := request(peer, req.ID), time.Now()
	var mark uint32
	var refusal *wire.Refusal
	var incoming []wire.IncomingGrant
	if err := w.askIn(ctx, func() {
		if refusal = w.loop.leases.TunnelTo(req.From, r); refusal != nil {
			return
		}
		if mark, refusal = w.loop.admitConverter(r, now); refusal == nil {
			incoming = w.loop.takePorts(lease.PortsRequest{Request: r, Listens: req.Port, Ports: req.Incoming}, now)
		}
	}); err != nil {
		refusal = unasked(ctx, req.ID)
	}
	if refusal != nil {
		return wire.TunnelGrant{}, refusal
	}
	length := w.loop.config.MappingLifetime
	from := r.Client
	if req.From.IsValid() {
		from = req.From
	}
	proof := own.Key.Seal(cookie.Claim{Mark: mark, Client: from, Expires: now.Add(length)})
	return wire.TunnelGrant{
		ID: req.ID, Kind: wire.Converter, Lease: length, Client: r.Client, Port: own.Port, Cookie: proof, Incoming: incoming, From: req.From,
	}, nil
}

// HasAddress reports whether an address is this host's own. That of a NAT in front of it is not.
func (w *Waypoint) HasAddress(addr netip.Addr) (has bool) {
	// An error means that the waypoint has ended.
	_ = w.ask(func() { has = slices.Contains(w.loop.surroundings.now.Own, addr) })
	return has
}

func (l *loop) admitConverter(r lease.Request, now time.Time) (uint32, *wire.Refusal) {
	admitting, mark, refusal := l.leases.AdmitConverter(r, l.conditions(now))
	if refusal != nil {
		return 0, l.refused(r, refusal, now)
	}
	if err := l.admit(admitting); err != nil {
		l.log.Error("cannot admit to the converter", "member", r.Name, "err", err)
		return 0, l.refused(r, lease.Failed(r.ID), now)
	}
	return mark, nil
}

// AdmitTunnel admits connections from these addresses in a tunnel, as the member's, until the lease ends. Another call
// renews the lease, even while the waypoint is closed. If an address belonged to another member, that member's
// connections from it end.
func (w *Waypoint) AdmitTunnel(ctx context.Context, peer session.Peer, kind wire.Kind, addrs []netip.Addr, length time.Duration) *wire.Refusal {
	r := lease.TunnelRequest{Request: request(peer, 0), Kind: kind, Addresses: addrs, Lease: length}
	var refusal *wire.Refusal
	if err := w.askIn(ctx, func() { refusal = w.loop.admitTunnel(r, time.Now()) }); err != nil {
		return unasked(ctx, 0)
	}
	return refusal
}

func (l *loop) admitTunnel(r lease.TunnelRequest, now time.Time) *wire.Refusal {
	admitting, refusal := l.leases.AdmitTunnel(r, l.conditions(now))
	if refusal != nil {
		return l.refused(r.Request, refusal, now)
	}
	if err := l.admit(admitting); err != nil {
		l.log.Error("cannot admit a tunnel", "member", r.Name, "kind", r.Kind, "err", err)
		return l.refused(r.Request, lease.Failed(r.ID), now)
	}
	return nil
}

// RefuseTunnel counts and records the refusal of a tunnel, which the Giver of the kind has decided.
func (w *Waypoint) RefuseTunnel(ctx context.Context, peer session.Peer, refusal *wire.Refusal) {
	// An error means that the session or the waypoint has ended.
	_ = w.askIn(ctx, func() { _ = w.loop.refused(request(peer, 0), refusal, time.Now()) })
}

// RevokeTunnel ends an admission by AdmitTunnel, and the connections that came from the addresses. Addresses
// that no member has are ignored.
func (w *Waypoint) RevokeTunnel(addrs []netip.Addr) error {
	var err error
	if asked := w.ask(func() { err = w.loop.end(w.loop.leases.EndTunnels(addrs, time.Now())) }); asked != nil {
		err = asked
	}
	if err != nil {
		return fmt.Errorf("revoke tunnel addresses: %w", err)
	}
	return nil
}

// SetTunnelInterfaces sets the interfaces at which tunnels end. Packets from these are forwarded from
// admitted addresses only, and do not reach this host's own services.
func (w *Waypoint) SetTunnelInterfaces(names []string) error {
	var err error
	asked := w.ask(func() {
		err = w.loop.table.setTunnelInterfaces(names)
		w.loop.filters.attach(w.loop.table.rest.TunnelInterfaces, time.Now())
	})
	if asked != nil {
		err = asked
	}
	if err != nil {
		return fmt.Errorf("set the tunnel interfaces: %w", err)
	}
	return nil
}
