package path

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/policy"
)

// via identifies one address of one waypoint.
type via struct {
	waypoint string
	addr     netip.Addr
}

// viaOf returns the address of the waypoint that a detour passes.
func viaOf(d *Detour) via {
	if d.Endpoint.IsValid() {
		return via{d.Waypoint, d.Endpoint}
	}
	return via{d.Waypoint, d.Remote.Addr()}
}

// offers holds what the waypoints offer: the detours, the waypoints that do not answer, and the kinds that this host
// cannot use.
type offers struct {
	byID     map[DetourID]*offered
	general  []*offered                    // they reach any server
	specific map[netip.AddrPort][]*offered // they reach one server
	lost     map[via]time.Time             // waypoints that do not answer, and since when
	unheard  map[via]bool                  // waypoints without a session; a tunnel that opens later ends only lost
	addrs    map[string][]netip.Addr       // addresses of the hosts of waypoints in use
	unready  []policy.Resting              // kinds of detours that no connection can use
}

// offered is a detour on offer.
type offered struct {
	Detour
	since time.Time
	trial *trial // nil: needs none
}

// unproven reports whether it is not known yet that the path lets the detour's SYNs through.
func (o *offered) unproven() bool { return o.trial != nil && !o.trial.proven }

// drop takes a detour off offer. Subflows over it stay.
func (of *offers) drop(id DetourID, now time.Time) {
	o := of.byID[id]
	if o == nil {
		return
	}
	delete(of.byID, id)
	if o.trial != nil {
		o.trial.left = now
	}
	without := func(list []*offered) []*offered {
		return slices.DeleteFunc(list, func(x *offered) bool { return x == o })
	}
	if !o.Server.IsValid() {
		of.general = without(of.general)
	} else if rest := without(of.specific[o.Server]); len(rest) > 0 {
		of.specific[o.Server] = rest
	} else {
		delete(of.specific, o.Server)
	}
}

// leave takes all detours of a waypoint at one address off offer.
func (of *offers) leave(v via, now time.Time) {
	delete(of.lost, v)
	delete(of.unheard, v)
	of.unready = slices.DeleteFunc(of.unready, func(r policy.Resting) bool { return r.Waypoint == v.waypoint })
	for _, id := range slices.Sorted(maps.Keys(of.byID)) {
		if viaOf(&of.byID[id].Detour) == v {
			of.drop(id, now)
		}
	}
}

// setUnready records why this host cannot use a kind of detour of a waypoint.
func (of *offers) setUnready(ev KindUnready) {
	of.unready = slices.DeleteFunc(of.unready, func(r policy.Resting) bool { return r.Waypoint == ev.Waypoint && r.Kind == ev.Kind })
	if ev.Err != nil {
		of.unready = append(of.unready, policy.Resting{Kind: ev.Kind, Waypoint: ev.Waypoint, Rest: policy.Rest{Cause: policy.RestsUnready, Err: ev.Err}})
	}
}

// leading returns an iterator over the detours on offer that may lead to server.
func (of *offers) leading(server netip.AddrPort) func(yield func(*offered) bool) {
	return func(yield func(*offered) bool) {
		for _, list := range [2][]*offered{of.general, of.specific[server]} {
			for _, o := range list {
				if !yield(o) {
					return
				}
			}
		}
	}
}

// target returns the address to which a subflow of the connection over d would connect. ok is false if the connection
// may not use d. A connection that began in a tunnel uses only encrypted tunnels, so that nobody near this host sees
// what it carries and to whom. A tunnel to the server's own host is its direct path.
func (of *offers) target(c *conn, d *Detour) (netip.AddrPort, bool) {
	if c.isExcluded() || c.tunnelled && (d.Kind != WireGuard || of.endsAt(d, c.server.Addr())) {
		return netip.AddrPort{}, false
	}
	return d.Target(c.server)
}

func (of *offers) setAddrs(ev WaypointAddrs) {
	if len(ev.Addrs) == 0 {
		delete(of.addrs, ev.Waypoint)
	} else {
		of.addrs[ev.Waypoint] = ev.Addrs
	}
}

// endsAt reports whether a tunnel ends at the host with this address.
func (of *offers) endsAt(d *Detour, addr netip.Addr) bool {
	return d.Endpoint == addr || slices.Contains(of.addrs[d.Waypoint], addr)
}

// recognise assigns the detours on offer to the subflows of the connection that use them.
func (of *offers) recognise(c *conn) {
	for o := range of.leading(c.server) {
		of.assign(c, &o.Detour)
	}
}

// assign assigns d to the subflows that use it and that this manager did not create. A subflow from a tunnel's
// address to the server itself counts as direct until the tunnel is known. An in-band subflow looks like a mapped one
// if the waypoint's port is the server's. It counts as in-band, which is more likely, because that needs no mapping.
func (of *offers) assign(c *conn, d *Detour) {
	remote, ok := of.target(c, d)
	if _, layout := c.rule.Policy.(policy.Layout); d.Kind == Port || d.Kind == Uplink && !layout {
		return
	}
	if !ok || d.Local.IsValid() && d.Local == c.local.Addr() {
		return
	}
	for _, s := range c.subflows {
		better := s.detour == nil || s.why == nil && d.Kind < s.detour.Kind
		if better && s.remote == remote && (!d.Local.IsValid() || d.Local == s.local.Addr()) {
			s.detour, s.direct = d, false
		}
	}
}
