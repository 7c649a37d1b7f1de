package experiment

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/runner"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/stats"
)

const (
	// overrun is the time by which a run may exceed its planned duration. Runs with a size and no planned duration get
	// runner.LongestRun.
	overrun = 30 * time.Second

	liveInterval = 250 * time.Millisecond
)

// Order describes one run.
type Order struct {
	Variant   scenario.Variant
	Procedure scenario.Procedure
	Events    []scenario.Event
	// Log is the folder for programs' output, below the output folder's logs.
	Log string
	// Live, unless nil, is called about four times a second during the run.
	Live func(Live)
}

// Live has figures of a run in progress.
type Live struct {
	Elapsed time.Duration
	Bytes   int64
	Mbps    float64 // recent rate on all paths together
	Paths   []LivePath
}

// LivePath has the figures of one path.
type LivePath struct {
	Path string
	Mbps float64
}

// Execute runs the workload once. If the run did not complete, it returns an error and a partial result.
func (l *Lab) Execute(ctx context.Context, o Order) (run report.Run, err error) {
	run = report.Run{Variant: o.Variant.Name, Procedure: o.Procedure.Name, Congestion: l.Scenario.Congestion, Log: filepath.Join("logs", o.Log)}
	x := &execution{lab: l, crew: l.crew, workload: l.Scenario.WorkloadIn(o.Variant), variant: o.Variant, procedure: o.Procedure, result: &run}
	x.crew.Logs = filepath.Join(l.opts.Out, "logs", o.Log)
	if err := os.MkdirAll(x.crew.Logs, 0o755); err != nil {
		return run, fmt.Errorf("folder for logs: %w", err)
	}
	if err := l.net.setVariant(o.Variant); err != nil {
		return run, err
	}
	limit := runner.LongestRun
	if d := x.workload.Duration.Std(); d > 0 {
		limit = d + o.Procedure.WarmUp.Std() + overrun
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it took longer than %v and was ended", limit))
	defer cancel()

	if err := l.startClientAgent(ctx, o.Procedure, o.Variant); err != nil {
		return run, err
	}
	defer l.agents.stop(l.Scenario.ClientAgent())
	if err := x.findTarget(ctx); err != nil {
		return run, err
	}
	server, err := l.startServer(ctx, x.crew)
	if err != nil {
		return run, err
	}
	defer server.Stop()
	if err := x.awaitCaptured(ctx); err != nil {
		return run, err
	}
	stopCapture, err := l.capture(ctx, x.crew)
	if err != nil {
		return run, err
	}
	defer func() { err = errors.Join(err, stopCapture()) }()
	if err := x.warmUp(ctx); err != nil {
		return run, err
	}
	if err := x.observe(ctx, o); err != nil {
		return run, err
	}
	return run, runner.DColFailed(l.agents.failed())
}

// startClientAgent starts the agent of the workload's client, or of its gateway, for procedures
// that need one.
func (l *Lab) startClientAgent(ctx context.Context, p scenario.Procedure, v scenario.Variant) error {
	if !p.NeedsAgent() {
		return nil
	}
	plan := agentPlan{
		subflows: p.Subflows, via: p.Via, kinds: scenario.KindsOf([]scenario.Procedure{p}, v), needs: p.Detour,
		offers: l.offers, ownKinds: p.Detour == scenario.DefaultDetour, over: p.DCol,
	}
	if p.Detour != scenario.DefaultDetour {
		plan.subflows = max(p.Subflows, 1)
	}
	if p.Converts() {
		plan.converter, plan.converters = p.Converter, l.Scenario.WithRole(scenario.RoleConverter)
		plan.proxy, plan.capture = p.Proxy != "", p.Capture
	}
	client := l.Scenario.ClientAgent()
	l.clientVia = without(p.Via, client)
	if err := l.agents.start(ctx, client, plan); err != nil {
		return err
	}
	// The tunnels have brought new routes.
	return l.net.Host(client).SetCongestionControl(l.Scenario.Congestion)
}

// findTarget finds the addresses between which the workload's client connects. The target is normally the server. For a
// plain TCP connection over a mapped detour, it is the waypoint's port that leads to the server. Over a tunnel, the
// client connects from its address on the tunnel.
func (x *execution) findTarget(ctx context.Context) (err error) {
	l, p := x.lab, x.procedure
	x.target = netip.AddrPortFrom(l.serverAddr(), uint16(x.workload.Port))
	switch {
	case p.Transport != scenario.TCP:
	case p.Detour == scenario.Mapped:
		x.target, err = l.agents.mapping(ctx, l.Scenario.ClientAgent(), p.Via[0], x.target)
	case p.Detour.IsTunnel():
		x.local, err = crew.TunnelAddr(l.net.Host(l.Scenario.Workload.Client), l.clientVia, string(p.Detour), p.Via[0])
	}
	return err
}

// serverAddr returns the server's address for the workload's client: an IPv4 address if both hosts have IPv4.
func (l *Lab) serverAddr() netip.Addr {
	client, server := l.net.Host(l.Scenario.Workload.Client), l.net.Host(l.Scenario.Workload.Server)
	if client.Addr4().IsValid() && server.Addr4().IsValid() {
		return server.Addr4()
	}
	return server.Addr6()
}

// betweenRuns is the pause between the traffic to warm up and the measured traffic, so that the connections of the
// former end.
const betweenRuns = time.Second

// warmUp runs the traffic for the procedure's warm-up time without measuring it.
func (x *execution) warmUp(ctx context.Context) error {
	if x.procedure.WarmUp == 0 {
		return nil
	}
	before := *x
	before.workload.Duration, before.workload.Skip, before.result = x.procedure.WarmUp, 0, &report.Run{}
	err := before.traffic(ctx)
	if x.procedure.NeedsAgent() {
		err = runner.DColFailed(err)
	}
	if err = errors.Join(err, crew.Pause(ctx, betweenRuns)); err != nil || !x.procedure.Restart {
		return err
	}
	return x.restartClientAgent(ctx)
}

// restartClientAgent stops the client's agent in the ordinary way, so that it saves what it has learned, and starts it again.
func (x *execution) restartClientAgent(ctx context.Context) error {
	l := x.lab
	if err := l.agents.failed(); err != nil {
		return runner.DColFailed(err)
	}
	l.agents.stop(l.Scenario.ClientAgent())
	if err := l.startClientAgent(ctx, x.procedure, x.variant); err != nil {
		return err
	}
	// Mappings and tunnels have ended with the old agent.
	if err := x.findTarget(ctx); err != nil {
		return err
	}
	return x.awaitCaptured(ctx)
}

// observe runs the traffic, with the events, the samples and the capture of the run.
func (x *execution) observe(ctx context.Context, o Order) (err error) {
	l := x.lab
	if err := l.net.ResetStats(); err != nil {
		return err
	}
	before, err := crew.ReadMachineTime()
	if err != nil {
		return err
	}
	x.result.Started = time.Now()
	sampler, stopSampling, err := startSampling(ctx, l, x.procedure.Converts())
	if err != nil {
		return err
	}
	x.sampler = sampler
	stopTimeline := l.startTimeline(ctx, sampler.began, o.Events)
	stopLive := watch(ctx, sampler, o.Live)

	err = x.traffic(ctx)
	if x.procedure.NeedsAgent() {
		err = runner.DColFailed(err)
	}
	end := time.Since(sampler.began)

	stopLive()
	stopSampling()
	err = errors.Join(err, stopTimeline(), sampler.err)
	x.result.Paths = sampler.use()
	x.result.Series = sampler.series(end)
	if !x.workload.HasLatency() {
		x.result.LongestStallMS = stats.Milliseconds(sampler.longestStall(end))
	}
	if after, cpuErr := crew.ReadMachineTime(); cpuErr == nil {
		x.result.CPUShare = after.ShareSince(before)
	}
	var statErr error
	x.result.Links, statErr = l.net.use()
	if l.opts.reference != nil {
		x.result.ReferenceP99MS = stats.Milliseconds(l.opts.reference.Lateness(x.result.Started))
	}
	if !l.opts.anyFidelity {
		_, x.result.Cause, x.result.Discarded = runner.Judge(x.workload, *x.result)
	}
	return errors.Join(err, statErr)
}

// watch calls live until stopped.
func watch(ctx context.Context, s *sampler, live func(Live)) (stop func()) {
	if live == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(liveInterval)
		defer ticker.Stop()
		before := s.last()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				now := s.last()
				live(liveBetween(s.paths, before, now))
				before = now
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func liveBetween(paths []string, before, now sample) Live {
	seconds := (now.at - before.at).Seconds()
	g := Live{Elapsed: now.at, Bytes: now.total()}
	for _, path := range paths {
		if now.bytes[path] == 0 || seconds <= 0 {
			continue
		}
		rate := max(float64(now.bytes[path]-before.bytes[path])*8/1e6/seconds, 0)
		g.Mbps += rate
		g.Paths = append(g.Paths, LivePath{Path: path, Mbps: rate})
	}
	return g
}
