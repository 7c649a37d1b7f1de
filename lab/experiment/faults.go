package experiment

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/detour-collective/dcol/lab/scenario"
)

// agent returns the process of a host's agent.
func (l *Lab) agent(host string) *program {
	switch {
	case l.members[host] != nil:
		return l.members[host]
	case l.client != nil && l.client.host == host:
		return l.client
	}
	return l.waypoints[host]
}

// keepAgent has a host's agent replaced by another.
func (l *Lab) keepAgent(agent *program) {
	switch host := agent.host; {
	case l.members[host] != nil:
		l.members[host] = agent
	case l.client != nil && l.client.host == host:
		l.client = agent
	default:
		l.waypoints[host] = agent
	}
}

// ActOnAgent starts, stops or signals a host's agent. A started agent lives until ctx ends. ActOnAgent does
// not wait until it is ready.
func (l *Lab) ActOnAgent(ctx context.Context, host string, action scenario.AgentAction) error {
	agent := l.agent(host)
	if agent == nil {
		return fmt.Errorf("no agent was started on %s", host)
	}
	if action == scenario.StartAgent && agent.running() {
		return fmt.Errorf("the agent of %s runs already", host)
	}
	if action != scenario.StartAgent && !agent.running() {
		return fmt.Errorf("the agent of %s does not run", host)
	}
	switch action {
	case scenario.FreezeAgent:
		return agent.cmd.Process.Signal(syscall.SIGSTOP)
	case scenario.ThawAgent:
		return agent.cmd.Process.Signal(syscall.SIGCONT)
	case scenario.KillAgent:
		l.ended[host] = true
		agent.kill()
		return nil
	case scenario.StopAgent:
		l.ended[host] = true
		agent.stop()
		return nil
	case scenario.RestartAgent:
		agent.stop()
		return l.startAgain(ctx, host)
	case scenario.StartAgent:
		return l.startAgain(ctx, host)
	}
	return fmt.Errorf("%q is nothing that happens to an agent", action)
}

// startAgain starts a host's agent with the configuration that it had.
func (l *Lab) startAgain(ctx context.Context, host string) error {
	agent, err := l.launchAgent(ctx, host, l.plans[host])
	if err != nil {
		return err
	}
	l.ended[host] = false
	l.keepAgent(agent)
	return nil
}

// DropTCP has a host drop all TCP that it forwards, or ends that.
func (l *Lab) DropTCP(host string, on bool) error {
	h := l.net.Host(host)
	if h == nil {
		return fmt.Errorf("there is no host %q", host)
	}
	return h.DropForwardedTCP(on)
}

// Renumber gives a host other addresses on a link, after a pause without any.
func (l *Lab) Renumber(ctx context.Context, e scenario.Event) error {
	if err := l.net.TakeAddress(e.Host, e.Renumber); err != nil {
		return err
	}
	if err := pause(ctx, e.Gap.Std()); err != nil {
		return errors.Join(err, l.net.Renumber(e.Host, e.Renumber))
	}
	return l.net.Renumber(e.Host, e.Renumber)
}
