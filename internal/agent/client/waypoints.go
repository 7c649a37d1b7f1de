package agent

import (
	"context"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/tunnel"
)

// The waypoints that the client role uses: those of the configuration, and those that were chosen out of
// the directory, which come and go while connections live.

// using is one waypoint in use. The loop's goroutine owns it.
type using struct {
	peer     config.Peer
	number   int // of its tunnels' interfaces
	vias     []detour.Via
	sessions []*session.Client
	inBand   []keeper
	tunnels  []keeper // they begin when there is a guard
	begun    bool
	begin    func(keeper)
	end      context.CancelFunc // of what was begun
	running  sync.WaitGroup
}

// close ends all that is had of the waypoint, and returns when nothing of it runs.
func (u *using) close() {
	u.end()
	u.running.Wait()
	for _, s := range u.sessions {
		s.Close()
	}
}

// rosterChanges compares the waypoints to use with those in use. One that is reached elsewhere is left and
// joined anew. Who has been left, and is not gone yet, joins later; room is for how many more there is.
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

// reconcile has those waypoints used that are to be.
func (c *client) reconcile(ctx context.Context, now time.Time) {
	have := make(map[string]config.Peer)
	for name, u := range c.using {
		have[name] = u.peer
	}
	want := slices.Concat(c.fixed, c.chosen)
	leave, join := rosterChanges(want, have, c.leaving, c.room-len(c.using)-len(c.leaving))
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

// join begins sessions with each address of a waypoint, which come up when they can, and the keepers of
// what is had over them.
func (c *client) join(ctx context.Context, p config.Peer) error {
	running, end := context.WithCancel(ctx)
	u := &using{peer: p, number: c.freeNumber(), end: end}
	u.begin = func(k keeper) { u.running.Go(func() { k.Run(running) }) }
	var leads []tunnel.Lead
	for _, addr := range p.Addresses {
		via, at := detour.Via{Waypoint: p.Name, Addr: addr}, netip.AddrPortFrom(addr, uint16(p.Port))
		config := session.ClientConfig{
			Identity: c.plan.identity, Name: p.Name, Addr: at, Log: c.plan.log.With("subsystem", "session"),
			Changed: func(s session.State) { c.sessionChanged(ctx, via, s) },
		}
		if p.Punch && c.way != nil {
			config.Way = c.way(p.Name)
		}
		s := session.NewClient(config)
		u.vias, u.sessions = append(u.vias, via), append(u.sessions, s)
		leads = append(leads, tunnel.Lead{Via: via, Session: s})
		c.waypoints[via] = &link{s, p.Name, at}
	}
	c.using[p.Name] = u
	return c.keep(ctx, u, leads)
}

// keep begins to keep a tunnel of each kind that the operator uses.
func (c *client) keep(ctx context.Context, u *using, leads []tunnel.Lead) error {
	tell := func(s tunnel.Standing) { c.tunnelStands(ctx, s) }
	log, operator := c.plan.log.With("subsystem", "tunnel"), c.plan.config
	if operator.Client.Uses(config.InBand) {
		c.keepInBand(u, leads, tell)
	}
	if operator.Client.Uses(config.WireGuard) {
		k, err := tunnel.NewWireGuard(tunnel.Interface(path.WireGuard, u.number), operator.TunnelRanges, leads, tell, log)
		if err != nil {
			return err
		}
		u.tunnels = append(u.tunnels, k)
	}
	if operator.Client.Uses(config.OpenVPN) {
		u.tunnels = append(u.tunnels, tunnel.NewOpenVPN(tunnel.OpenVPNConfig{
			Interface: tunnel.Interface(path.OpenVPN, u.number), Ranges: operator.TunnelRanges, Waypoint: u.peer.Name,
			Files: openvpnFiles(c.plan), Dir: filepath.Join(operator.RunDir, openvpnDir+"-"+u.peer.Name), Log: log,
		}, leads, tell))
	}
	for _, k := range u.inBand {
		u.begin(k)
	}
	return nil
}

// leave ends the use of a waypoint: what ran through it moves first, as far as it can. Its sessions and
// tunnels end in the background.
func (c *client) leave(ctx context.Context, name string, now time.Time) {
	u := c.using[name]
	delete(c.using, name)
	for _, v := range u.vias {
		c.backlog = append(c.backlog, c.book.Leave(v)...)
		c.tunnels.forgetVia(v)
		delete(c.waypoints, v)
	}
	c.decide(ctx, now)
	c.tunnels.forgetAdmissions(u.inBand)
	c.leaving[name] = u.peer
	c.numbers[u.number] = true
	c.log.Info("a waypoint is not used any more", "waypoint", name)
	c.requests.Go(func() {
		u.close()
		c.post(ctx, func(now time.Time) {
			delete(c.leaving, name)
			delete(c.numbers, u.number)
			c.reconcile(ctx, now)
		})
	})
}

// heardOf tells who has chosen a waypoint whether there is a session with it, and it gives something.
func (c *client) heardOf(name string) {
	u := c.using[name]
	if u == nil || c.heard == nil {
		return
	}
	c.heard(name, slices.ContainsFunc(u.vias, func(v detour.Via) bool { return c.book.State(v).Up && len(c.tunnels.offers[v]) > 0 }))
}

// freeNumber is the lowest that no waypoint has; reconcile sees to it that there is one.
func (c *client) freeNumber() int {
	for n := range c.room {
		taken := c.numbers[n]
		for _, u := range c.using {
			taken = taken || u.number == n
		}
		if !taken {
			return n
		}
	}
	return c.room
}
