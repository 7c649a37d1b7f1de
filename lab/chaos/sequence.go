package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/doctor"
	"github.com/detour-collective/dcol/lab/chaos/attack"
	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/chaos/twin"
	"github.com/detour-collective/dcol/lab/programs"
)

const (
	// warmUp is the time of traffic before the first fault.
	warmUp = 3 * time.Second
	// recoverLimit limits the time from the last fault until there are two paths again.
	recoverLimit = 10 * time.Second
	// finishLimit limits the time until connections have ended after all faults are over, or plainShare
	// times the time of their twins, if that is more.
	finishLimit = 40 * time.Second
	plainShare  = 3
)

// Observations have everything that the judge needs to know about a sequence.
type Observations struct {
	Streams int // of the world
	Strikes []Strike
	Pairs   []PairRecord
	// Lacking are the connections that had fewer than two paths recoverLimit
	// after the last fault; Recovered is how long it took if there are none.
	Lacking   []Paths
	Recovered time.Duration
	// Still are connections that stood still while the direct path was cut at
	// the end, though they had two paths.
	Still []string
	// Unconverted are connections that did not come through the converter, before there was any fault.
	Unconverted []string
	// Unauthorised packets, by reason, and what else attackers got.
	Unauthorised map[string]int
	Excess       []string
	Stolen       []string // how the client's own traffic was led elsewhere
	Before       map[string]Holdings
	After        map[string]Holdings
	// Idle and IdleAgain are what was there before any traffic, and after all of it.
	Idle      map[string]Holdings
	IdleAgain map[string]Holdings
	// Died lists failures of dcol's own processes.
	Died []string
	// Exempt counts connections that need not have two paths, by the reason.
	Exempt map[string]int
	// LosesOverlaps reports that this kernel loses data of connections that became plain TCP.
	LosesOverlaps bool
	// HeldStill are connections that an end's kernel hung while the direct path was cut.
	HeldStill []string
	Late      time.Duration // of the emulated links' packets, 99th percentile, the worst
}

// PairRecord has the records of a connection and its twin.
type PairRecord struct {
	MPTCP, Plain twin.Record
	// Held reports that an end's kernel kept bytes from a program that waited
	// for them: see heldByKernel.
	Held bool
}

// sequence is a plan being carried out.
type sequence struct {
	plan     plan.Plan
	w        *world
	inspect  inspector
	traffic  *twin.Pool
	monitor  *monitor
	injector *injector
	watchers []*watcher
	held     map[*twin.Conn]bool // by an end's kernel
	seen     Observations
}

// observe carries a plan out in a world of its own and returns the observations. An error
// is the lab's: nothing is known about the product then.
func observe(ctx context.Context, p plan.Plan, pair programs.Pair, dir string, log *slog.Logger) (seen Observations, err error) {
	failures := &collector{}
	defer func() {
		seen.Died = failures.list()
		if errors.Is(err, errDColFailed) { // a finding, and no error
			err = nil
		}
	}()
	w, err := build(ctx, p, pair, dir, failures, log)
	if err != nil {
		return Observations{}, fmt.Errorf("build the world: %w", err)
	}
	defer func() { err = errors.Join(err, w.close()) }()
	s := &sequence{plan: p, w: w, inspect: inspector{w}, monitor: &monitor{inspect: inspector{w}}, held: map[*twin.Conn]bool{}}
	s.seen.Exempt, s.seen.Streams = map[string]int{}, len(p.World.Streams)
	err = s.run(ctx)
	return s.seen, err
}

func (s *sequence) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	defer s.close()
	if err := s.prepare(ctx, &background); err != nil {
		return err
	}

	pause(ctx, warmUp)
	s.seen.Unconverted = s.unconverted()
	var err error
	if s.seen.Before, err = s.holdings(ctx); err != nil {
		return err
	}
	if err := s.injectAll(ctx); err != nil {
		return err
	}
	if err := s.recover(ctx); err != nil {
		return err
	}
	if s.seen.After, err = s.holdings(ctx); err != nil {
		return err
	}
	s.w.answer(ctx)
	if err := s.injector.stopDropping(); err != nil {
		return err
	}
	s.finish(ctx)
	if err := s.rest(ctx); err != nil {
		return err
	}
	s.w.keepLogs()
	err = ctx.Err() // cut short from outside
	cancel()
	background.Wait()
	s.conclude()
	return errors.Join(err, s.monitor.failed)
}

// close ends the traffic and the attackers, as far as there are any.
func (s *sequence) close() {
	if s.traffic != nil {
		s.traffic.Close()
	}
	if s.injector != nil {
		s.injector.close()
	}
}

// prepare starts the watchers, then the traffic.
func (s *sequence) prepare(ctx context.Context, background *sync.WaitGroup) (err error) {
	s.injector = &injector{w: s.w, inspect: s.inspect, monitor: s.monitor, links: newLinkState()}
	if err := s.injector.open(); err != nil {
		return err
	}
	for _, name := range s.w.waypoints {
		for _, link := range []string{inLink(name), outLink(name)} {
			v, err := watch(s.w.Host(name), s.w.Host(name).Interface(link), s.w.rights(name))
			if err != nil {
				return err
			}
			s.watchers = append(s.watchers, v)
			background.Go(func() { v.run(ctx.Done()) })
		}
	}
	if s.seen.Idle, err = s.holdings(ctx); err != nil {
		return err
	}
	if s.seen.LosesOverlaps, err = doctor.TryFallback(); err != nil {
		return err
	}
	if s.traffic, err = twin.Start(ctx, s.w.Host(alice), s.w.Host(server), s.w.entrance(), s.plan.World.Streams); err != nil {
		return err
	}
	s.injector.traffic = s.traffic
	background.Go(func() { s.monitor.run(ctx) })
	return nil
}

// open prepares the attackers.
func (s *injector) open() (err error) {
	if s.raw, err = attack.NewRaw(s.w.Host(mallory)); err != nil {
		return err
	}
	if s.w.plan.Liar == "" {
		return nil
	}
	id, err := s.w.identity(liar)
	if err != nil {
		return err
	}
	s.liar = attack.NewWaypoint(s.w.Host(liar), id, s.w.plan.Liar, s.w.Host(server).Addr(), s.w.log)
	return s.liar.Restart()
}

func (s *injector) close() {
	if s.liar != nil {
		_ = s.liar.Close() // its host goes next
	}
	if s.raw != nil {
		_ = s.raw.Close()
	}
}

// injectAll carries out every fault at its time. They may overlap.
func (s *sequence) injectAll(ctx context.Context) error {
	var mu sync.Mutex
	var failures []error
	var faults sync.WaitGroup
	began := time.Now()
	for _, f := range s.plan.Faults {
		pause(ctx, time.Until(began.Add(f.At.Std())))
		faults.Go(func() {
			k, err := s.injector.inject(ctx, f)
			mu.Lock()
			defer mu.Unlock()
			s.seen.Strikes = append(s.seen.Strikes, k)
			failures = append(failures, err)
		})
	}
	faults.Wait()
	return errors.Join(append(failures, ctx.Err())...)
}

// settled is the age from which a connection should have all its paths.
const settled = 2 * time.Second

// living are the MPTCP connections that go on and whose twins do: what a twin does
// not survive, such as another address or a NAT that forgot it, may also leave the
// server with subflows that it takes for alive, in the place of others. exempt counts
// those that go on, by why two paths are not demanded of them.
func (s *sequence) living() (conns []*twin.Conn, exempt map[string]int) {
	exempt = map[string]int{}
	for _, p := range s.traffic.Pairs() {
		switch {
		case !p.MPTCP.Alive():
		case !p.Plain.Alive():
			exempt["the twin ended"]++
		case !s.w.isClient(p.Plain.Local().Addr()):
			exempt["older than the client's address"]++
		case time.Since(p.MPTCP.Record().Began) <= settled:
			exempt["just began"]++
		default:
			conns = append(conns, p.MPTCP)
		}
	}
	return conns, exempt
}

// recover waits for two paths, for each connection that lives, and then cuts
// the direct one: connections that go on have another that works.
func (s *sequence) recover(ctx context.Context) error {
	over := time.Now()
	for {
		conns, exempt := s.living()
		paths, err := s.paths(conns)
		if err != nil {
			return err
		}
		s.seen.Lacking, s.seen.Exempt = nil, exempt
		for _, p := range paths {
			switch {
			case p.lacking():
				s.seen.Lacking = append(s.seen.Lacking, p)
			case p.Excused != "":
				exempt[p.Excused]++
			case len(p.Idle) > 0:
				exempt["has an idle path that is dead"]++
			}
		}
		if len(s.seen.Lacking) == 0 {
			s.seen.Recovered = time.Since(over)
			break
		}
		if time.Since(over) > recoverLimit || ctx.Err() != nil {
			s.w.explain(ctx, "fewer than two paths")
			return ctx.Err()
		}
		pause(ctx, 250*time.Millisecond)
	}
	pause(ctx, time.Until(over.Add(recoverLimit/2))) // for what is being retransmitted
	return s.cut(ctx)
}

const (
	// cutLimit limits how long a connection may stand still when the direct path dies.
	cutLimit = 8 * time.Second
	// moving is the number of bytes that shows that a connection goes on. Both directions of the path
	// that was cut are dead, so no bytes arrive from there.
	moving = 10_000
)

// cut takes the direct path down and checks which connections go on.
func (s *sequence) cut(ctx context.Context) (err error) {
	conns, _ := s.living()
	paths, err := s.paths(conns)
	if err != nil {
		return err
	}
	if err := s.w.LinkDown(directLink, true); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.w.LinkDown(directLink, false)) }()
	pause(ctx, 200*time.Millisecond) // what was behind the link has arrived
	had := map[*twin.Conn]int64{}
	for i, c := range conns {
		if paths[i].moves() {
			had[c] = c.Received()
		}
	}
	for began := time.Now(); len(had) > 0 && ctx.Err() == nil; pause(ctx, 100*time.Millisecond) {
		for c, n := range had {
			if c.Received() > n+moving || !c.Alive() {
				delete(had, c)
			}
		}
		if time.Since(began) > cutLimit {
			break
		}
	}
	if len(had) > 0 {
		s.w.explain(ctx, "no progress without the direct path")
	}
	for c := range had {
		held, err := s.inspect.heldByKernel(ctx, c)
		if err != nil {
			return err
		}
		r := c.Record()
		what := fmt.Sprintf("%s from %v", r.Stream.Kind, r.Local)
		gone, err := s.inspect.droppedByServer(c)
		switch {
		case err != nil:
			return err
		case held:
			s.seen.HeldStill = append(s.seen.HeldStill, what)
		case gone:
			s.seen.Exempt["the server had dropped its idle path"]++
		default:
			s.seen.Still = append(s.seen.Still, what)
		}
	}
	return ctx.Err()
}

// finish ends all traffic in order, then by force.
func (s *sequence) finish(ctx context.Context) {
	s.traffic.Stop()
	began := time.Now()
	for _, p := range s.traffic.Pairs() {
		// A plain connection from an address that the client no longer has never ends.
		if local := p.Plain.Local(); !local.IsValid() || s.w.isClient(local.Addr()) {
			waitFor(ctx, p.Plain, time.Until(began.Add(finishLimit)))
		}
		p.Plain.Abort() // what it came to does not change any more
		<-p.Plain.Ended()
	}
	limit := max(finishLimit, plainShare*time.Since(began))
	for _, p := range s.traffic.Pairs() {
		if p.Plain.Record().Whole { // else nothing is demanded
			waitFor(ctx, p.MPTCP, time.Until(began.Add(limit)))
		}
	}
	s.checkHung(ctx)
	for _, p := range s.traffic.Pairs() {
		p.MPTCP.Abort()
		<-p.MPTCP.Ended()
	}
}

// checkHung checks whether connections that have not ended hang in a kernel.
func (s *sequence) checkHung(ctx context.Context) {
	hung := false
	for _, p := range s.traffic.Pairs() {
		if !p.MPTCP.Record().Ended.IsZero() {
			continue
		}
		hung = true
		held, err := s.inspect.heldByKernel(ctx, p.MPTCP)
		if err != nil {
			s.monitor.fail(err)
		}
		s.held[p.MPTCP] = held
	}
	if hung {
		s.w.explain(ctx, "a connection has not ended")
	}
}

func waitFor(ctx context.Context, c *twin.Conn, limit time.Duration) {
	select {
	case <-c.Ended():
	case <-time.After(limit):
	case <-ctx.Done():
	}
}

// holdings measures every member's host.
func (s *sequence) holdings(ctx context.Context) (map[string]Holdings, error) {
	all := map[string]Holdings{}
	for _, name := range s.w.members() {
		h, err := s.inspect.holdings(ctx, name)
		if err != nil {
			return nil, err
		}
		all[name] = h
	}
	return all, nil
}

// restLimit limits how long the state of connections may outlive them. Waypoints look for
// ended flows every few seconds, and later on a busy machine. A relay's kernel keeps a connection
// that has lost its last subflow for a minute (net.mptcp.close_timeout), in case another comes.
const restLimit = 75 * time.Second

// rest waits until hosts have what they had before any traffic, after all of it.
func (s *sequence) rest(ctx context.Context) (err error) {
	for began := time.Now(); ; {
		if s.seen.IdleAgain, err = s.holdings(ctx); err != nil {
			return err
		}
		var left Verdict
		left.judgeRest(s.seen)
		if len(left.Grown) == 0 || ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(began) > restLimit {
			s.w.explain(ctx, "more than before any traffic")
			return nil
		}
		pause(ctx, 500*time.Millisecond)
	}
}

// conclude collects the observations of background goroutines.
func (s *sequence) conclude() {
	s.seen.Unauthorised = map[string]int{}
	for _, v := range s.watchers {
		<-v.done
		for _, f := range v.findings {
			if !s.hadNoRules(v.waypoint, f.at) {
				s.seen.Unauthorised[f.why]++
			}
		}
		if most := tooFast(v.syns); most != "" {
			s.injector.excess.add("%s %s", v.waypoint, most)
		}
	}
	for _, p := range s.traffic.Pairs() {
		s.seen.Pairs = append(s.seen.Pairs, PairRecord{p.MPTCP.Record(), p.Plain.Record(), s.held[p.MPTCP]})
	}
	s.seen.Excess, s.seen.Stolen, s.seen.Late = s.injector.excess.lines, s.monitor.rerouted, s.monitor.late
}

// restored limits the time until a waypoint on a busy machine has noticed that its rules
// are gone, and has put them back.
const restored = 10 * time.Second

// hadNoRules reports whether a waypoint had no rules at a moment because somebody
// had flushed them: without any, its kernel translates and denies nothing.
func (s *sequence) hadNoRules(waypoint string, at time.Time) bool {
	return slices.ContainsFunc(s.seen.Strikes, func(k Strike) bool {
		return k.Fault.Kind == plan.FlushRules && k.Hit == waypoint && at.After(k.Began) && at.Before(k.Ended.Add(restored))
	})
}
