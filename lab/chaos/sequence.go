package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/lab/chaos/attack"
	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/chaos/twin"
	"github.com/detour-collective/dcol/lab/programs"
)

const (
	// warmUp is how long traffic runs before the first fault.
	warmUp = 3 * time.Second
	// recoverLimit is how long after the last fault two paths must be there again.
	recoverLimit = 10 * time.Second
	// finishLimit is how long connections may take to come to their end after
	// all faults are over; plainShare times as long as their twins, if that is more.
	finishLimit = 40 * time.Second
	plainShare  = 3
)

// Observations are all that the judge needs to know of a sequence.
type Observations struct {
	Strikes []Strike
	Pairs   []PairRecord
	// Lacking are the connections that had fewer than two paths recoverLimit
	// after the last fault; Recovered is how long it took if there are none.
	Lacking   []Paths
	Recovered time.Duration
	// Still are connections that stood still while the direct path was cut at
	// the end, though they had two paths.
	Still []string
	// Unauthorised packets, by reason, and what else attackers got.
	Unauthorised map[string]int
	Excess       []string
	Stolen       []string // how the client's own traffic was led elsewhere
	Before       map[string]Holdings
	After        map[string]Holdings
	// Idle and IdleAgain are what was there before any traffic, and after all of it.
	Idle      map[string]Holdings
	IdleAgain map[string]Holdings
	// Died says what dcol's own processes did wrong.
	Died []string
	// Exempt counts connections of which less is demanded, by the reason.
	Exempt map[string]int
	// HeldStill are connections that an end's kernel hung while the direct path was cut.
	HeldStill []string
	Late      time.Duration // of the emulated links' packets, 99th percentile, the worst
}

// PairRecord is what became of a connection and its twin.
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
	traffic  *twin.Pool
	monitor  *monitor
	striker  *striker
	watchers []*watcher
	held     map[*twin.Conn]bool // by an end's kernel
	seen     Observations
}

// observe carries a plan out in a world of its own and says what was seen. An
// error is the lab's: nothing can be said of the product.
func observe(ctx context.Context, p plan.Plan, pair programs.Pair, dir string, log *slog.Logger) (seen Observations, err error) {
	died := &died{}
	defer func() {
		seen.Died = died.list()
		if errors.Is(err, errDied) { // a finding, and no error
			err = nil
		}
	}()
	w, err := build(ctx, p, pair, dir, died, log)
	if err != nil {
		return Observations{}, fmt.Errorf("build the world: %w", err)
	}
	defer func() { err = errors.Join(err, w.close()) }()
	s := &sequence{plan: p, w: w, monitor: &monitor{w: w}, held: map[*twin.Conn]bool{}}
	s.seen.Exempt = map[string]int{}
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
	var err error
	if s.seen.Before, err = s.holdings(ctx); err != nil {
		return err
	}
	if err := s.strikeAll(ctx); err != nil {
		return err
	}
	if err := s.recover(ctx); err != nil {
		return err
	}
	if s.seen.After, err = s.holdings(ctx); err != nil {
		return err
	}
	s.w.answer(ctx)
	if err := s.striker.relent(); err != nil {
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
	if s.striker != nil {
		s.striker.close()
	}
}

// prepare starts what watches, and then the traffic.
func (s *sequence) prepare(ctx context.Context, background *sync.WaitGroup) (err error) {
	s.striker = &striker{w: s.w, monitor: s.monitor, links: newLinkState()}
	if err := s.striker.open(); err != nil {
		return err
	}
	for _, name := range s.w.waypoints {
		for _, link := range []string{inLink(name), outLink(name)} {
			v, err := watch(s.w.host(name), s.w.host(name).Interface(link), s.w.rights(name))
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
	if s.traffic, err = twin.Start(ctx, s.w.host(alice), s.w.host(server), s.plan.World.Streams); err != nil {
		return err
	}
	s.striker.traffic = s.traffic
	background.Go(func() { s.monitor.run(ctx) })
	return nil
}

// open readies the attackers.
func (s *striker) open() (err error) {
	if s.raw, err = attack.NewRaw(s.w.host(mallory)); err != nil {
		return err
	}
	if s.w.plan.Liar == "" {
		return nil
	}
	id, err := s.w.identity(liar)
	if err != nil {
		return err
	}
	s.liar = attack.NewWaypoint(s.w.host(liar), id, s.w.plan.Liar, s.w.host(server).Addr4(), s.w.log)
	return s.liar.Restart()
}

func (s *striker) close() {
	if s.liar != nil {
		_ = s.liar.Close() // its host goes next
	}
	if s.raw != nil {
		_ = s.raw.Close()
	}
}

// strikeAll lets every fault strike at its time; they may overlap.
func (s *sequence) strikeAll(ctx context.Context) error {
	var mu sync.Mutex
	var failures []error
	var faults sync.WaitGroup
	began := time.Now()
	for _, f := range s.plan.Faults {
		pause(ctx, time.Until(began.Add(f.At.Std())))
		faults.Go(func() {
			k, err := s.striker.strike(ctx, f)
			mu.Lock()
			defer mu.Unlock()
			s.seen.Strikes = append(s.seen.Strikes, k)
			failures = append(failures, err)
		})
	}
	faults.Wait()
	return errors.Join(append(failures, ctx.Err())...)
}

// settled is how old a connection is that should have all its paths.
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
		case p.Plain.Local().Addr() != s.w.client():
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
	// cutLimit is how long a connection may stand still when the direct path dies.
	cutLimit = 8 * time.Second
	// moving is how many bytes show that a connection goes on: more than can
	// have been under way when the path was cut is not needed, as both
	// directions of that path are dead.
	moving = 10_000
)

// cut takes the direct path away and sees who goes on.
func (s *sequence) cut(ctx context.Context) (err error) {
	conns, _ := s.living()
	paths, err := s.paths(conns)
	if err != nil {
		return err
	}
	if err := s.w.net.LinkDown(directLink, true); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.w.net.LinkDown(directLink, false)) }()
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
		held, err := s.w.heldByKernel(ctx, c)
		if err != nil {
			return err
		}
		r := c.Record()
		what := fmt.Sprintf("%s from %v", r.Stream.Kind, r.Local)
		gone, err := s.w.droppedByServer(c)
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

// finish has all traffic come to its end, and ends by force what does not.
func (s *sequence) finish(ctx context.Context) {
	s.traffic.Stop()
	began := time.Now()
	for _, p := range s.traffic.Pairs() {
		// A plain connection from an address that the client no longer has never ends.
		if local := p.Plain.Local(); !local.IsValid() || local.Addr() == s.w.client() {
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
	s.holdInquest(ctx)
	for _, p := range s.traffic.Pairs() {
		p.MPTCP.Abort()
		<-p.MPTCP.Ended()
	}
}

// holdInquest looks at connections that have not come to their end.
func (s *sequence) holdInquest(ctx context.Context) {
	hung := false
	for _, p := range s.traffic.Pairs() {
		if !p.MPTCP.Record().Ended.IsZero() {
			continue
		}
		hung = true
		held, err := s.w.heldByKernel(ctx, p.MPTCP)
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
		h, err := s.w.holdings(ctx, name)
		if err != nil {
			return nil, err
		}
		all[name] = h
	}
	return all, nil
}

// restLimit is how long what belonged to connections may outlive them. Waypoints look
// for flows that ended every few seconds, and on a busy machine later.
const restLimit = 15 * time.Second

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

// conclude collects what was seen in the background.
func (s *sequence) conclude() {
	s.seen.Unauthorised = map[string]int{}
	for _, v := range s.watchers {
		<-v.done
		for _, f := range v.findings {
			if !s.lawless(v.waypoint, f.at) {
				s.seen.Unauthorised[f.why]++
			}
		}
		if most := rush(v.syns); most != "" {
			s.striker.excess.add("%s %s", v.waypoint, most)
		}
	}
	for _, p := range s.traffic.Pairs() {
		s.seen.Pairs = append(s.seen.Pairs, PairRecord{p.MPTCP.Record(), p.Plain.Record(), s.held[p.MPTCP]})
	}
	s.seen.Excess, s.seen.Stolen, s.seen.Late = s.striker.excess.found, s.monitor.stolen, s.monitor.late
}

// restored is how long a waypoint may take to notice that its rules are gone,
// and to put them back, on a busy machine.
const restored = 10 * time.Second

// lawless reports whether a waypoint had no rules at a moment because somebody
// had flushed them: without any, its kernel translates and denies nothing.
func (s *sequence) lawless(waypoint string, at time.Time) bool {
	return slices.ContainsFunc(s.seen.Strikes, func(k Strike) bool {
		return k.Fault.Kind == plan.FlushRules && k.Hit == waypoint && at.After(k.Began) && at.Before(k.Ended.Add(restored))
	})
}
