package experiment

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

// Lab is a scenario's network, on which the waypoints' agents run. It makes one run at a time.
type Lab struct {
	Scenario *scenario.Scenario
	opts     Options
	crew     crew.Crew
	net      *network
	agents   *agents
	offers   []scenario.Detour // the kinds that waypoints offer
	paths    pathMap

	clientVia []string // the waypoints in the configuration of the client's agent
}

// Open builds the network and starts the waypoints. The caller must close it, even if ctx has been cancelled.
func Open(ctx context.Context, s *scenario.Scenario, o Options) (*Lab, error) {
	procedures, err := s.Select(o.Procedures)
	if err != nil {
		return nil, err
	}
	plan := agentPlan{subflows: 1}
	variants := o.Variants
	if len(variants) == 0 {
		variants = []string{scenario.Base}
	}
	for _, name := range variants {
		v, _ := s.Variant(name)
		for _, kind := range scenario.KindsOf(procedures, v) {
			if !slices.Contains(plan.offers, kind) {
				plan.offers = append(plan.offers, kind)
			}
		}
	}
	plan.ownKinds = slices.ContainsFunc(procedures, func(p scenario.Procedure) bool { return p.Detour == scenario.DefaultDetour })
	l, err := build(ctx, s, o, s.UsesDCol())
	if err != nil {
		return nil, err
	}
	l.offers = plan.offers
	if err := l.agents.startWaypoints(ctx, plan); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// build builds the network. If there are agents, it gives their hosts the identities of members.
func build(ctx context.Context, s *scenario.Scenario, o Options, withAgents bool) (*Lab, error) {
	if err := o.complete(s, withAgents); err != nil {
		return nil, err
	}
	n, err := buildNetwork(ctx, s, o)
	if err != nil {
		return nil, err
	}
	l := &Lab{
		Scenario: s, opts: o, net: n, paths: newPathMap(s, n.Network),
		crew: crew.Crew{Network: n.Network, Programs: o.Programs, Logs: filepath.Join(o.Out, "logs", o.within)},
	}
	l.agents = &agents{crew: l.crew, scenario: s, used: withAgents, all: map[string]*agent{}}
	if err := l.agents.issue(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Close ends every program and removes the network.
func (l *Lab) Close() error { return l.net.Close() }

// Environment describes the machine and the programs on which the results depend.
func (l *Lab) Environment(ctx context.Context) (report.Environment, error) {
	return describeMachine(ctx, []*scenario.Scenario{l.Scenario}, l.net.Backend(), l.opts.Programs.DCol)
}
