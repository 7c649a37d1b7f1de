package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/testbed"
)

const (
	connectionRate  = 2000 // per second
	connectionsFor  = 30 * time.Second
	connectionsHeld = 5 * time.Second // which keeps 10,000 alive
	connectionPorts = 16
	connectionPort  = 20000
	// connectionMemory is the target for an agent with 10,000 live connections.
	connectionMemory = 64 << 20
)

// connections opens as many connections a second as an agent must handle.
func connections(ctx context.Context, o Options) (found []Measurement, err error) {
	load := Load{Ports: connectionPorts, Rate: connectionRate, Duration: connectionsFor, Hold: connectionsHeld}
	for _, kind := range []config.Kind{config.Mapped, config.InBand} {
		r, err := runConnections(ctx, o, kind, load)
		if err != nil {
			return found, fmt.Errorf("%s: %w", kind, err)
		}
		found = append(found, r.figures(load)...)
	}
	return found, nil
}

// runConnections counts connections at the program that opens them, at a listener beside the agent, and in the agent.
func runConnections(ctx context.Context, o Options, kind config.Kind, load Load) (r connectionRun, err error) {
	r.kind = kind
	s, agent, waypoint, err := openLoaded(ctx, o, kind, &load)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	err = s.driveLoad(ctx, &r, load, agent, waypoint)
	return r, err
}

// openLoaded builds a network with the server of a load, whose address it fills in, and with the agents of a client and
// a waypoint.
func openLoaded(ctx context.Context, o Options, kind config.Kind, load *Load) (s *network, agent, waypoint *crew.Process, err error) {
	if s, err = openStar(ctx, o, testbed.BackendVeth, []string{"client", "waypoint"}, nil, nil); err != nil {
		return nil, nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	load.At = netip.AddrPortFrom(s.Host(serverHost).Addr4(), connectionPort)
	// Two sockets for each connection, of those that live and those that rest:
	// the default range has 28,232 ports.
	if err := s.Host("client").Sysctl("net.ipv4.ip_local_port_range", "1024 65535"); err != nil {
		return nil, nil, nil, err
	}
	if err := s.serveLoad(ctx, *load); err != nil {
		return nil, nil, nil, err
	}
	if waypoint, err = s.startWaypoint(ctx, []config.Kind{kind}, "waypoint", true); err != nil {
		return nil, nil, nil, err
	}
	agent, err = s.startClient(ctx, []config.Kind{kind}, "client", "waypoint")
	return s, agent, waypoint, err
}

// connectionRun has the counts from each place that counts.
type connectionRun struct {
	kind            config.Kind
	driven          Driven
	seen            eventCounts
	counters        api.Counters
	agent, waypoint crew.Usage
	agentAtRest     crew.Memory
}

// driveLoad runs the load while everything is watched, and notes what was seen.
func (s *network) driveLoad(ctx context.Context, r *connectionRun, load Load, agent, waypoint *crew.Process) (err error) {
	if r.agentAtRest, err = agent.Memory(); err != nil {
		return err
	}
	w, err := watchEvents(s.Host("client"), s.opts.Log)
	if err != nil {
		return err
	}
	before, err := s.counters(ctx, "client")
	if err != nil {
		return errors.Join(err, w.close())
	}
	stopAgent, stopWaypoint := agent.Watch(), waypoint.Watch()
	r.driven, err = s.drive(ctx, load)
	var agentErr, waypointErr error
	r.agent, agentErr = stopAgent()
	r.waypoint, waypointErr = stopWaypoint()
	if err := errors.Join(err, agentErr, waypointErr, w.close()); err != nil {
		return err
	}
	r.seen = w.counts()
	after, err := s.counters(ctx, "client")
	r.counters = api.Counters{
		Connections: after.Connections - before.Connections, SubflowsAsked: after.SubflowsAsked - before.SubflowsAsked,
		SubflowsUp: after.SubflowsUp - before.SubflowsUp, SubflowsRefused: after.SubflowsRefused - before.SubflowsRefused,
		EventsLost: after.EventsLost - before.EventsLost, Resyncs: after.Resyncs - before.Resyncs,
	}
	return err
}

// drive runs the client's end of a load to its end.
func (s *network) drive(ctx context.Context, load Load) (d Driven, err error) {
	var out bytes.Buffer
	p, err := s.StartTo(ctx, &out, "client", "load", s.Part(LoadClientPart, load)...)
	if err != nil {
		return d, err
	}
	<-p.Ended()
	if err := json.Unmarshal(out.Bytes(), &d); err != nil {
		return d, p.Failure()
	}
	return d, nil
}

// name names one of the figures.
func (r connectionRun) name(what string) string {
	return fmt.Sprintf("connections, %s: %s", r.kind, what)
}

// figures returns the measurements.
func (r connectionRun) figures(load Load) []Measurement {
	total := load.Rate * int(load.Duration.Seconds())
	rate := once(r.name("opened"), "connections/s", float64(r.driven.Opened)/r.driven.Seconds)
	rate.Note = fmt.Sprintf("%d opened, %d failed, as the program counts; %d alive at most, as the events tell; the client has ports 1024 to 65535",
		r.driven.Opened, r.driven.Failed, r.seen.mostAlive)
	served := min(r.seen.joined, int(r.counters.Connections), int(r.counters.SubflowsUp))
	missed := once(r.name("without their subflow"), "connections", float64(r.driven.Opened-served))
	missed.Note = fmt.Sprintf("of %d established, %d got a subflow and %d more than one; the agent counts %d connections, %d subflows asked for, %d refused, %d up",
		r.seen.established, r.seen.joined, r.seen.twice, r.counters.Connections, r.counters.SubflowsAsked, r.counters.SubflowsRefused, r.counters.SubflowsUp)
	lost := once(r.name("times events were lost"), "times", float64(r.counters.EventsLost))
	lost.Note = fmt.Sprintf("by the agent; by the listener beside it %d; the agent resynced %d times", r.seen.lost, r.counters.Resyncs)
	memory := of(r.name("agent's memory"), "MiB", mebibytes(r.agent.Resident))
	memory.Value = float64(r.agent.Highest) / (1 << 20)
	memory.Note = fmt.Sprintf("the most that was ever resident (VmHWM); %.1f MiB before the load", float64(r.agentAtRest.Now)/(1<<20))
	return []Measurement{
		rate.target(">= 1980 connections/s", rate.Value >= 0.99*connectionRate),
		missed.target("none of 60,000", r.driven.Opened == total && served == total),
		lost.target("none", r.counters.EventsLost == 0),
		memory.target("< 64 MiB", r.agent.Highest < connectionMemory),
		once(r.name("agent's processor use"), "cores", r.agent.CPU),
		once(r.name("waypoint's agent's processor use"), "cores", r.waypoint.CPU),
		once(r.name("waypoint's agent's memory"), "MiB", float64(r.waypoint.Highest)/(1<<20)),
	}
}

func mebibytes(bytes []float64) []float64 {
	out := make([]float64, len(bytes))
	for i, b := range bytes {
		out[i] = b / (1 << 20)
	}
	return out
}
