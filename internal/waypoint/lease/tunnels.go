package lease

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// tunnelAddress is an address in a tunnel, and the member to which it belongs.
type tunnelAddress struct {
	member  *Member
	kind    wire.Kind
	client  netip.Addr // the member's address when it got the tunnel; invalid: an earlier agent gave the tunnel
	session uint64     // in which it was last requested; 0: an earlier agent's
	by      *attribution.Session
	left    bool // that session has ended
	expires time.Time
}

func (t *tunnelAddress) rule(addr netip.Addr, now time.Time) rules.Admission {
	return rules.Admission{Addr: addr, Kind: t.kind, Member: t.member.ID, Left: t.expires.Sub(now)}
}

func (t *tunnelAddress) entry(event attribution.Event, now time.Time, addr netip.Addr, lease time.Duration) attribution.Entry {
	return attribution.Entry{Time: now, Event: event, By: t.by, Kind: t.kind.String(), Member: t.member.Name, Serial: t.member.Serial,
		Client: t.client, Tunnel: addr, LeaseSeconds: lease.Seconds()}
}

// TunnelRequest requests addresses in a tunnel.
type TunnelRequest struct {
	Request
	Kind      wire.Kind
	Addresses []netip.Addr
	Lease     time.Duration
}

// TunnelTo refuses a request that names an address in a tunnel, unless the member has this address in a WireGuard
// tunnel. After a restart, tunnels of the earlier agent may not be known yet, so the member may try again.
func (l *Leases) TunnelTo(addr netip.Addr, r Request) *wire.Refusal {
	t := l.tunnels[addr]
	if !addr.IsValid() || t != nil && t.kind == wire.WireGuard && t.member.Name == r.Name {
		return nil
	}
	return refuseFor(retryFault, r.ID, wire.NotReady, addr.String()+" is not your address in a WireGuard tunnel here")
}

// AdmitTunnel gives addresses in a tunnel to a member, or renews them. It does so even while the waypoint is closed, if
// the member has the addresses already. If an address belonged to another member, it no longer does.
func (l *Leases) AdmitTunnel(r TunnelRequest, under Conditions) (*Admitting, *wire.Refusal) {
	m := l.members.get(r.Name, r.Serial)
	if m == nil {
		return nil, tooManyMembers(r.ID)
	}
	isNot := func(addr netip.Addr) bool {
		has := l.tunnels[addr]
		return has == nil || has.member != m || has.kind != r.Kind
	}
	if refusal := under.anywhere(r.Request); refusal != nil {
		return nil, refusal
	}
	// The member keeps the addresses that it has, for the connections in the tunnel.
	if refusal := under.closed(r.Request); refusal != nil && slices.ContainsFunc(r.Addresses, isNot) {
		return nil, refusal
	}
	a := &Admitting{member: m}
	others := slices.DeleteFunc(slices.Clone(r.Addresses), func(addr netip.Addr) bool { return !isNot(addr) })
	l.endTunnels(&a.Before, under.Now, others)
	before := make(map[netip.Addr]*tunnelAddress, len(r.Addresses))
	for _, addr := range r.Addresses {
		t := &tunnelAddress{member: m, kind: r.Kind, client: r.Client, session: r.Session, by: l.sessions.live[r.Session].by,
			expires: under.Now.Add(r.Lease)}
		if had := l.tunnels[addr]; had != nil {
			before[addr] = had
		} else {
			a.entries = append(a.entries, t.entry(attribution.AdmissionGranted, under.Now, addr, r.Lease))
		}
		l.tunnels[addr] = t
		a.admit(t.rule(addr, under.Now))
	}
	a.undo = func() Ending {
		for _, addr := range r.Addresses {
			delete(l.tunnels, addr)
		}
		maps.Copy(l.tunnels, before)
		return Ending{}
	}
	return a, nil
}
