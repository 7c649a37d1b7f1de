package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"

	"github.com/detour-collective/dcol/internal/units"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/testbed"
)

// Lab is a scenario's network, with its waypoints' agents running. Runs on it
// come one at a time.
type Lab struct {
	Scenario *scenario.Scenario
	opts     Options
	logs     string            // folder for agents' output
	agents   bool              // hosts run agents
	offers   []scenario.Detour // by waypoints
	ownKinds bool              // without offers, waypoints offer what they do by themselves
	log      *slog.Logger
	net      *testbed.Network
	paths    pathMap

	waypoints map[string]*program  // agents that run all the time
	members   map[string]*program  // in the shell: every agent
	client    *program             // the client's agent, restarted for every run
	clientVia []string             // the waypoints in its configuration
	plans     map[string]agentPlan // of every agent that was started, by host
	killed    map[string]bool      // hosts; with any, it is not the network declared
	ended     map[string]bool      // hosts whose agent was ordered to stop

	mu          sync.Mutex
	shapes      map[string]scenario.Shape // of each link, now
	down        map[string]bool
	middleboxes map[string]scenario.Middlebox // hosts, now
}

// Open builds the network and starts the waypoints. Close it even after a
// cancelled context.
func Open(ctx context.Context, s *scenario.Scenario, o Options) (*Lab, error) {
	procedures, err := s.Select(o.Procedures)
	if err != nil {
		return nil, err
	}
	var offers []scenario.Detour
	variants := o.Variants
	if len(variants) == 0 {
		variants = []string{scenario.Base}
	}
	for _, name := range variants {
		v, _ := s.Variant(name)
		for _, kind := range scenario.KindsOf(procedures, v) {
			if !slices.Contains(offers, kind) {
				offers = append(offers, kind)
			}
		}
	}
	ownKinds := slices.ContainsFunc(procedures, func(p scenario.Procedure) bool { return p.Detour == scenario.DefaultDetour })
	return open(ctx, s, o, s.UsesDCol(), offers, func(l *Lab, ctx context.Context) error {
		l.ownKinds = ownKinds
		return l.startWaypoints(ctx)
	})
}

// open builds the network, creates certificates if there are agents, and starts its programs.
func open(ctx context.Context, s *scenario.Scenario, o Options, agents bool, offers []scenario.Detour, start func(*Lab, context.Context) error) (*Lab, error) {
	if err := o.complete(s, agents); err != nil {
		return nil, err
	}
	l := &Lab{
		Scenario: s, opts: o, logs: filepath.Join(o.Out, "logs", o.within), agents: agents, offers: offers, log: o.Log.With("subsystem", "experiment"),
		waypoints: map[string]*program{}, members: map[string]*program{}, plans: map[string]agentPlan{},
		killed: map[string]bool{}, ended: map[string]bool{}, shapes: map[string]scenario.Shape{}, down: map[string]bool{},
		middleboxes: map[string]scenario.Middlebox{},
	}
	err := l.build(ctx)
	if err == nil {
		err = start(l, ctx)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Lab) build(ctx context.Context) error {
	network, err := testbed.Build(ctx, specOf(l.Scenario, l.opts), l.log)
	if err != nil {
		return err
	}
	l.net = network
	for i, link := range l.Scenario.Links {
		l.shapes[link.Name] = l.Scenario.Links[i].Shape
	}
	l.paths = newPathMap(l.Scenario, network)
	for _, h := range l.Scenario.Hosts {
		l.middleboxes[h.Name] = h.Middlebox
		if err := network.Host(h.Name).SetCongestionControl(l.Scenario.Congestion); err != nil {
			return err
		}
	}
	if l.agents && l.Scenario.Coordinator() == "" {
		return l.makeAuthority()
	}
	return nil
}

// startWaypoints starts the agents that run all the time. The workload's
// client, should it be a waypoint too, gets one agent for both roles with each
// run.
func (l *Lab) startWaypoints(ctx context.Context) error {
	if !l.agents {
		return nil
	}
	plan := agentPlan{subflows: 1, offers: l.offers, ownKinds: l.ownKinds}
	if hub := l.Scenario.Coordinator(); hub != "" {
		agent, err := l.found(ctx, hub, plan)
		if err != nil {
			return err
		}
		l.waypoints[hub] = agent
	}
	for _, name := range l.Scenario.WithRole(scenario.RoleWaypoint) {
		if name == l.Scenario.Workload.Client || l.waypoints[name] != nil {
			continue
		}
		agent, err := l.startAgent(ctx, name, plan)
		if err != nil {
			return err
		}
		l.waypoints[name] = agent
	}
	return nil
}

// Close ends every program and removes the network.
func (l *Lab) Close() error {
	if l.net == nil {
		return nil
	}
	return l.net.Close()
}

// natKind converts a kind of NAT for the testbed, where symmetric is the zero value.
func natKind(k scenario.NATKind) testbed.NATKind {
	if k == scenario.Symmetric {
		return testbed.Symmetric
	}
	return testbed.NATKind(k)
}

// subflowLimit converts a host's limit for the testbed, where 0 is the kernel's default.
func subflowLimit(h scenario.Host) int {
	switch {
	case h.Subflows == nil:
		return 0
	case *h.Subflows == 0:
		return testbed.NoSubflows
	}
	return *h.Subflows
}

// specOf returns a scenario's network in the testbed's words.
func specOf(of *scenario.Scenario, o Options) testbed.Spec {
	s := testbed.Spec{Seed: cmp.Or(o.seed, uint64(of.Seed)), Backend: o.Backend}
	if s.Backend == testbed.BackendAuto && of.Impaired() {
		s.Backend = testbed.BackendWire // from the start: a link may be impaired later
	}
	for _, h := range of.Hosts {
		spec := testbed.HostSpec{
			Name: h.Name, Forward: h.Has(scenario.RoleRouter),
			Subflows: subflowLimit(h), NoMPTCP: !h.HasMPTCP(), IPv6Only: h.IPv6Only, Sysctls: h.SysctlValues(),
			Middlebox: testbed.Middlebox(h.Middlebox), NAT: testbed.NAT{Inside: h.NAT, Kind: natKind(h.NATKind)},
		}
		for _, f := range h.Forwards {
			spec.NAT.Forwards = append(spec.NAT.Forwards, testbed.PortForward{Protocol: string(f.Protocol), Port: uint16(f.Port), To: f.To})
		}
		s.Hosts = append(s.Hosts, spec)
	}
	for _, link := range of.Links {
		ab, ba := linkParams(link.Shape, link.MTU)
		s.Links = append(s.Links, testbed.LinkSpec{
			Name: link.Name, A: link.A, B: link.B, AtoB: ab, BtoA: ba, Cost: link.Cost, MTU: link.MTU,
		})
	}
	return s
}

func linkParams(s scenario.Shape, mtu int) (ab, ba testbed.LinkParams) {
	params := func(p scenario.Params) (lp testbed.LinkParams) {
		if p.Rate != nil {
			lp.Rate = int64(*p.Rate)
		}
		if p.Delay != nil {
			lp.Delay = p.Delay.Std()
		}
		if p.Jitter != nil {
			lp.Jitter = p.Jitter.Std()
		}
		if p.Loss != nil {
			lp.Loss = float64(*p.Loss)
		}
		if p.Queue != nil {
			lp.Queue = p.Queue.In(mtu)
		}
		lp.Impairments = impairments(p.Impairments)
		return lp
	}
	toB, toA := s.Directions()
	return params(toB), params(toA)
}

func impairments(i scenario.Impairments) (t testbed.Impairments) {
	share := func(s *units.Share) float64 {
		if s == nil {
			return 0
		}
		return float64(*s)
	}
	t.Burst, t.BurstLoss = share(i.Burst), share(i.BurstLoss)
	t.Reorder, t.Duplicate = share(i.Reorder), share(i.Duplicate)
	t.Corrupt, t.Tamper = share(i.Corrupt), share(i.Tamper)
	if i.BurstLength != nil {
		t.BurstLength = float64(*i.BurstLength)
	}
	if i.ReorderBy != nil {
		t.ReorderBy = i.ReorderBy.Std()
	}
	return t
}

// SetLink gives a link a new shape at once.
func (l *Lab) SetLink(name string, shape scenario.Shape) error {
	link, ok := l.Scenario.Link(name)
	if !ok {
		return fmt.Errorf("there is no link %q", name)
	}
	ab, ba := linkParams(shape, link.MTU)
	if err := l.net.SetLink(name, ab, ba); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shapes[name] = shape
	return nil
}

// ChangeLink lays a change over a link's shape as it is now.
func (l *Lab) ChangeLink(c scenario.Change) error {
	return l.SetLink(c.Link, c.Shape.Over(l.Link(c.Link)))
}

// Link returns a link's shape as it is now.
func (l *Lab) Link(name string) scenario.Shape {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shapes[name]
}

// LinkDown takes a link down or up.
func (l *Lab) LinkDown(name string, down bool) error {
	if err := l.net.LinkDown(name, down); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down[name] = down
	return nil
}

// IsDown reports whether a link was taken down.
func (l *Lab) IsDown(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down[name]
}

// SetMiddlebox changes what a host does to the TCP options of others.
func (l *Lab) SetMiddlebox(host string, m scenario.Middlebox) error {
	if err := l.net.Host(host).SetMiddlebox(testbed.Middlebox(m)); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.middleboxes[host] = m
	return nil
}

// Middlebox returns what a host does to them now.
func (l *Lab) Middlebox(host string) scenario.Middlebox {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.middleboxes[host]
}

// setVariant brings every link to the variant's shape, and up.
func (l *Lab) setVariant(v scenario.Variant) error {
	for i, shape := range l.Scenario.Shapes(v) {
		name := l.Scenario.Links[i].Name
		if shape != l.Link(name) {
			if err := l.SetLink(name, shape); err != nil {
				return err
			}
		}
		if l.IsDown(name) {
			if err := l.LinkDown(name, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// killHost ends a host as a power cut would: its programs are gone and its
// links silent. The network is not the one declared after that.
func (l *Lab) killHost(name string) error {
	l.killed[name] = true
	for _, link := range l.Scenario.Links {
		if link.A == name || link.B == name {
			if err := l.LinkDown(link.Name, true); err != nil {
				return err
			}
		}
	}
	if agent := l.waypoints[name]; agent != nil {
		agent.kill()
	}
	return nil
}
