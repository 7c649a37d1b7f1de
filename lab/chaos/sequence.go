package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/doctor"
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

// observe carries out a plan in a world of its own and returns the observations. An error
// is a failure of the lab and says nothing about the product.
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
