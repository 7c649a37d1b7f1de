package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// ClientConfig configures a Client.
type ClientConfig struct {
	Identity *collective.Identity
	Name     string         // the waypoint's name, required in its certificate
	Addr     netip.AddrPort // the waypoint's address
	Log      *slog.Logger
	// Changed is called when the session comes up or goes down, when the waypoint changes what it
	// gives, and when our address changes. In the last case the session is first not usable and
	// then usable again, because grants are for one address. It is called by one goroutine and must
	// not block or call Close. It may be nil.
	Changed func(State)
	// Loaded is called like Changed, when the waypoint reports that it is loaded, or no longer loaded. It may be nil.
	Loaded func(Load)
	// Way opens a way to a waypoint that only accepts packets from addresses it has sent to. It is
	// called before anything else is sent from the socket of a new session. When it returns,
	// nothing may read from the socket any more. If nil, the way is open.
	Way func(ctx context.Context, socket *net.UDPConn, to netip.AddrPort) error
}

// Client maintains a session with one address of one waypoint.
type Client struct {
	config  ClientConfig
	log     *slog.Logger
	moved   chan struct{} // NetworkChanged was called
	pings   chan struct{} // Ping was called
	stop    context.CancelFunc
	running sync.WaitGroup
	// seen is our address as the waypoint last saw it. Only run uses it. It is newer than what a
	// session reports before its first pong.
	seen netip.AddrPort

	mu      sync.Mutex
	state   State
	call    *call         // nil without a session
	settled chan struct{} // closed when not moving
}

// NewClient starts a Client, which maintains a session until Close.
func NewClient(config ClientConfig) *Client {
	settled := make(chan struct{})
	close(settled)
	ctx, stop := context.WithCancel(context.Background())
	c := &Client{
		config: config,
		log:    config.Log.With("waypoint", config.Name, "addr", config.Addr),
		moved:  make(chan struct{}, 1),
		pings:  make(chan struct{}, 1),
		stop:   stop,
		state: State{
			Waypoint: config.Name, Addr: config.Addr, Since: time.Now(),
			Problem: &Problem{Code: Connecting, Text: "no answer yet"},
		},
		settled: settled,
	}
	c.running.Go(func() { c.run(ctx) })
	return c
}

// Close ends the session, notifies the waypoint, and returns when all goroutines have ended.
func (c *Client) Close() {
	c.stop()
	c.running.Wait()
}

// State returns the current state.
func (c *Client) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stateLocked()
}

func (c *Client) stateLocked() State {
	s := c.state
	if c.call != nil {
		stats := c.call.conn.ConnectionStats()
		s.RTT, s.MinRTT, s.LatestRTT = stats.SmoothedRTT, stats.MinRTT, stats.LatestRTT
	}
	return s
}

// Ping measures the round trip again, if there is a session.
func (c *Client) Ping() {
	select {
	case c.pings <- struct{}{}:
	default: // an earlier one is still pending
	}
}

// NetworkChanged reports that this host's addresses or routes have changed. The session is tested,
// moved or replaced at once.
func (c *Client) NetworkChanged() {
	select {
	case c.moved <- struct{}{}:
	default: // an earlier change is still pending
	}
}

// run maintains a session until ctx ends.
func (c *Client) run(ctx context.Context) {
	var wait backoff
	for {
		started := time.Now()
		problem := c.session(ctx)
		if ctx.Err() != nil {
			c.down(&Problem{Code: Stopped, Text: "the agent stops"})
			return
		}
		c.down(problem)
		if time.Since(started) > steady {
			wait.reset()
			if problem.Code == Restarted {
				continue
			}
		}
		if problem.Code == NetworkMoved {
			continue
		}
		delay := time.NewTimer(wait.next(rand.Float64()))
		select {
		case <-delay.C:
		case <-c.moved:
			wait.reset()
		case <-ctx.Done():
		}
		delay.Stop()
	}
}

// session opens a session, maintains it until it ends, and returns the reason.
func (c *Client) session(ctx context.Context) *Problem {
	w := where{waypoint: c.config.Name, addr: c.config.Addr}
	line, heard, err := dial(ctx, c.config)
	if err != nil {
		w.heard = heard
		return explain(w, err)
	}
	defer line.close()
	w.up = true
	call := newCall(line)
	if c.seen.IsValid() {
		_ = call.out.put(wire.Left{From: c.seen}) // if the session has ended, read returns the reason
	}
	c.up(call)
	err = c.tend(ctx, call)
	problem := explain(w, err)
	call.end(closeDone, "", &DownError{Waypoint: c.config.Name, Problem: problem})
	return problem
}

func (c *Client) up(call *call) {
	c.change(func() {
		c.call = call
		c.state.Up, c.state.Since, c.state.Problem, c.state.Sessions = true, time.Now(), nil, c.state.Sessions+1
		c.state.Local, c.state.Observed = call.local, call.hello.Observed
		c.greeted(call.hello)
	})
	c.log.Info("session up", "from", call.hello.Observed)
}

// greeted records the waypoint's greeting.
func (c *Client) greeted(h wire.Hello) {
	now := time.Now()
	c.state.Offers, c.state.Lease, c.state.Closed, c.state.Load = h.Offers, h.Lease, closedOf(h, now), loadOf(h, now)
}

// hears records a repeated greeting.
func (c *Client) hears(h wire.Hello) {
	now := time.Now()
	c.mu.Lock()
	same := slices.Equal(c.state.Offers, h.Offers) && c.state.Lease == h.Lease && c.state.Closed.equal(closedOf(h, now))
	load := loadOf(h, now)
	sameLoad := c.state.Load.equal(load)
	began := c.state.Load.Until.Before(now) != load.Until.Before(now)
	c.mu.Unlock()
	if !same {
		c.change(func() { c.greeted(h) })
		c.log.Info("the waypoint was opened or closed", "closed", c.State().Closed)
	}
	if !sameLoad {
		c.mu.Lock()
		c.state.Load = load
		c.mu.Unlock()
		if c.config.Loaded != nil {
			c.config.Loaded(load)
		}
	}
	if began {
		c.log.Info("the waypoint's load has changed", "until", load.Until)
	}
}

// down records a problem. A repetition of the same problem is not reported.
func (c *Client) down(p *Problem) {
	c.mu.Lock()
	wasUp, before := c.state.Up, c.state.Problem
	c.mu.Unlock()
	if !wasUp && before != nil && before.Code == p.Code {
		return
	}
	c.change(func() {
		if c.state.Moving {
			close(c.settled)
		}
		s := State{Waypoint: c.state.Waypoint, Addr: c.state.Addr, Since: c.state.Since, Problem: p, Sessions: c.state.Sessions}
		if wasUp {
			s.Since = time.Now()
		}
		c.state, c.call = s, nil
	})
	c.log.Warn("no session", "problem", p.Code, "err", p)
}

func (c *Client) change(f func()) {
	c.mu.Lock()
	f()
	s := c.stateLocked()
	c.mu.Unlock()
	if c.config.Changed != nil {
		c.config.Changed(s)
	}
}

// unsettle makes requests wait until settle.
func (c *Client) unsettle() {
	c.mu.Lock()
	moving := c.state.Moving
	c.mu.Unlock()
	if moving {
		return
	}
	c.change(func() {
		c.state.Moving = true
		c.settled = make(chan struct{})
	})
}

func (c *Client) settle() {
	c.mu.Lock()
	moving := c.state.Moving
	c.mu.Unlock()
	if moving {
		c.change(func() {
			c.state.Moving = false
			close(c.settled)
		})
	}
}

var errSilence = errors.New("no answer to pings")

// tend keeps a session alive and returns why it ended.
func (c *Client) tend(ctx context.Context, call *call) error {
	var lossy loss
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	var move *move
	defer func() { move.stop() }()
	for {
		select {
		case <-ctx.Done():
			call.end(closeDone, "the agent stops", &DownError{Waypoint: c.config.Name, Problem: &Problem{Code: Stopped, Text: "the agent stops"}})
			return ctx.Err()
		case <-call.ended:
			return call.why()
		case <-call.heard:
			quiet.Reset(silence)
		case seen := <-call.pongs:
			c.seen = seen
			if move.arrived(seen) {
				c.observe(call, seen)
				c.settle()
				move.stop()
				move = nil
			}
		case said := <-call.news:
			c.hears(said)
		case <-quiet.C:
			return &Problem{
				Code: Lost, Err: errSilence,
				Text: fmt.Sprintf("%s stopped answering on %v/udp", c.config.Name, c.config.Addr), Fix: "is its host up and the network between you?",
			}
		case <-tick.C:
			lossy.update(call.departures.counts(time.Now()))
			c.mu.Lock()
			c.state.Loss, c.state.LossPackets = lossy.ratio(), lossy.packets()
			c.mu.Unlock()
			if err := c.check(call); err != nil {
				return err
			}
			call.ping()
		case <-c.pings:
			call.ping()
		case <-c.moved:
			if move = c.startMove(call, move); move != nil {
				call.ping()
			}
		case <-move.retries():
			if move.late() {
				return &Problem{Code: NetworkMoved, Text: "this host's address changed and the session did not follow", Fix: "nothing to do, a new session is being made"}
			}
			call.ping()
		}
	}
}

// check ends sessions with waypoints that are no longer members.
func (c *Client) check(call *call) error {
	c.config.Identity.Refresh()
	return c.config.Identity.Check(call.member)
}

func (c *Client) observe(call *call, seen netip.AddrPort) {
	c.mu.Lock()
	same := c.state.Observed == seen
	c.mu.Unlock()
	if same {
		return
	}
	// The address changed without a notification, for example at a NAT.
	c.unsettle()
	local, err := localFor(c.config.Addr)
	c.mu.Lock()
	c.state.Observed = seen
	if err == nil {
		call.local, c.state.Local = local, local
	}
	c.mu.Unlock()
	c.log.Info("session moved", "from", seen)
	c.settle()
}
