package waypoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/lease"
)

// Waypoint grants mappings, and admits members to the kinds of detours that lead to any server. Its methods may be
// called from any goroutine; they ask the loop, which owns the state.
type Waypoint struct {
	loop     *loop
	requests chan *mapRequest
	asks     chan func()
	news     chan flowNews
	stop     chan struct{}
	stopOnce sync.Once
	running  sync.WaitGroup
}

// loop has the state of a waypoint. One goroutine owns it.
type loop struct {
	config Config
	kernel kernel
	log    *slog.Logger
	record *attribution.Log

	leases       *lease.Leases
	table        *table
	filters      *filters
	connections  *connections
	giver        *giver
	limited      *limited
	surroundings *surroundings
	problems     problems
	loadedUntil  time.Time    // zero: not loaded
	incoming     []lease.Port // as last reported by TellIncoming; nil: not yet
}

// tableCheck is the interval at which the table is checked, in case no event has reported its removal.
const tableCheck = time.Second

// Start begins to serve in the calling thread's network namespace: it adopts the mappings and the
// connections that an earlier agent left, or sets everything up.
func Start(config Config, log *slog.Logger) (*Waypoint, error) {
	log = log.With("subsystem", "waypoint")
	k, err := openKernel(config)
	if err != nil {
		return nil, fmt.Errorf("start the waypoint: %w", err)
	}
	if k.noFast != nil {
		log.Warn("eBPF cannot forward the packets of detours: netfilter forwards each, which costs more, and "+
			"strangers who know a detour's ports can end it", "err", k.noFast)
	}
	w, err := start(config, k, log)
	if err != nil {
		return nil, fmt.Errorf("start the waypoint: %w", errors.Join(err, k.events.Close(), k.close()))
	}
	return w, nil
}

func start(config Config, k kernel, log *slog.Logger) (*Waypoint, error) {
	policy, err := egress.New(config.Allow, config.Deny, config.DenyPorts)
	if err != nil {
		return nil, err
	}
	w := &Waypoint{
		loop:     newLoop(config, policy, k, log),
		requests: make(chan *mapRequest, maxBatch),
		asks:     make(chan func()),
		news:     make(chan flowNews),
		stop:     make(chan struct{}),
	}
	now := time.Now()
	if err := w.loop.adopt(now); err != nil {
		return nil, errors.Join(err, w.loop.record.Close())
	}
	w.saveIfDue(now)
	w.running.Go(w.run)
	w.running.Go(w.readEvents)
	w.running.Go(w.watchLoad)
	w.running.Go(w.watchUse)
	return w, nil
}

// Close ends the agent's part. Mappings and connections stay in the kernel; CleanUp ends them.
func (w *Waypoint) Close() error {
	w.stopOnce.Do(func() { close(w.stop) })
	l := w.loop
	err := l.kernel.events.Close() // wakes readEvents
	w.running.Wait()
	l.giver.noteIDs(l.leases.IDs())
	l.giver.notePorts(l.incoming)
	return errors.Join(err, l.giver.finish(), l.connections.saveCounts(l.config.Counts), l.kernel.close(), l.record.Close())
}

// run owns the state. In each round it handles one of these: the requests that are waiting, a function of ask, conntrack's
// events, a change of the host's addresses, the removal of the table, or the checks of each second.
func (w *Waypoint) run() {
	check := time.NewTicker(tableCheck)
	defer check.Stop()
	addresses := w.loop.kernel.addresses
	for {
		select {
		case r := <-w.requests:
			w.loop.serve(w.waiting(r))
		case ask := <-w.asks:
			ask()
		case news := <-w.news:
			w.loop.connections.note(news)
		case _, ok := <-addresses:
			if !ok {
				addresses = nil
				break
			}
			w.loop.addressesChanged(time.Now())
		case o := <-w.loop.config.Outside:
			w.loop.outsideChanged(o)
		case <-w.loop.kernel.rules.Removed():
			w.loop.table.check()
		case now := <-check.C:
			w.loop.check(now)
			w.saveIfDue(now)
		case <-w.stop:
			return
		}
	}
}

// check does the checks of each second.
func (l *loop) check(now time.Time) {
	l.expire(now)
	l.table.check()
	l.giver.check(now)
	l.giver.noteIDs(l.leases.IDs())
	l.giver.notePorts(l.incoming)
	l.checkLimited(now)
	l.filters.check(l.table.rest.TunnelInterfaces, now)
	l.connections.check(now)
}

// readEvents waits for conntrack's events until the subscription is closed.
func (w *Waypoint) readEvents() {
	for {
		events, err := w.loop.kernel.events.Receive()
		news := flowNews{events: events, lost: errors.Is(err, netstate.ErrEventsLost)}
		if err != nil && !news.lost {
			select {
			case <-w.stop:
			default:
				w.loop.log.Error("connections are no longer recorded", "err", err)
				_ = w.ask(func() { w.loop.problems.set(problemEvents, err.Error()) })
			}
			return
		}
		select {
		case w.news <- news:
		case <-w.stop:
			return
		}
	}
}

// errStopped is returned by requests to a waypoint that was closed.
var errStopped = errors.New("the waypoint has stopped")

// ask runs f in the loop, and returns when f has returned.
func (w *Waypoint) ask(f func()) error { return w.askIn(context.Background(), f) }

// askIn is ask, which gives up when ctx ends.
func (w *Waypoint) askIn(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case w.asks <- func() { f(); close(done) }:
		<-done
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-w.stop:
		return errStopped
	}
}
