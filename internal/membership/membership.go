package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// Config is what a Membership needs.
type Config struct {
	Identity *collective.Identity
	// Dir keeps the copy of the directory and what the coordinators said of themselves.
	Dir string
	// Coordinators are asked after those that are kept in Dir.
	Coordinators []enrol.Endpoint
	// BusServers are tried besides those that coordinators name: one on this host itself.
	BusServers []enrol.Endpoint
	// LANs are the networks around this host, in which the collective should give it no addresses.
	LANs func() []netip.Prefix
	// Own are this host's addresses. Others' private ones are used only where it has one of that block.
	Own func() []netip.Addr

	// Client says how this host chooses waypoints; with Want 0 it chooses none. Skip are never chosen:
	// they are used anyhow.
	Client directory.Client
	Skip   []string
	// Choice is told the waypoints to use whenever they are others, or reached elsewhere. It is called by
	// one goroutine and should not block for long.
	Choice func([]Waypoint)
	// Reach tries to begin a session with a member, for the coordinators; punch: that lets in only whom it has
	// sent to. Its error is ErrCannotTell if it is this host that cannot. It is called concurrently.
	Reach func(ctx context.Context, name string, at netip.AddrPort, punch bool) error
	// Knock sends to where another member is seen, which wants to be let in; nil: this host does not. It is
	// called by the bus's goroutine and must not block.
	Knock func(from string, id [12]byte, at []netip.AddrPort)
	// Trusted is told when roots and lists have been taken; nil: nobody wants to know. It must not block.
	Trusted func()
	Log     *slog.Logger
}

// Waypoint is one that was chosen.
type Waypoint struct {
	Name      string
	Addresses []netip.Addr
	Port      uint16
	// Punch: it lets in only whom it has sent to (Membership.Punch).
	Punch bool
}

// Membership keeps this host a member. Its methods may be called from any goroutine.
type Membership struct {
	config Config
	log    *slog.Logger
	inbox  chan func(now time.Time)
	ended  chan struct{}
	work   sync.WaitGroup
	line   atomic.Pointer[bus.Member] // nil: there is none; only the loop sets it
	jwt    atomic.Pointer[string]     // for the bus
	keeper *directory.Keeper          // set before the loop begins
	checks chan struct{}              // a place for each that may be under way

	// The loop's own.
	enrolment Enrolment
	fileErr   error // why Dir is of no use
	link      link
	renewing  renewing
	publish   publishing
	trust     inquiry
	fetch     inquiry
	reach     inquiry
	enforced  enforcing
	word      enrol.Reachability // on who cannot be reached
	tried     *enrol.Tried       // to reach this host, and what came of it; nil: not known
	triedSoon time.Duration      // when to ask for that again
	choosing  choosing
	removed   string // why the coordinators took this host out of the directory
}

// lookEvery bounds how late a clock that was set is noticed.
const lookEvery = time.Minute

// New makes a Membership, which does nothing before Run.
func New(c Config) *Membership {
	m := &Membership{
		config: c, log: c.Log, inbox: make(chan func(time.Time), 256), ended: make(chan struct{}),
		checks: make(chan struct{}, maxChecks),
	}
	m.choosing.chooser = newChooser(c.Client, c.Skip)
	m.enrolment, m.fileErr = LoadEnrolment(c.Dir)
	if m.fileErr != nil {
		c.Log.Warn("membership: starting without what coordinators said", "err", m.fileErr)
	}
	m.useJWT(m.enrolment.BusJWT)
	return m
}

// Run works until ctx ends.
func (m *Membership) Run(ctx context.Context) error {
	m.keeper = directory.Open(directory.Config{
		File: m.directoryFile(), Limits: directory.DefaultLimits(), Trust: m.config.Identity.Trust, Ask: m.askDirectory,
		Changed: func(events []directory.Event) { m.post(ctx, func(now time.Time) { m.directoryChanged(events, now) }) },
		Log:     m.log,
	})
	defer close(m.ended)
	if err := os.MkdirAll(m.config.Dir, 0o700); err != nil {
		m.fileErr = fmt.Errorf("make the directory of what is kept of the collective: %w", err)
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

// step begins whatever is due, and says how long nothing else is.
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

// post hands f to the loop.
func (m *Membership) post(ctx context.Context, f func(now time.Time)) {
	select {
	case m.inbox <- f:
	case <-ctx.Done():
	}
}

// begin does in the background what takes time; then says what the loop is to make of it.
func (m *Membership) begin(ctx context.Context, do func() (then func(now time.Time))) {
	m.work.Go(func() { m.post(ctx, do()) })
}

// Offer says what this host has to say of itself; it is published when it differs from what the others
// know.
func (m *Membership) Offer(o Offer) {
	m.tell(func(time.Time) { m.publish.offer = &o })
}

// NetworkChanged says that this host's addresses are others now: a connection from an old one hears nothing
// more, and would be noticed to be dead only after some time.
func (m *Membership) NetworkChanged() {
	m.tell(func(now time.Time) {
		m.reconnect()
		m.renewing.hurry(now)
	})
}

// Heard says whether there is a session with a waypoint that was chosen.
func (m *Membership) Heard(waypoint string, up bool) {
	m.tell(func(now time.Time) {
		m.choosing.heard(waypoint, up, now)
		m.choosing.soon(now)
	})
}

func (m *Membership) tell(f func(now time.Time)) {
	select {
	case m.inbox <- f:
	case <-m.ended:
	}
}

// Directory lets f read the copy of the directory. It waits for the loop, which waits for nothing.
func (m *Membership) Directory(ctx context.Context, f func(*directory.Directory)) error {
	_, err := call(ctx, m, func() struct{} { m.keeper.View(f); return struct{}{} })
	return err
}

// call runs f in the loop of m and waits for its answer.
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

// inquiry is something that is asked now and then until an answer comes.
type inquiry struct {
	at       time.Time // when to ask; zero: no need
	asking   bool
	failures int
	err      error
}

func (i *inquiry) due(now time.Time) bool { return !i.asking && !i.at.IsZero() && !now.Before(i.at) }

// next is when it is due; zero: not as things are.
func (i *inquiry) next() time.Time {
	if i.asking {
		return time.Time{}
	}
	return i.at
}

const (
	firstAskPause = time.Second
	lastAskPause  = 2 * time.Minute
)

// answered notes what came; chance is from 0 to 1. asked is what at was when it was asked: if it is another
// now, it is to be asked again.
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
