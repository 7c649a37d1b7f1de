package waypoint

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// tunnelAddr is an address in a tunnel that is a member's.
type tunnelAddr struct {
	member  *member
	kind    wire.Kind
	client  netip.Addr // where the member called from when it got it; invalid: an agent before us knew
	session uint64     // over which it was asked for last; 0: of an agent before us
	by      *attribution.Session
	left    bool // that session has ended
	expires time.Time
}

// AdmitTunnel makes connections that come from these addresses out of a tunnel interface the
// member's, until the lease is over; calling it again renews, also while the waypoint is closed. An
// address that was another's is so no longer, and its connections end.
func (w *Waypoint) AdmitTunnel(ctx context.Context, peer Peer, kind wire.Kind, addrs []netip.Addr, lease time.Duration) *wire.Refusal {
	var refusal *wire.Refusal
	if err := w.askIn(ctx, func() { refusal = w.admitTunnel(peer, kind, addrs, lease) }); err != nil {
		return unasked(ctx, 0)
	}
	return refusal
}

// RefuseTunnel counts and records that a member gets no tunnel, which its giver decided.
func (w *Waypoint) RefuseTunnel(ctx context.Context, peer Peer, refusal *wire.Refusal) {
	_ = w.askIn(ctx, func() { // else the session or the waypoint has ended
		m := w.members.get(peer.Name, peer.Serial)
		if m == nil {
			m = w.members.of(0)
		}
		_ = w.refuseTunnel(m, peer, time.Now(), refusal)
	})
}

func (w *Waypoint) admitTunnel(peer Peer, kind wire.Kind, addrs []netip.Addr, lease time.Duration) *wire.Refusal {
	now := time.Now()
	m := w.members.get(peer.Name, peer.Serial)
	if m == nil {
		return w.refuseTunnel(w.members.of(0), peer, now, tooManyMembers(0))
	}
	own := func(a netip.Addr) bool {
		has := w.tunnels[a]
		return has != nil && has.member == m && has.kind == kind
	}
	// What a member has already stays, for the connections in it.
	if refusal := w.whileClosed(0, now); refusal != nil && !all(addrs, own) {
		return w.refuseTunnel(m, peer, now, refusal)
	}
	others := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return w.tunnels[a] == nil || own(a) })
	err := w.revokeTunnel(others)
	if err == nil {
		err = w.writeTunnel(m, peer, kind, addrs, now.Add(lease), now)
	}
	if err != nil {
		w.log.Error("cannot admit a tunnel", "member", m.Name, "kind", kind, "err", err)
		refusal := refuse(0, wire.Internal, "")
		refusal.RetryAfter = retryFault
		return w.refuseTunnel(m, peer, now, refusal)
	}
	m.granted++
	return nil
}

func all(addrs []netip.Addr, are func(netip.Addr) bool) bool {
	return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !are(a) })
}

func (w *Waypoint) writeTunnel(m *member, peer Peer, kind wire.Kind, addrs []netip.Addr, expires, now time.Time) error {
	var change rules.Change
	before := make(map[netip.Addr]*tunnelAddr, len(addrs))
	for _, a := range addrs {
		before[a] = w.tunnels[a]
		w.tunnels[a] = &tunnelAddr{member: m, kind: kind, client: peer.client(), session: peer.ID, by: w.sessions.by(peer.ID), expires: expires}
		change.Admit = append(change.Admit, w.tunnels[a].admission(a, now))
	}
	if !m.saved {
		change.Members = append(change.Members, m.Member)
	}
	if err := w.commit(change); err != nil {
		for a, had := range before {
			if w.tunnels[a] = had; had == nil {
				delete(w.tunnels, a)
			}
		}
		return err
	}
	m.saved = true
	for _, a := range addrs {
		if before[a] == nil {
			w.record.Write(w.tunnels[a].entry(attribution.AdmissionGranted, now, a, expires.Sub(now)))
		}
	}
	return nil
}

// RevokeTunnel ends what AdmitTunnel began, and the connections that came from the addresses. For
// those that are nobody's it does nothing.
func (w *Waypoint) RevokeTunnel(addrs []netip.Addr) error {
	var err error
	if asked := w.ask(func() { err = w.revokeTunnel(addrs) }); asked != nil {
		err = asked
	}
	if err != nil {
		return fmt.Errorf("revoke tunnel addresses: %w", err)
	}
	return nil
}

func (w *Waypoint) revokeTunnel(addrs []netip.Addr) error {
	now := time.Now()
	var change rules.Change
	var known []netip.Addr
	for _, a := range addrs {
		if t := w.tunnels[a]; t != nil {
			delete(w.tunnels, a)
			known = append(known, a)
			change.Revoke = append(change.Revoke, t.admission(a, now))
			w.record.Write(t.entry(attribution.AdmissionEnded, now, a, 0))
		}
	}
	if len(known) == 0 {
		return nil
	}
	if err := w.commit(change); err != nil {
		return err
	}
	_, err := w.endFlows(w.config.marks().Ours(), known...)
	return err
}

// SetTunnelInterfaces tells which interfaces tunnels end at. From these only admitted addresses are
// forwarded, and this host's own services are not reached.
func (w *Waypoint) SetTunnelInterfaces(names []string) error {
	var err error
	asked := w.ask(func() {
		w.tunnelInterfaces = slices.Sorted(slices.Values(names))
		err = w.write(func() error { return w.kernel.rules.SetTunnelInterfaces(w.tunnelInterfaces) })
		w.attach(time.Now())
	})
	if asked != nil {
		err = asked
	}
	if err != nil {
		return fmt.Errorf("set the tunnel interfaces: %w", err)
	}
	return nil
}

// expireTunnels forgets addresses whose lease is over: the kernel has done so, but for their
// connections.
func (w *Waypoint) expireTunnels(now time.Time) {
	var ended []netip.Addr
	for a, t := range w.tunnels {
		if !t.expires.After(now.Add(-expiryGrace)) {
			ended = append(ended, a)
		}
	}
	if err := w.revokeTunnel(ended); err != nil {
		w.log.Warn("addresses in tunnels do not end", "addresses", len(ended), "err", err)
	}
}

func (w *Waypoint) tunnelsOf(m *member) []netip.Addr {
	var addrs []netip.Addr
	for a, t := range w.tunnels {
		if t.member == m {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// leaveTunnels notes that a session has ended. Its tunnels go on until their lease is over, and are
// asked for again over the next session if their client is still there.
func (w *Waypoint) leaveTunnels(session uint64) {
	for _, t := range w.tunnels {
		t.left = t.left || t.session == session
	}
}

// adoptTunnels takes over what an agent before us admitted.
func (w *Waypoint) adoptTunnels(list []rules.Admission) {
	now := time.Now()
	for _, a := range list {
		if m := w.members.byID[a.Member]; m != nil && a.Kind != wire.InBand {
			w.tunnels[a.Addr] = &tunnelAddr{member: m, kind: a.Kind, expires: now.Add(a.Left)}
		}
	}
}

func (t *tunnelAddr) admission(a netip.Addr, now time.Time) rules.Admission {
	return rules.Admission{Addr: a, Kind: t.kind, Member: t.member.ID, Left: t.expires.Sub(now)}
}

func (t *tunnelAddr) entry(event attribution.Event, now time.Time, a netip.Addr, lease time.Duration) attribution.Entry {
	return attribution.Entry{Time: now, Event: event, By: t.by, Kind: t.kind.String(), Member: t.member.Name, Serial: t.member.Serial,
		Client: t.client, Tunnel: a, LeaseSeconds: lease.Seconds()}
}
