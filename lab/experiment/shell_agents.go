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

// defaultSubflows is what clients have in the shell: one detour beside the
// direct path.
const defaultSubflows = 2

// shellKinds is the order in which clients in the shell prefer kinds of detours:
// that which costs nothing first.
var shellKinds = []scenario.Detour{scenario.InBand, scenario.Mapped, scenario.WireGuard, scenario.OpenVPN}

// shellPlan is what is wanted of an agent in the shell.
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
	for _, h := range l.Scenario.Hosts {
		if !runsAgent(h) {
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
