package experiment

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/runner"
	"github.com/detour-collective/dcol/lab/scenario"
)

// agentLimit bounds the time until an agent, its sessions and its tunnels are ready.
const agentLimit = 30 * time.Second

// collectiveName names the collective in networks with a coordinator.
const collectiveName = "lab"

// agents manages the agents of a network's members.
type agents struct {
	crew     crew.Crew
	scenario *scenario.Scenario
	used     bool              // whether hosts run agents
	all      map[string]*agent // the started agents, by host
}

// agent is the agent of a host. It may have ended.
type agent struct {
	*crew.Process
	plan  agentPlan
	ended bool // it was ended on purpose
}

// issue makes an authority and identities, unless a coordinator does.
func (a *agents) issue() error {
	if !a.used || a.scenario.Coordinator() != "" {
		return nil
	}
	return a.crew.Issue(a.hosts()...)
}

// hosts lists the hosts that run agents.
func (a *agents) hosts() (names []string) {
	for _, h := range a.scenario.Hosts {
		if h.RunsAgent() {
			names = append(names, h.Name)
		}
	}
	return names
}

// coordinator returns the coordinator as members' configurations name it; "" without one.
func (a *agents) coordinator() string {
	name := a.scenario.Coordinator()
	if name == "" {
		return ""
	}
	return crew.Coordinator(name, a.crew.Host(name).Addr())
}

// startWaypoints starts the agents that run all the time, those of waypoints and converters. If the
// workload's client or its gateway is also a waypoint, each run starts one agent for both roles.
func (a *agents) startWaypoints(ctx context.Context, plan agentPlan) error {
	if !a.used {
		return nil
	}
	if err := a.found(ctx, plan); err != nil {
		return err
	}
	for _, h := range a.scenario.Hosts {
		if !h.Serves() || h.Name == a.scenario.ClientAgent() || a.all[h.Name] != nil {
			continue
		}
		if err := a.start(ctx, h.Name, plan); err != nil {
			return err
		}
	}
	return nil
}

// startAll starts every agent, with a plan for each host. They start together, because members may use each other.
func (a *agents) startAll(ctx context.Context, plan func(scenario.Host) agentPlan) error {
	if !a.used {
		return nil
	}
	if h, ok := a.scenario.Host(a.scenario.Coordinator()); ok {
		if err := a.found(ctx, plan(h)); err != nil {
			return err
		}
	}
	var started []string
	for _, h := range a.scenario.Hosts {
		if !h.RunsAgent() || a.all[h.Name] != nil {
			continue
		}
		if err := a.launch(ctx, h.Name, plan(h)); err != nil {
			return err
		}
		started = append(started, h.Name)
	}
	for _, name := range started {
		if err := a.await(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// found creates a collective, if the scenario has a coordinator. It uses the same commands as a person: `dcol init` for
// the coordinator, whose agent then runs, and invitations for the other members. Their configurations are written when
// their agents start.
func (a *agents) found(ctx context.Context, plan agentPlan) error {
	hub := a.scenario.Coordinator()
	if hub == "" {
		return nil
	}
	if err := a.crew.Found(ctx, hub, collectiveName); err != nil {
		return runner.DColFailed(err)
	}
	if err := a.start(ctx, hub, plan); err != nil {
		return err
	}
	for _, name := range a.hosts() {
		if name == hub {
			continue
		}
		if err := a.crew.Join(ctx, hub, name); err != nil {
			return runner.DColFailed(err)
		}
	}
	return nil
}

// start starts a host's agent and waits until it is ready.
func (a *agents) start(ctx context.Context, host string, plan agentPlan) error {
	if err := a.launch(ctx, host, plan); err != nil {
		return err
	}
	if err := a.await(ctx, host); err != nil {
		a.all[host].Stop()
		return runner.DColFailed(err)
	}
	return nil
}

// launch writes the configuration of a host's agent and starts it.
func (a *agents) launch(ctx context.Context, host string, plan agentPlan) error {
	h, _ := a.scenario.Host(host)
	plan.coordinator, plan.lan = a.coordinator(), nil
	for _, link := range h.LAN {
		plan.lan = append(plan.lan, a.crew.Host(host).Interface(link))
	}
	config := plan.config(h, func(waypoint string) []netip.Addr { return reachedAt(a.scenario, a.crew.Network, host, waypoint) })
	if err := a.crew.Configure(host, config); err != nil {
		return err
	}
	return a.run(ctx, host, plan)
}

// run starts a host's agent with the configuration that it has, which commands on the host may have changed.
func (a *agents) run(ctx context.Context, host string, plan agentPlan) error {
	p, err := a.crew.Start(ctx, host, "agent", a.crew.Programs.DCol, "agent")
	if err != nil {
		return err
	}
	a.all[host] = &agent{Process: p, plan: plan}
	return nil
}

// await waits until an agent answers, has sessions to its waypoints, and has the kind of detour and the converters
// that it requires.
func (a *agents) await(ctx context.Context, host string) error {
	of := a.all[host]
	err := of.Await(ctx, agentLimit, func() error {
		status, err := a.crew.Status(ctx, host)
		if err != nil {
			return err
		}
		err = crew.Ready(status, without(of.plan.via, host), of.plan.kindsNeeded()...)
		if err == nil && len(of.plan.converters) > 0 {
			err = crew.ConverterReady(status, of.plan.converters, of.plan.proxy)
		}
		if err == nil && len(of.plan.converters) > 0 && len(of.plan.lan) > 0 {
			err = a.crew.GatewayReady(ctx, host, status)
		}
		return err
	})
	if err == nil || ctx.Err() != nil || !of.Running() {
		return err
	}
	return of.Trouble(err)
}

// mapping asks a client's agent for a mapping to a server.
func (a *agents) mapping(ctx context.Context, client, via string, server netip.AddrPort) (netip.AddrPort, error) {
	out, err := a.crew.DCol(ctx, client, "map", server.String(), "--via", via)
	if err != nil {
		return netip.AddrPort{}, err
	}
	at, err := netip.ParseAddrPort(strings.TrimSpace(string(out)))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("read what `dcol map` answered: %w", err)
	}
	return at, nil
}

// failed returns an error if an agent has ended and stop or kill did not end it.
func (a *agents) failed() error {
	for _, agent := range a.all {
		if !agent.Running() && !agent.ended {
			return agent.Failure()
		}
	}
	return nil
}

// stop ends a host's agent, if it has one, and forgets it.
func (a *agents) stop(host string) {
	if of := a.all[host]; of != nil {
		of.Stop()
		delete(a.all, host)
	}
}

// kill ends a host's agent, if it has one, as a power cut would.
func (a *agents) kill(host string) {
	if of := a.all[host]; of != nil {
		of.ended = true
		of.Kill()
	}
}

// act starts, stops or signals a host's agent. A started agent keeps its earlier configuration and lives until ctx
// ends. act does not wait until the agent is ready.
func (a *agents) act(ctx context.Context, host string, action scenario.AgentAction) error {
	of := a.all[host]
	switch {
	case of == nil:
		return fmt.Errorf("no agent was started on %s", host)
	case action == scenario.StartAgent && of.Running():
		return fmt.Errorf("the agent of %s runs already", host)
	case action != scenario.StartAgent && !of.Running():
		return fmt.Errorf("the agent of %s does not run", host)
	}
	switch action {
	case scenario.FreezeAgent:
		return of.Signal(syscall.SIGSTOP)
	case scenario.ThawAgent:
		return of.Signal(syscall.SIGCONT)
	case scenario.KillAgent:
		a.kill(host)
		return nil
	case scenario.StopAgent:
		of.ended = true
		of.Stop()
		return nil
	case scenario.RestartAgent:
		of.Stop()
		return a.run(ctx, host, of.plan)
	case scenario.StartAgent:
		return a.run(ctx, host, of.plan)
	}
	return fmt.Errorf("%q is nothing that happens to an agent", action)
}
