package waypoint

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// InBandMode is whose SYNs that name a server are sent on to it.
type InBandMode = rules.InBandMode

// The modes. Without the authenticator, whoever shares a member's address shares its detours.
const (
	InBandOff           = rules.InBandOff
	InBandOpen          = rules.InBandOpen
	InBandAuthenticated = rules.InBandAuthenticated
)

// keysPerSession lets the key before the last be good for what is under way with it.
const keysPerSession = 2

// adoptedGrace is how long members have to come back after an agent that was killed.
const adoptedGrace = time.Minute

// OffersInBand tells whether members can have in-band detours, and why not.
func (w *Waypoint) OffersInBand() (ok bool, why string) {
	switch {
	case w.config.InBand == InBandOff:
		return false, "in-band detours are switched off ([waypoint] offers)"
	case w.config.InBand == InBandAuthenticated && w.kernel.receiver == nil:
		return false, "in-band detours are not offered, as their SYNs cannot be authenticated: " + w.kernel.noReceiver.Error()
	}
	return true, ""
}

// InBand admits the peer's address to in-band detours until the lease is over or the member has no
// more session from there. Where SYNs are authenticated, each grant comes with a new key; the one
// before stays good for its own lease.
func (w *Waypoint) InBand(ctx context.Context, peer Peer, req wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal) {
	var grant wire.TunnelGrant
	var refusal *wire.Refusal
	if err := w.askIn(ctx, func() { grant, refusal = w.grantInBand(peer, req, time.Now()) }); err != nil {
		return wire.TunnelGrant{}, unasked(ctx, req.ID)
	}
	return grant, refusal
}

func (w *Waypoint) grantInBand(peer Peer, req wire.TunnelRequest, now time.Time) (wire.TunnelGrant, *wire.Refusal) {
	m := w.members.get(peer.Name, peer.Serial)
	if m == nil {
		return wire.TunnelGrant{}, w.refuseTunnel(w.members.of(0), peer, now, tooManyMembers(req.ID))
	}
	p := &pass{presence: presence{m, peer.client()}, session: peer.ID, by: w.sessions.by(peer.ID), clientPort: req.Local == peer.client(),
		expires: now.Add(w.config.MappingLifetime)}
	if refusal := w.mayPass(p, req.ID, now); refusal != nil {
		return wire.TunnelGrant{}, w.refuseTunnel(m, peer, now, refusal)
	}
	first := w.passes.until(p.presence).IsZero()
	old := w.passes.superseded(p.addr, p.session)
	w.passes.takeAt(p.addr, func(x *pass) bool { return slices.Contains(old, x) }, map[presence]*attribution.Session{})
	if w.config.InBand == InBandAuthenticated {
		_, _ = rand.Read(p.key[:]) // never fails
	}
	w.passes.add(p)
	if err := w.writePass(p, now); err != nil {
		w.log.Error("cannot admit to in-band detours", "member", m.Name, "err", err)
		_ = w.endPasses(func(x *pass) bool { return x == p }) // which logs its failure
		refusal := refuse(req.ID, wire.Internal, "")
		refusal.RetryAfter = retryFault
		return wire.TunnelGrant{}, w.refuseTunnel(m, peer, now, refusal)
	}
	m.granted++
	if first {
		w.record.Write(w.passEntry(attribution.AdmissionGranted, now, p.presence, p.by))
	}
	grant := wire.TunnelGrant{ID: req.ID, Kind: wire.InBand, Lease: w.config.MappingLifetime, Client: p.addr}
	if w.config.InBand == InBandAuthenticated {
		grant.Key, grant.ClientPort = p.key[:], p.clientPort
	}
	return grant, nil
}

// mayPass refuses what the policy, the operator or the place forbids.
func (w *Waypoint) mayPass(p *pass, id uint64, now time.Time) *wire.Refusal {
	if ok, why := w.OffersInBand(); !ok {
		return refuse(id, wire.NotOffered, why)
	}
	if refusal := w.whileClosed(id, now); refusal != nil {
		return refusal
	}
	if !p.addr.Is4() {
		return refuse(id, wire.FamilyMismatch, "a SYN has room for the address of an IPv4 server only")
	}
	if w.sessions.at[p.presence] == 0 {
		refusal := refuse(id, wire.Busy, fmt.Sprintf("you have no session from %v any more", p.addr))
		refusal.RetryAfter = retryFault
		return refusal
	}
	there := w.passes[p.addr]
	for _, x := range there {
		if x.member != p.member && w.config.InBand == InBandOpen {
			refusal := refuse(id, wire.Busy, fmt.Sprintf("another member calls from your address %v, and without the authenticator the two of you look alike", p.addr))
			refusal.RetryAfter = retryQuota
			return refusal
		}
	}
	if len(there)-len(w.passes.superseded(p.addr, p.session)) >= inband.MaxSlots {
		refusal := refuse(id, wire.Busy, fmt.Sprintf("there are as many members at your address %v as the waypoint can tell apart", p.addr))
		refusal.RetryAfter = retryQuota
		return refusal
	}
	return nil
}

// writePass makes the kernel admit who has a pass, and know its key.
func (w *Waypoint) writePass(p *pass, now time.Time) error {
	change := rules.Change{Admit: []rules.Admission{w.passes.admission(p.presence, now)}}
	if !p.member.saved {
		change.Members = append(change.Members, p.member.Member)
	}
	if err := w.commit(change); err != nil {
		return err
	}
	p.member.saved = true
	return w.writeKeys(p.addr)
}

// writeKeys gives eBPF the keys of an address. What fails is tried again.
func (w *Waypoint) writeKeys(addr netip.Addr) error {
	if w.kernel.receiver == nil {
		return nil
	}
	if err := w.kernel.receiver.Set(addr, w.passes.slots(addr, w.config.marks())); err != nil {
		w.staleKeys[addr] = true
		w.problems.set(problemKeys, err.Error())
		return fmt.Errorf("set the keys of in-band detours from %v: %w", addr, err)
	}
	if delete(w.staleKeys, addr); len(w.staleKeys) == 0 {
		w.problems.clear(problemKeys)
	}
	return nil
}

// endPasses takes passes back. Who has none left is no longer admitted.
func (w *Waypoint) endPasses(which func(*pass) bool) error {
	now := time.Now()
	var change rules.Change
	var errs []error
	touched := w.passes.take(which)
	if len(touched) == 0 {
		return nil
	}
	for at, by := range touched {
		// Keys first: without one nothing gets through.
		errs = append(errs, w.writeKeys(at.addr))
		if !w.passes.until(at).IsZero() {
			change.Admit = append(change.Admit, w.passes.admission(at, now))
			continue
		}
		change.Revoke = append(change.Revoke, rules.Admission{Addr: at.addr, Kind: wire.InBand, Member: at.member.ID})
		w.record.Write(w.passEntry(attribution.AdmissionEnded, now, at, by))
	}
	err := errors.Join(append(errs, w.commit(change))...)
	if err != nil {
		w.log.Error("in-band detours do not end", "addresses", len(touched), "err", err)
		return fmt.Errorf("end in-band detours: %w", err)
	}
	return nil
}

// expirePasses forgets passes whose lease is over.
func (w *Waypoint) expirePasses(now time.Time) {
	_ = w.endPasses(func(p *pass) bool { return !p.expires.After(now.Add(-expiryGrace)) }) // which logs its failure
}

// sessionLeft ends the passes of a session that is no longer at an address, and with the last one
// all of its member there.
func (w *Waypoint) sessionLeft(id uint64, at presence) {
	last := w.sessions.at[at] == 0
	_ = w.endPasses(func(p *pass) bool { return p.presence == at && (last || p.session == id) }) // which logs its failure
}

// adoptPasses takes over whom an agent before us admitted, for as long as it takes to come back.
func (w *Waypoint) adoptPasses(list []rules.Admission) {
	now := time.Now()
	for _, a := range list {
		m := w.members.byID[a.Member]
		if a.Kind != wire.InBand || m == nil {
			continue
		}
		p := &pass{presence: presence{m, a.Addr}, expires: now.Add(min(a.Left, adoptedGrace))}
		if left, ok := w.leftKey(p.presence); ok {
			p.key, p.clientPort = left.Key, left.ClientPort
			if left.Expires.Before(p.expires) {
				p.expires = left.Expires
			}
		}
		w.passes.add(p)
	}
}

// leftKey returns the newest key that an agent before us left for a member at an address. The pass that holds
// it keeps it in place when another member comes back to that address first.
func (w *Waypoint) leftKey(at presence) (newest inband.Slot, ok bool) {
	if w.kernel.receiver == nil {
		return newest, false
	}
	slots, err := w.kernel.receiver.Slots(at.addr)
	if err != nil {
		w.log.Warn("keys of an earlier agent cannot be read, and end when another member comes back to their address", "address", at.addr, "err", err)
	}
	for _, s := range slots {
		if s.Mark == w.config.marks().Mark(at.member.ID, wire.InBand) {
			newest, ok = s, true
		}
	}
	return newest, ok
}

// dropForeignKeys removes keys of addresses that nobody has a pass for.
func (w *Waypoint) dropForeignKeys() {
	if w.kernel.receiver == nil {
		return
	}
	addrs, err := w.kernel.receiver.Addresses()
	if err != nil {
		w.log.Warn("keys of an earlier agent stay until they expire", "err", err)
		return
	}
	for _, addr := range addrs {
		if len(w.passes[addr]) == 0 {
			_ = w.writeKeys(addr) // noted and tried again
		}
	}
}

func (w *Waypoint) passEntry(event attribution.Event, now time.Time, at presence, by *attribution.Session) attribution.Entry {
	e := attribution.Entry{Time: now, Event: event, By: by, Kind: wire.InBand.String(), Member: at.member.Name, Serial: at.member.Serial, Client: at.addr}
	if event == attribution.AdmissionGranted {
		e.LeaseSeconds = w.config.MappingLifetime.Seconds()
	}
	return e
}
