package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/tunnel"
)

// mapTimeout is how long a waypoint may take to answer a request for a mapping.
const mapTimeout = 5 * time.Second

// asker is what the client role needs of a session with a waypoint.
type asker interface {
	// Map asks for a port that leads to server.
	Map(ctx context.Context, server netip.AddrPort) (detour.Grant, error)
	// Refusal says what an error of Map means.
	Refusal(error) detour.Refusal
	// Describe is the session's state.
	Describe() api.Waypoint
	// NetworkChanged: this host's addresses are others now.
	NetworkChanged()
}

// router knows this host's addresses and from which of them packets leave.
type router interface {
	SourceFor(dst netip.Addr) (netstate.Address, error)
	Own() ([]netstate.Address, error)
	Interfaces() ([]netstate.Interface, error)
}

// client is the client role. One goroutine, run, owns all its state: what
// happens comes to it through channels, and what the path manager and the book
// of detours decide is carried out before the next event is looked at.
type client struct {
	log     *slog.Logger
	kernel  mptcp.Kernel
	routes  router
	plan    *Plan
	fixed   []config.Peer                  // waypoints of the configuration
	using   map[string]*using              // by name
	leaving map[string]config.Peer         // who was left, and is not gone yet
	numbers map[int]bool                   // of those
	room    int                            // for waypoints at a time
	chosen  []config.Peer                  // out of the directory
	heard   func(waypoint string, up bool) // is told of sessions; may be nil
	// way opens the way to a waypoint that lets in only whom it was told of; may be nil.
	way func(waypoint string) func(context.Context, *net.UDPConn, netip.AddrPort) error
	// sightings takes where waypoints see this host; nil: nobody wants to know.
	sightings chan<- nat.Sighting
	waypoints map[detour.Via]asker
	listeners *netstate.Listeners
	checkPM   func() error // of the kernel: whether new connections are ours
	displaced bool         // they were not when that was last looked at
	ports     portPicker
	kinds     []path.Kind // that the operator uses, the preferred first

	events    <-chan mptcp.Event
	addresses <-chan []netstate.Address
	inbox     chan func(now time.Time) // answers of waypoints, questions of people
	choices   <-chan []config.Peer     // out of the directory; nil: there is none

	manager   *path.Manager
	book      *detour.Book
	tunnels   *tunnels
	meter     meter
	watched   watched
	prober    prober       // nil: this host has none
	checksums uint64       // errors, as last read
	backlog   []path.Event // came up while actions were carried out
	counters  api.Counters
	problems  []string // of the host, for people
	requests  sync.WaitGroup
}

// run works until ctx ends. It leaves connections as they are.
func (c *client) run(ctx context.Context) error {
	start := time.Now()
	c.resync()
	c.decide(ctx, start)
	c.reconcile(ctx, start)
	due := time.NewTimer(time.Hour)
	defer due.Stop()
	sample := time.NewTimer(sampleEvery)
	defer sample.Stop()
	watch := time.NewTimer(sampleEvery)
	defer watch.Stop()
	defer c.requests.Wait()
	for {
		// The time is taken when something has happened, not when the wait began.
		select {
		case <-ctx.Done():
			return nil
		case ev, ok := <-c.events:
			if !ok {
				return fmt.Errorf("the kernel's MPTCP events ended")
			}
			c.kernelEvent(ctx, ev, time.Now())
		case _, ok := <-c.addresses:
			if ok { // else the agent stops
				c.addressesChanged(ctx, time.Now())
			}
		case c.chosen = <-c.choices:
			c.reconcile(ctx, time.Now())
		case f := <-c.inbox:
			f(time.Now())
		case <-due.C:
			c.due(ctx, time.Now())
		case <-sample.C:
			sample.Reset(c.sample(ctx, time.Now()))
		case <-watch.C:
			watch.Reset(c.sampleWatched(ctx, time.Now()))
		}
		if at, ok := c.next(); ok {
			due.Reset(time.Until(at))
		}
	}
}

// next is when due has something to do.
func (c *client) next() (time.Time, bool) {
	at, ok := c.manager.Next()
	if b, has := c.book.Next(); has && (!ok || b.Before(at)) {
		return b, true
	}
	return at, ok
}

func (c *client) due(ctx context.Context, now time.Time) {
	asks, events := c.book.Due(now)
	c.ask(ctx, asks)
	c.backlog = append(append(c.backlog, events...), path.Tick{})
	c.decide(ctx, now)
}

// kernelEvent translates one event of the kernel's path-manager interface.
func (c *client) kernelEvent(ctx context.Context, ev mptcp.Event, now time.Time) {
	token := path.Token(ev.Token)
	switch ev.Kind {
	case mptcp.Established:
		if !ev.ServerSide {
			c.counters.Connections++
		}
		c.tell(ctx, now, path.ConnEstablished{
			Token: token, Local: ev.Local, Remote: ev.Remote,
			ServerSide: ev.ServerSide, DenyJoinInitial: ev.DenyJoinInitial,
		})
	case mptcp.Closed:
		c.tell(ctx, now, path.ConnClosed{Token: token})
	case mptcp.SubflowEstablished:
		c.counters.SubflowsUp++
		c.tell(ctx, now, path.SubflowEstablished{
			Token: token, LocalID: ev.LocalID, Local: ev.Local, Remote: ev.Remote, Backup: ev.Backup,
		})
	case mptcp.SubflowClosed:
		c.tell(ctx, now, c.subflowClosed(ev))
	case mptcp.Announced:
		c.tell(ctx, now, path.AddrAnnounced{Token: token, Remote: ev.Remote})
	case mptcp.EventsLost:
		c.counters.EventsLost++
		c.resync()
		c.decide(ctx, now)
	case mptcp.Created, mptcp.Removed, mptcp.SubflowPriority, mptcp.ListenerCreated, mptcp.ListenerClosed:
		// Nothing to decide: the kernel itself closes what a removal concerns.
	}
}

// resync asks the kernel what there is. It happens between two events, so that
// those already taken in are older than the answer and those waiting are not.
func (c *client) resync() {
	c.counters.Resyncs++
	conns, err := c.kernel.Connections()
	if err != nil {
		c.log.Error("living connections cannot be listed", "err", err)
		return
	}
	var live path.Resync
	for i := range conns {
		// One that is not established yet has its event still to come.
		if conn := &conns[i]; conn.Established && !conn.ServerSide && conn.Remote.Port() != 0 {
			live.Conns = append(live.Conns, liveConn(conn))
		}
	}
	c.log.Debug("resynced", "connections", len(live.Conns))
	c.backlog = append(c.backlog, live)
}

func liveConn(conn *mptcp.Connection) path.LiveConn {
	l := path.LiveConn{Token: path.Token(conn.Token), Local: conn.Local, Remote: conn.Remote}
	for i := range conn.Subflows {
		if s := &conn.Subflows[i]; s.State == mptcp.StateEstablished {
			l.Subflows = append(l.Subflows, path.LiveSubflow{
				LocalID: s.LocalID, Local: s.Local, Remote: s.Remote, Backup: s.BackupLocal,
			})
		}
	}
	return l
}

// addressesChanged tells of what localAddrs lists, to all who follow a network.
func (c *client) addressesChanged(ctx context.Context, now time.Time) {
	interfaces := c.interfaces()
	local, ok := c.localAddrs(interfaces)
	if !ok {
		return
	}
	for _, w := range c.waypoints {
		w.NetworkChanged()
	}
	c.attachSyns(interfaces)
	c.pokeTunnels()
	c.tell(ctx, now, local)
}

// localAddrs lists all addresses, also those that are not for new connections: an
// IPv6 address is deprecated long before it is gone.
func (c *client) localAddrs(interfaces []netstate.Interface) (local path.LocalAddrs, ok bool) {
	own, err := c.routes.Own()
	if err != nil {
		c.log.Warn("this host's addresses cannot be listed", "err", err)
		return local, false
	}
	tunnels := make(map[int]bool)
	for _, i := range interfaces {
		tunnels[i.Index] = tunnel.Ours(i.Name)
	}
	for _, a := range own {
		local.Addrs = append(local.Addrs, a.Addr)
		if tunnels[a.IfIndex] {
			local.Tunnels = append(local.Tunnels, a.Addr)
		}
	}
	return local, true
}

// sessionChanged is told by a session that its waypoint answers and what it
// gives, or that it no longer does.
func (c *client) sessionChanged(ctx context.Context, v detour.Via, s session.State) {
	if s.Up {
		select {
		case c.sightings <- nat.Sighting{Member: v.Waypoint, At: s.Observed}:
		default: // there is no waypoint role, or it has plenty to read
		}
	}
	c.post(ctx, func(now time.Time) {
		if c.waypoints[v] == nil {
			return // it was left meanwhile
		}
		c.backlog = append(c.backlog, c.book.Down(v)...)
		switch {
		case !s.Usable():
		case spent(s):
			c.tunnels.offers[v] = nil
			c.backlog = append(c.backlog, c.book.Leave(v)...)
		default:
			c.tunnels.offers[v] = given(s)
			c.book.Offers(v, given(s))
			c.backlog = append(c.backlog, c.book.Up(v)...)
		}
		c.decide(ctx, now)
		c.pokeTunnels()
		c.heardOf(v.Waypoint)
	})
}

// post hands f to run.
func (c *client) post(ctx context.Context, f func(now time.Time)) {
	select {
	case c.inbox <- f:
	case <-ctx.Done():
	}
}

// tell hands the path manager one event.
func (c *client) tell(ctx context.Context, now time.Time, ev path.Event) {
	c.backlog = append(c.backlog, ev)
	c.decide(ctx, now)
}

// decide lets the path manager decide about each event in the backlog and
// carries out its actions, which may add to it.
func (c *client) decide(ctx context.Context, now time.Time) {
	for next := 0; next < len(c.backlog); {
		for _, a := range c.manager.Handle(c.backlog[next], now) {
			c.carryOut(ctx, a, now)
		}
		next++
	}
	clear(c.backlog)
	c.backlog = c.backlog[:0]
}

// ask sends requests to waypoints; their answers come back through the inbox.
func (c *client) ask(ctx context.Context, asks []detour.Ask) {
	for _, a := range asks {
		w := c.waypoints[a.Via]
		c.requests.Go(func() {
			asked, cancel := context.WithTimeout(ctx, mapTimeout)
			defer cancel()
			grant, err := w.Map(asked, a.Server)
			c.post(ctx, func(now time.Time) {
				if err != nil {
					c.log.Debug("no mapping", "waypoint", a.Via.Waypoint, "server", a.Server, "err", err)
					c.backlog = append(c.backlog, c.book.Refused(a, w.Refusal(err), now)...)
				} else {
					c.backlog = append(c.backlog, c.book.Granted(a, grant, now)...)
				}
				c.decide(ctx, now)
			})
		})
	}
}
