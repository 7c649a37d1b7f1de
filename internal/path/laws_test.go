package path_test

import (
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/path"
)

// These laws must hold for every action, whatever happened before.

// lawfulCreate checks an action and returns the subflow that it asks for.
func (w *world) lawfulCreate(a path.CreateSubflow) *wsub {
	c := w.past[a.Token]
	if c == nil || c.serverSide || c.excluded {
		w.t.Fatalf("%+v: not ours to manage", a)
	}
	if a.LocalID == 0 || c.ids[a.LocalID] && !w.started {
		w.t.Fatalf("%+v: the id is in use", a)
	}
	w.port++
	local := a.Local
	if !local.IsValid() {
		if slices.Contains(w.addrs, c.local.Addr()) {
			w.t.Fatalf("%+v: the connection's own address is there, but another is used", a)
		}
		for _, own := range w.addrs {
			if own.Is4() == a.Remote.Addr().Is4() && !tunnel(own) {
				local = own
			}
		}
	}
	s := &wsub{
		id: a.LocalID, ours: true, backup: a.Backup, network: w.inband.network,
		local: netip.AddrPortFrom(local, w.port), remote: a.Remote,
	}
	if a.Remote.Addr().Is4() != c.remote.Addr().Is4() || local.Is4() != a.Remote.Addr().Is4() {
		w.t.Fatalf("%+v: another address family than %v", a, c.remote)
	}
	s.detour = w.detourOf(c, a)
	s.direct = s.detour == nil && a.Remote == c.server
	if a.Server != c.server || a.Direct != s.direct || a.Direct && (a.Kind != 0 || a.Waypoint != "") {
		w.t.Fatalf("%+v: this is not what it leads to", a)
	}
	w.lawfulPlace(c, s, a)
	w.inband.lawful(w, c, s)
	return s
}

// detourOf finds the offer that the action takes.
func (w *world) detourOf(c *wconn, a path.CreateSubflow) *path.Detour {
	for _, d := range w.offers {
		if to, ok := leads(d, c.server); !ok || to != a.Remote || d.Kind != a.Kind || d.Waypoint != a.Waypoint {
			continue
		}
		if slices.Contains(w.order, d.Kind) && (d.Local.IsValid() && d.Local == a.Local || !d.Local.IsValid() && a.Remote != c.server) {
			return &d
		}
	}
	return nil
}

// leads returns the address that a detour of this world connects to.
func leads(d path.Detour, server netip.AddrPort) (netip.AddrPort, bool) {
	switch d.Kind {
	case path.WireGuard, path.OpenVPN:
		return server, server.Addr().Is4() == d.Local.Is4() && server.Addr() != d.Endpoint
	case path.InBand:
		to := netip.AddrPortFrom(d.Remote.Addr(), server.Port())
		return to, server.Addr().Is4() && to != server
	default:
		return d.Remote, d.Server == server
	}
}

func (w *world) lawfulPlace(c *wconn, s *wsub, a path.CreateSubflow) {
	detours, exchanged := 0, 0 // at most one at a time has its successor already
	for _, x := range c.subflows {
		if x.ours && x.direct && s.direct && w.here(x) {
			w.t.Fatalf("%+v: there is a direct subflow", a)
		}
		if x.ours && !x.direct && !x.leaving && !x.loses && w.here(x) {
			detours++
			if s.detour != nil && x.detour != nil && w.mayLeave(x) && x.detour.Waypoint != s.detour.Waypoint {
				exchanged = 1
			}
		}
	}
	switch {
	case s.direct && c.denies && c.server == c.remote:
		w.t.Fatalf("%+v: the server forbade it", a)
	case s.direct && a.Backup:
		w.t.Fatalf("%+v: the direct path as backup", a)
	case s.direct:
	case s.detour == nil:
		w.t.Fatalf("%+v: no detour on offer leads there; on offer: %+v", a, w.offers)
	case c.tls && !c.heard && !a.Backup:
		w.t.Fatalf("%+v: the server was not heard yet", a)
	case !w.wanted(s.detour.Waypoint):
		w.t.Fatalf("%+v: the operator does not want that waypoint: %+v", a, w.steering)
	case detours-exchanged >= w.n-1:
		w.t.Fatalf("%+v: %d detours already, %d subflows are wanted", a, detours, w.n)
	}
}

func (w *world) setBackup(a path.SetBackup) {
	c := w.past[a.Token]
	if c.serverSide || c.excluded {
		w.t.Fatalf("%+v: not ours to manage", a)
	}
	if c.tls && !c.heard {
		w.t.Fatalf("%+v: the server was not heard yet", a)
	}
	_, s := w.subflow(a.Token, a.Local, a.Remote)
	if s == nil {
		return
	}
	carries := func(x *wsub) bool { return x != s && x.up && !x.backup && !x.leaving && w.here(x) }
	switch {
	case !a.Backup, s.backup && w.cfg.ByWorth && !c.adopted: // said again, which changes nothing
	case !w.cfg.ByWorth:
		w.t.Fatalf("%+v: nothing is to be set aside", a)
	case c.adopted:
		w.t.Fatalf("%+v: it was not there from its beginning", a)
	case w.knows(c) && !slices.ContainsFunc(c.subflows, carries):
		w.t.Fatalf("%+v: nothing carries the connection any more\n%s", a, w.describe(c))
	}
	s.backup = a.Backup
	if a.Backup && s.detour != nil && s.loses {
		w.lossy[s.detour.Waypoint] = true
	}
}

// mayLeave reports whether the subflow goes through a waypoint that was loaded recently.
func (w *world) mayLeave(s *wsub) bool {
	return w.cfg.ByWorth && w.crowded[s.detour.Waypoint].After(w.now)
}

// mayGivePlace reports whether the connection may try out a waypoint in the place of the subflow.
func (w *world) mayGivePlace(c *wconn, s *wsub) bool {
	uses := func(waypoint string) bool {
		return slices.ContainsFunc(c.subflows, func(x *wsub) bool { return x.detour != nil && x.detour.Waypoint == waypoint })
	}
	for _, d := range w.offers {
		if w.cfg.ByWorth && d.Waypoint != s.detour.Waypoint && !uses(d.Waypoint) {
			return true
		}
	}
	return false
}

// lawfulEnd checks that this host may end the subflow and has a reason.
func (w *world) lawfulEnd(c *wconn, s *wsub) {
	instead := func(x *wsub) bool { return x != s && x.up && !x.leaving && w.here(x) }
	switch {
	case s.leaving && s.up && w.here(s) && s.ours && s.told && !s.stuck && !w.dead[s.detour.Waypoint] && !w.lost[s.detour.Waypoint]:
		if w.knows(c) && !slices.ContainsFunc(c.subflows, instead) {
			w.t.Fatalf("connection %d: subflow %d is ended, and there is nothing in its place", c.token, s.id)
		}
	case s.up && w.here(s) && s.ours && s.detour != nil && w.mayLeave(s):
		if w.knows(c) && !slices.ContainsFunc(c.subflows, instead) {
			w.t.Fatalf("connection %d: subflow %d leaves a loaded waypoint, and there is nothing in its place", c.token, s.id)
		}
	case s.loses && s.up && w.here(s) && s.ours && s.detour != nil && s.backup:
		if w.knows(c) && !slices.ContainsFunc(c.subflows, instead) {
			w.t.Fatalf("connection %d: subflow %d loses much and is ended, and there is nothing in its place", c.token, s.id)
		}
	case s.backup && s.up && w.here(s) && s.ours && s.detour != nil && w.mayGivePlace(c, s):
		if w.knows(c) && !slices.ContainsFunc(c.subflows, instead) {
			w.t.Fatalf("connection %d: subflow %d gives its place to a waypoint that is tried, and there is nothing else", c.token, s.id)
		}
	case c.serverSide || c.excluded:
		w.t.Fatalf("connection %d is not ours to manage, but a subflow is ended", c.token)
	case s.direct && s.up && w.here(s) && s.ours && s.told:
		w.t.Fatalf("connection %d: the direct path is ended", c.token)
	case s.up && w.here(s) && s.ours && s.told && !s.stuck && !w.dead[s.detour.Waypoint] && !w.lost[s.detour.Waypoint]:
		w.t.Fatalf("connection %d: subflow %d is ended, though nothing is wrong with it", c.token, s.id)
	}
}
