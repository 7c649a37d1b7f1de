package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/crew"
)

// alivePlan sets the amount of work: very many long-lived connections, of which a few are active.
type alivePlan struct {
	load   Load
	settle time.Duration // after the last connection has its subflow
	look   time.Duration // the time for which the agent is measured
}

// Targets for an agent with 10,000 connections.
const (
	aliveConnections = 10_000
	aliveActive      = 200
	aliveCPU         = 0.15 // cores
	aliveMemory      = 64 << 20
)

// alive measures the memory and processor time that an agent needs for long-lived connections.
func alive(ctx context.Context, o Options) ([]Measurement, error) {
	const opening = aliveConnections / connectionRate * time.Second
	plan := alivePlan{
		load: Load{Ports: connectionPorts, Rate: connectionRate, Duration: opening, Hold: 90 * time.Second, Active: aliveActive, Pulse: 50 * time.Millisecond},
		// Subflows that lost their first SYN take a second more.
		settle: 5 * time.Second, look: 30 * time.Second,
	}
	r, err := plan.run(ctx, o)
	if err != nil {
		return nil, err
	}
	return r.figures(), nil
}

// aliveRun is the result of a run.
type aliveRun struct {
	planned int // connections
	driven  Driven
	seen    eventCounts // when the agent had been measured
	agent   crew.Usage
	lost    uint64 // times that the agent lost events
}

// complete reports whether all connections had a joined subflow and lived until the agent had been measured, and no event was
// lost. Otherwise the agent had less to do than planned.
func (r aliveRun) complete() bool {
	return r.seen.joined >= r.planned && r.seen.alive >= r.planned && r.seen.lost == 0 && r.lost == 0 && r.driven.Failed == 0
}

// run opens the connections and measures the agent when all of them are there.
func (p alivePlan) run(ctx context.Context, o Options) (r aliveRun, err error) {
	s, agent, _, err := openLoaded(ctx, o, config.Mapped, &p.load)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	w, err := watchEvents(s.Host("client"), s.opts.Log)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	ended := make(chan error, 1)
	go func() {
		var err error
		r.driven, err = s.drive(ctx, p.load)
		ended <- err
	}()
	watching := p.measure(ctx, w, agent, &r)
	if err := errors.Join(watching, <-ended); err != nil {
		return r, err
	}
	counters, err := s.counters(ctx, "client")
	r.lost = counters.EventsLost
	return r, err
}

// measure waits until all connections have their subflows, and then measures the agent.
func (p alivePlan) measure(ctx context.Context, w *watcher, agent *crew.Process, r *aliveRun) error {
	r.planned = int(p.load.Duration.Seconds() * float64(p.load.Rate))
	// The figures report what is still missing then.
	_ = crew.Await(ctx, p.load.Hold/2, 100*time.Millisecond, func() error {
		if n := w.counts().joined; n < r.planned {
			return fmt.Errorf("%d of %d connections have a subflow", n, r.planned)
		}
		return nil
	})
	if err := crew.Pause(ctx, p.settle); err != nil {
		return err
	}
	stop := agent.Watch()
	paused := crew.Pause(ctx, p.look)
	var err error
	r.agent, err = stop()
	r.seen = w.counts()
	return errors.Join(paused, err)
}

func (r aliveRun) figures() []Measurement {
	name := func(what string) string { return fmt.Sprintf("selection %s: %s", alivePlace, what) }
	cpu := once(name("agent's processor use"), "cores", r.agent.CPU)
	cpu.Note = fmt.Sprintf("with %d of %d connections, %d of them with a subflow through a waypoint; the agent lost events %d times, and the listener beside it %d times; %d connections failed",
		r.seen.alive, r.planned, r.seen.joined, r.lost, r.seen.lost, r.driven.Failed)
	memory := of(name("agent's memory"), "MiB", mebibytes(r.agent.Resident))
	memory.Value = float64(r.agent.Highest) / (1 << 20)
	memory.Note = fmt.Sprintf("the most that was ever resident (VmHWM); at the end %.1f MiB of its own (RssAnon) and %.1f of the program's file (RssFile)",
		float64(r.agent.Last.Anonymous)/(1<<20), float64(r.agent.Last.File)/(1<<20))
	return []Measurement{
		cpu.target("< 0.15 cores", r.complete() && r.agent.CPU < aliveCPU),
		memory.target("< 64 MiB", r.complete() && r.agent.Highest < aliveMemory),
	}
}
