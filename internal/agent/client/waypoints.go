package client

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/tunnel"
)

// roster lists the waypoints in use: those of the configuration, and those that were chosen out of the
// directory, which come and go while connections live.
type roster struct {
	fixed    []config.Peer // of the configuration
	chosen   []config.Peer // out of the directory
	room     int           // for waypoints at a time
	using    map[string]*usedWaypoint
	leaving  map[string]config.Peer // left, but not ended yet
	numbers  map[int]bool           // of those that are leaving
	sessions map[detour.Via]waypoint
	loaded   map[detour.Via]time.Time // until when, as the waypoints say
}

// spareWaypoints is the number of waypoints that a changed configuration may name besides those at the agent's start.
const spareWaypoints = 8

func newRoster(settings *config.Config) roster {
	room := len(settings.Client.Waypoints) + spareWaypoints
	if settings.Collective.Joined() {
		// One more may be chosen for its converter.
		room += 2 * (settings.Collective.Waypoints + 1) // those that are left take their time to end
	}
	return roster{
		fixed: settings.Client.Waypoints, room: room, using: make(map[string]*usedWaypoint),
		leaving: make(map[string]config.Peer), numbers: make(map[int]bool), sessions: make(map[detour.Via]waypoint),
		loaded: make(map[detour.Via]time.Time),
	}
}

// usedWaypoint is one waypoint in use.
type usedWaypoint struct {
	peer       config.Peer
	number     int // of its tunnels' interfaces
	vias       []detour.Via
	sessions   []*session.Client
	admissions []keeper // to in-band detours and converters
	tunnels    []keeper // they begin when there is a guard
	begun      bool
	begin      func(keeper)
	end        context.CancelFunc // ends the keepers that were begun
	running    sync.WaitGroup
}

// close ends the sessions, admissions and tunnels with the waypoint, and returns when they have ended.
func (u *usedWaypoint) close() {
	u.end()
	u.running.Wait()
	for _, s := range u.sessions {
		s.Close()
	}
}

// close ends the use of all waypoints.
func (r *roster) close() {
	for _, u := range r.using {
		u.close()
	}
}

// changes compares the waypoints to use with those in use.
func (r *roster) changes() (leave []string, join []config.Peer) {
	have := make(map[string]config.Peer)
	for name, u := range r.using {
		have[name] = u.peer
	}
	isFixed := func(c config.Peer) bool {
		return slices.ContainsFunc(r.fixed, func(f config.Peer) bool { return f.Name == c.Name })
	}
	chosen := slices.DeleteFunc(slices.Clone(r.chosen), isFixed)
	return rosterChanges(slices.Concat(r.fixed, chosen), have, r.leaving, r.room-len(r.using)-len(r.leaving))
}

// rosterChanges compares the waypoints to use with those in use. A waypoint with other addresses than before is left
// and joined anew. A waypoint that was left, but has not ended yet, is joined later. room is the number of further
// waypoints that may be joined.
func rosterChanges(want []config.Peer, have, leaving map[string]config.Peer, room int) (leave []string, join []config.Peer) {
	wanted := make(map[string]config.Peer, len(want))
	for _, p := range want {
		wanted[p.Name] = p
	}
	for name, p := range have {
		if w, is := wanted[name]; !is || !w.Equal(p) {
			leave = append(leave, name)
		}
	}
	slices.Sort(leave)
	for _, p := range want {
		_, is := have[p.Name]
		_, was := leaving[p.Name]
		if !is && !was && len(join) < room {
			join = append(join, p)
		}
	}
	return leave, join
}

// freeNumber returns the lowest number that no waypoint has. changes ensures that there is one.
func (r *roster) freeNumber() int {
	for n := range r.room {
		taken := r.numbers[n]
		for _, u := range r.using {
			taken = taken || u.number == n
		}
		if !taken {
			return n
		}
	}
	return r.room
}

// reconcile joins and leaves waypoints until those to use are in use.
func (c *Client) reconcile(ctx context.Context, now time.Time) {
	leave, join := c.roster.changes()
	for _, name := range leave {
		c.leave(ctx, name, now)
	}
	for _, p := range join {
		if err := c.join(ctx, p); err != nil {
			c.log.Error("a waypoint is not used", "waypoint", p.Name, "err", err)
		}
	}
	if len(leave)+len(join) > 0 {
		c.decide(ctx, now)
		c.pokeTunnels()
	}
}

// join begins sessions with each address of a waypoint, which come up when they can, and keeps detours over
// them.
func (c *Client) join(ctx context.Context, p config.Peer) error {
	running, end := context.WithCancel(ctx)
	u := &usedWaypoint{peer: p, number: c.roster.freeNumber(), end: end}
	u.begin = func(k keeper) { u.running.Go(func() { k.Run(running) }) }
	var leads []tunnel.Lead
	for _, addr := range p.Addresses {
		via, at := detour.Via{Waypoint: p.Name, Addr: addr}, netip.AddrPortFrom(addr, uint16(p.Port))
		config := session.ClientConfig{
			Identity: c.config.Identity, Name: p.Name, Addr: at, Log: c.config.Log.With("subsystem", "session"),
			Changed: func(s session.State) { c.sessionChanged(ctx, via, s) },
			Loaded:  func(load session.Load) { c.loadChanged(ctx, via, load) },
		}
		if p.Punch && c.config.Directory != nil {
			config.Way = c.config.Directory.Way(p.Name)
		}
		s := session.NewClient(config)
		u.vias, u.sessions = append(u.vias, via), append(u.sessions, s)
		leads = append(leads, tunnel.Lead{Via: via, Session: s})
		c.roster.sessions[via] = &waypointSession{s, p.Name, at}
	}
	c.backlog = append(c.backlog, path.WaypointAddrs{Waypoint: p.Name, Addrs: p.Addresses})
	c.roster.using[p.Name] = u
	return c.keepTunnels(ctx, u, leads)
}

// leave ends the use of a waypoint. Subflows through it move to other detours first, where there are any. Its sessions
// and tunnels end in the background.
func (c *Client) leave(ctx context.Context, name string, now time.Time) {
	r := &c.roster
	u := r.using[name]
	delete(r.using, name)
	for _, v := range u.vias {
		c.backlog = append(c.backlog, c.book.Leave(v)...)
		c.tunnels.forgetVia(v)
		delete(r.sessions, v)
		delete(r.loaded, v)
	}
	c.backlog = append(c.backlog, path.WaypointAddrs{Waypoint: name})
	c.decide(ctx, now)
	c.tunnels.forgetAdmissions(u.admissions)
	c.converters.forget(u.vias)
	c.tellRelay(now)
	r.leaving[name] = u.peer
	r.numbers[u.number] = true
	c.log.Info("a waypoint is no longer used", "waypoint", name)
	c.inbox.inBackground(ctx, func() func(time.Time) {
		u.close()
		return func(now time.Time) {
			delete(r.leaving, name)
			delete(r.numbers, u.number)
			c.reconcile(ctx, now)
		}
	})
}

// sessionChanged is called by a session when its waypoint begins or ceases to answer, or gives other kinds of
// detours.
func (c *Client) sessionChanged(ctx context.Context, v detour.Via, s session.State) {
	if s.Up {
		select {
		case c.config.Sightings <- nat.Sighting{Member: v.Waypoint, At: s.Observed}:
		default: // there is no waypoint role, or it has plenty to read
		}
	}
	c.postFor(ctx, v, func(now time.Time) {
		c.converters.sessionChanged(v, s)
		c.backlog = append(c.backlog, c.book.Down(v)...)
		switch {
		case !s.Usable():
		case quotaSpent(s):
			c.tunnels.offers[v] = nil
			c.backlog = append(c.backlog, c.book.Leave(v)...)
		default:
			c.measuredWaypoint(v, measuredOf(s))
			c.setLoad(v, s.Load)
			c.tunnels.setOffers(v, offers(s))
			c.book.Offers(v, offers(s))
			c.backlog = append(c.backlog, c.book.Up(v)...)
		}
		c.decide(ctx, now)
		c.pokeTunnels()
		c.reportUse(v.Waypoint)
	})
}

// loadChanged is called by a session when its waypoint reports that it is loaded, or no longer loaded.
func (c *Client) loadChanged(ctx context.Context, v detour.Via, load session.Load) {
	c.postFor(ctx, v, func(now time.Time) {
		c.setLoad(v, load)
		c.decide(ctx, now)
	})
}

// setLoad records a waypoint's load, and reports it to the path manager.
func (c *Client) setLoad(v detour.Via, load session.Load) {
	c.roster.loaded[v] = load.Until
	c.backlog = append(c.backlog, path.WaypointLoaded{Waypoint: v.Waypoint, Addr: v.Addr, Until: load.Until, Gives: load.Gives})
}

// hasOther reports whether another waypoint can be asked for mappings to servers of the family, and is not loaded.
func (c *Client) hasOther(v detour.Via, now time.Time) bool {
	for o := range c.roster.sessions {
		if o.Waypoint != v.Waypoint && o.Addr.Is4() == v.Addr.Is4() && c.book.State(o).Up && len(c.tunnels.offers[o]) > 0 && !c.roster.loaded[o].After(now) {
			return true
		}
	}
	return false
}

// measuredWaypoint reports a session's measurements to the path manager.
func (c *Client) measuredWaypoint(v detour.Via, m figures) {
	if m.trip > 0 {
		c.backlog = append(c.backlog, path.WaypointMeasured{Waypoint: v.Waypoint, Addr: v.Addr, RTT: m.trip, Latest: m.latest, Loss: m.loss, Packets: m.packets})
	}
}

// reportUse reports to the directory whether a waypoint has a session and offers a kind of detour.
func (c *Client) reportUse(name string) {
	u := c.roster.using[name]
	if u == nil || c.config.Directory == nil {
		return
	}
	up := slices.ContainsFunc(u.vias, func(v detour.Via) bool { return c.book.State(v).Up && len(c.tunnels.offers[v]) > 0 })
	c.config.Directory.Heard(name, up)
}
