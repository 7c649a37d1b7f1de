package experiment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/tomlfile"
	"github.com/detour-collective/dcol/lab/scenario"
)

// openWithAgents opens the network with an agent on every host that has a role
// for one, and with the workload's server.
func openWithAgents(ctx context.Context, s *scenario.Scenario, o Options) (*Lab, error) {
	agents := len(s.WithRole(scenario.RoleWaypoint)) > 0
	return open(ctx, s, o, agents, scenario.Kinds(), func(l *Lab, ctx context.Context) error {
		if err := l.startAllAgents(ctx); err != nil {
			return err
		}
		if len(s.Procedures) == 0 {
			return nil // no workload is meant
		}
		_, err := l.startServer(ctx, l.logs)
		return err
	})
}

// defaultSubflows gives clients in the shell one detour beside the direct path.
const defaultSubflows = 2

// shellKinds is the order in which clients in the shell prefer kinds of detours:
// that which costs nothing first.
var shellKinds = []scenario.Detour{scenario.InBand, scenario.Mapped, scenario.WireGuard, scenario.OpenVPN}

// shellPlan returns the configuration of an agent in the shell.
func (l *Lab) shellPlan(h scenario.Host, kinds []scenario.Detour) agentPlan {
	plan := agentPlan{subflows: defaultSubflows, kinds: kinds, offers: l.offers}
	if h.Has(scenario.RoleClient) {
		plan.via = l.Scenario.WithRole(scenario.RoleWaypoint)
	}
	return plan
}

// startAllAgents starts them together, as members may use each other.
func (l *Lab) startAllAgents(ctx context.Context) error {
	if !l.agents {
		return nil
	}
	plans := map[string]agentPlan{}
	if hub := l.Scenario.Coordinator(); hub != "" {
		h, _ := l.Scenario.Host(hub)
		agent, err := l.found(ctx, hub, l.shellPlan(h, shellKinds))
		if err != nil {
			return err
		}
		l.members[hub] = agent
	}
	for _, h := range l.Scenario.Hosts {
		if !h.RunsAgent() || l.members[h.Name] != nil {
			continue
		}
		plans[h.Name] = l.shellPlan(h, shellKinds)
		agent, err := l.launchAgent(ctx, h.Name, plans[h.Name])
		if err != nil {
			return err
		}
		l.members[h.Name] = agent
	}
	for name, plan := range plans {
		if err := l.awaitAgent(ctx, l.members[name], plan); err != nil {
			return err
		}
	}
	return nil
}

// kinds obeys "kinds CLIENT KIND[,KIND...]".
func (sh *shell) kinds(ctx context.Context, args []string) error {
	var words []string
	for _, k := range shellKinds {
		words = append(words, string(k))
	}
	if len(args) != 2 {
		return fmt.Errorf("kinds takes a client and what it shall use: kinds CLIENT %s", strings.Join(words, ","))
	}
	l := sh.lab
	clients := l.Scenario.WithRole(scenario.RoleClient)
	if !slices.Contains(clients, args[0]) {
		return fmt.Errorf("there is no client %q%s", args[0], tomlfile.Nearest(args[0], clients))
	}
	if !l.agents {
		return errors.New("there is no waypoint in this network, so no agents")
	}
	var kinds []scenario.Detour
	for _, word := range strings.Split(args[1], ",") {
		if !slices.Contains(words, word) {
			return fmt.Errorf("there is no kind of detour %q%s", word, tomlfile.Nearest(word, words))
		}
		kinds = append(kinds, scenario.Detour(word))
	}
	l.members[args[0]].stop()
	h, _ := l.Scenario.Host(args[0])
	agent, err := l.startAgent(ctx, h.Name, l.shellPlan(h, kinds))
	if err != nil {
		return err
	}
	l.members[h.Name] = agent
	return nil
}

// agent obeys "agent HOST ACTION".
func (sh *shell) agent(ctx context.Context, args []string) error {
	var actions, hosts []string
	for _, a := range scenario.AgentActions() {
		actions = append(actions, string(a))
	}
	for _, h := range sh.lab.Scenario.Hosts {
		if sh.lab.members[h.Name] != nil {
			hosts = append(hosts, h.Name)
		}
	}
	switch {
	case len(args) != 2:
		return fmt.Errorf("agent takes a host and what to do: agent HOST %s", strings.Join(actions, "|"))
	case !slices.Contains(hosts, args[0]):
		return fmt.Errorf("no agent runs on %q%s", args[0], tomlfile.Nearest(args[0], hosts))
	case !slices.Contains(actions, args[1]):
		return fmt.Errorf("%q is nothing that happens to an agent%s", args[1], tomlfile.Nearest(args[1], actions))
	}
	return sh.lab.ActOnAgent(ctx, args[0], scenario.AgentAction(args[1]))
}

// dropTCP obeys "drop-tcp HOST on|off".
func (sh *shell) dropTCP(args []string) error {
	if len(args) != 2 || args[1] != "on" && args[1] != "off" {
		return errors.New("drop-tcp takes a host and whether to: drop-tcp HOST on|off")
	}
	return sh.lab.DropTCP(args[0], args[1] == "on")
}
