package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

// Config holds what a Membership needs.
type Config struct {
	Identity *collective.Identity
	// Dir has the copy of the directory, and the addresses of the coordinators.
	Dir string
	// Coordinators are asked after those in Dir.
	Coordinators []enrol.Endpoint
	// BusServers are tried besides those that the coordinators name, such as one on this host.
	BusServers []enrol.Endpoint
	// LANs returns this host's networks, in which the collective should give it no addresses.
	LANs func() []netip.Prefix
	// Own returns this host's addresses. Private ones of others are used only if it has one in the same block.
	Own func() []netip.Addr

	// Client determines how this host chooses waypoints; with Want 0 it chooses none. Those in Skip are never chosen,
	// as they are used anyway.
	Client directory.Client
	Skip   []string
	// Choice gets the waypoints to use whenever they, or their addresses, have changed. One goroutine calls it; it
	// should not block for long.
	Choice func([]Waypoint)
	// Reach tries to begin a session with a member. With punch, the member lets in only hosts it has sent to. Reach
	// returns ErrCannotTell if this host cannot try. It is called concurrently.
	Reach func(ctx context.Context, name string, at netip.AddrPort, punch bool) error
	// Knock sends packets to the external addresses of another member, so that this host's NAT lets that member in. If nil,
	// this host sends none. The bus's goroutine calls it. It must not block.
	Knock func(from string, id [12]byte, at []netip.AddrPort)
	// Trusted is called after roots and lists were taken; it may be nil. It must not block.
	Trusted func()
	Log     *slog.Logger
}

// Waypoint is a chosen waypoint.
type Waypoint struct {
	Name      string
	Addresses []netip.Addr
	Port      uint16
	// Punch is set if it lets in only hosts it has sent to (Membership.Punch).
	Punch bool
}

// Membership keeps this host a member. Its methods may be called from any goroutine.
type Membership struct {
	config Config
	log    *slog.Logger
	inbox  chan func(now time.Time)
	ended  chan struct{}
	work   sync.WaitGroup
	line   atomic.Pointer[bus.Member] // may be nil; only the loop sets it
	jwt    atomic.Pointer[string]     // for the bus
	keeper *directory.Keeper          // set before the loop begins
	checks chan struct{}              // has room for each check that may be under way

	// Owned by the loop:
	enrolment Enrolment
	fileErr   error // why Dir cannot be used
	link      link
	renewing  renewing
	publish   publishing
	trust     inquiry
	fetch     inquiry
	reach     inquiry
	enforced  enforcing
	word      enrol.Reachability // the coordinators' last announcement
	tried     *enrol.Tried       // result of others' tries to reach this host; nil: not known
	triedSoon time.Duration      // pause before asking for that again
	choosing  choosing
	removed   string // why the coordinators removed this host's record
}

// lookEvery bounds the time until a change of the clock is noticed.
const lookEvery = time.Minute

// New returns a Membership, which does nothing before Run.
func New(c Config) *Membership {
	m := &Membership{
		config: c, log: c.Log, inbox: make(chan func(time.Time), 256), ended: make(chan struct{}),
		checks: make(chan struct{}, maxChecks),
	}
	m.choosing.chooser = newChooser(c.Client, c.Skip)
	m.enrolment, m.fileErr = LoadEnrolment(c.Dir)
	if m.fileErr != nil {
		c.Log.Warn("membership: starting without what the coordinators sent", "err", m.fileErr)
	}
	m.useJWT(m.enrolment.BusJWT)
	return m
}

// Run keeps this host a member until ctx ends.
func (m *Membership) Run(ctx context.Context) error {
	m.keeper = directory.Open(directory.Config{
		File: m.directoryFile(), Limits: directory.DefaultLimits(), Trust: m.config.Identity.Trust, Ask: m.askDirectory,
		Changed: func(events []directory.Event) { m.post(ctx, func(now time.Time) { m.directoryChanged(events, now) }) },
		Log:     m.log,
	})
	defer close(m.ended)
	if err := os.MkdirAll(m.config.Dir, 0o700); err != nil {
		m.fileErr = fmt.Errorf("make the directory for what is saved of the collective: %w", err)
	}
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			m.keeper.Close()
			m.hangUp()
			m.work.Wait()
			return nil
		case f := <-m.inbox:
			f(time.Now())
		case <-due.C:
		}
		due.Reset(m.step(ctx, time.Now()))
	}
}

// step begins everything that is due, and returns the time until something else is.
func (m *Membership) step(ctx context.Context, now time.Time) time.Duration {
	next := now.Add(lookEvery)
	for _, due := range []func(context.Context, time.Time) time.Time{
		m.connectDue, m.renewDue, m.trustDue, m.fetchDue, m.enforcedDue, m.reachDue, m.publishDue, m.chooseDue,
	} {
		if at := due(ctx, now); !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	return max(next.Sub(now), time.Millisecond)
}

// post runs f in the loop.
func (m *Membership) post(ctx context.Context, f func(now time.Time)) {
	select {
	case m.inbox <- f:
	case <-ctx.Done():
	}
}

// begin runs do in the background. The function that do returns then runs in the loop.
func (m *Membership) begin(ctx context.Context, do func() (then func(now time.Time))) {
	m.work.Go(func() { m.post(ctx, do()) })
}

// Offer sets the content of this host's record. The record is published if it differs from the one in the directory.
func (m *Membership) Offer(o Offer) {
	m.tell(func(time.Time) { m.publish.offer = &o })
}

// Measured sets the measurements of waypoints that this host publishes, the most important first.
func (m *Membership) Measured(list []directory.Measurement) {
	m.tell(func(time.Time) { m.publish.measured = list })
}

// NetworkChanged reconnects, because this host's addresses have changed. A connection from an old address is dead, but that
// would be noticed only after some time.
func (m *Membership) NetworkChanged() {
	m.tell(func(now time.Time) {
		m.reconnect()
		m.renewing.hurry(now)
	})
}

// Heard records whether there is a session with a chosen waypoint.
func (m *Membership) Heard(waypoint string, up bool) {
	m.tell(func(now time.Time) {
		m.choosing.heard(waypoint, up, now)
		m.choosing.soon(now)
	})
}

// Steer has the waypoints in first chosen before all others, and those in never not at all.
func (m *Membership) Steer(first, never []string) {
	m.tell(func(now time.Time) {
		m.choosing.client.First, m.choosing.client.Never = first, never
		m.choosing.soon(now)
	})
}

func (m *Membership) tell(f func(now time.Time)) {
	select {
	case m.inbox <- f:
	case <-m.ended:
	}
}

// Directory calls f with the copy of the directory. It waits for the loop, which never blocks.
func (m *Membership) Directory(ctx context.Context, f func(*directory.Directory)) error {
	_, err := call(ctx, m, func() struct{} { m.keeper.View(f); return struct{}{} })
	return err
}

// call runs f in m's loop and returns its result.
func call[T any](ctx context.Context, m *Membership, f func() T) (T, error) {
	answer := make(chan T, 1)
	select {
	case m.inbox <- func(time.Time) { answer <- f() }:
	case <-m.ended:
		return *new(T), errEnded
	case <-ctx.Done():
		return *new(T), ctx.Err()
	}
	select {
	case a := <-answer:
		return a, nil
	case <-m.ended:
		return *new(T), errEnded
	case <-ctx.Done():
		return *new(T), ctx.Err()
	}
}

var errEnded = errors.New("the agent stops")

// inquiry is a request that is repeated until it is answered.
type inquiry struct {
	at       time.Time // when to ask; zero: no need
	asking   bool
	failures int
	err      error
}

func (i *inquiry) due(now time.Time) bool { return !i.asking && !i.at.IsZero() && !now.Before(i.at) }

// next returns the time when the inquiry is due; zero: never, as things are now.
func (i *inquiry) next() time.Time {
	if i.asking {
		return time.Time{}
	}
	return i.at
}

// inquire runs ask in the background if the inquiry is due. The function that ask returns then runs in the loop. inquire
// returns the time when the inquiry is due next.
func (m *Membership) inquire(ctx context.Context, i *inquiry, now time.Time, ask func() (then func(now time.Time), err error)) time.Time {
	if !i.due(now) {
		return i.next()
	}
	i.asking = true
	asked := i.at
	m.begin(ctx, func() func(time.Time) {
		then, err := ask()
		return func(now time.Time) {
			i.answered(err, asked, now, rand.Float64())
			if err == nil && then != nil {
				then(now)
			}
		}
	})
	return time.Time{}
}

const (
	firstAskPause = time.Second
	lastAskPause  = 2 * time.Minute
)

// answered records the result of a request. asked is the value of at when the request began. If at has changed since, the
// request is repeated. chance is a random number from 0 to 1.
func (i *inquiry) answered(err error, asked, now time.Time, chance float64) {
	i.asking, i.err = false, err
	if err == nil {
		i.failures = 0
		if i.at.Equal(asked) {
			i.at = time.Time{}
		}
		return
	}
	pause := min(firstAskPause<<min(i.failures, 10), lastAskPause)
	i.failures++
	i.at = now.Add(pause/2 + time.Duration(chance*float64(pause/2)))
}
