package testbed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
)

// Network is a running network. Its methods may be called from any goroutine.
type Network struct {
	plan    plan
	hosts   []*Host // as in plan.hosts
	backend backend
	name    string // of the backend
	log     *slog.Logger
	seed    uint64

	coupled coupled

	mu     sync.Mutex // one change at a time; guards closed
	closed bool
}

// backend makes links and acts on them. It knows a link by its index in the plan. Calls come one at a time.
type backend interface {
	// connect creates the interfaces named in the plan on both hosts.
	connect(link int, l linkPlan, a, b *Host) error
	// start is called once, when all links are connected and their interfaces are up.
	start(ctx context.Context) error
	set(link int, ab, ba LinkParams) error
	down(link int, down bool) error
	stats(link int) (ab, ba LinkStats, err error)
	// reset sets all counters to zero.
	reset() error
	// scheduling describes the backend's priority for the processor.
	scheduling() string
	close() error
}

// Build brings up a network. ctx limits only the time for building. Close ends the network.
func Build(ctx context.Context, s Spec, log *slog.Logger) (*Network, error) {
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	n := &Network{plan: makePlan(s), seed: s.Seed, log: log.With("subsystem", "testbed")}
	if err := n.build(ctx, s); err != nil {
		return nil, errors.Join(fmt.Errorf("build network: %w", err), n.Close())
	}
	n.log.Info("network is up", "hosts", len(n.hosts), "links", len(n.plan.links),
		"backend", n.name, "scheduling", n.Scheduling())
	return n, nil
}

func (n *Network) build(ctx context.Context, s Spec) error {
	etcHosts := n.plan.etcHosts()
	for _, p := range n.plan.hosts {
		if err := ctx.Err(); err != nil {
			return err
		}
		var links []string
		for _, iface := range p.ifaces {
			links = append(links, n.plan.links[iface.link].Name)
		}
		h, err := startHost(p, links, etcHosts, &n.coupled)
		if err != nil {
			return err
		}
		n.hosts = append(n.hosts, h)
		if err := h.Do(func() error { return configureHost(p) }); err != nil {
			return fmt.Errorf("host %s: %w", p.Name, err)
		}
	}
	if err := n.chooseBackend(s); err != nil {
		return err
	}
	for i, l := range n.plan.links {
		if err := n.backend.connect(i, l, n.hosts[l.a], n.hosts[l.b]); err != nil {
			return fmt.Errorf("link %s: %w", l.Name, err)
		}
	}
	for _, h := range n.hosts {
		err := h.Do(func() error {
			for _, iface := range h.plan.ifaces {
				if err := configureIface(iface); err != nil {
					return err
				}
			}
			return errors.Join(configureRoutes(h.plan), setSysctls(h.plan))
		})
		if err != nil {
			return fmt.Errorf("host %s: %w", h.Name(), err)
		}
		if err := n.setUpRouter(h); err != nil {
			return err
		}
	}
	for _, h := range n.hosts {
		if err := h.SetCongestionControl(DefaultCongestionControl); err != nil {
			return err
		}
	}
	if err := n.backend.start(ctx); err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	for _, h := range s.Hosts {
		if !h.inUserSpace() {
			continue
		}
		if err := n.SetStation(h.Name, h.Middlebox, h.Quotes, h.ICMP); err != nil {
			return err
		}
	}
	return nil
}

// setUpRouter gives a host the middlebox and the NAT of its plan, if any.
func (n *Network) setUpRouter(h *Host) error {
	if h.plan.Middlebox != NoMiddlebox && h.plan.Middlebox.kind() == "" {
		if err := h.SetMiddlebox(h.plan.Middlebox); err != nil {
			return err
		}
	}
	if h.plan.NAT.isZero() {
		return nil
	}
	return h.setRules("nat.nft", n.plan.nat(h.plan))
}

func (n *Network) chooseBackend(s Spec) error {
	n.name = s.Backend
	if n.name == BackendAuto {
		n.name = BackendEmulator
		impaired := slices.ContainsFunc(s.Links, LinkSpec.impaired)
		userSpace := slices.ContainsFunc(s.Hosts, func(h HostSpec) bool { return h.inUserSpace() || h.Balance })
		if !impaired && !userSpace && len(n.hosts) > 0 && n.hosts[0].Do(probeNetem) == nil {
			n.name = BackendNetem
		}
	}
	switch n.name {
	case BackendVeth:
		n.backend = &vethBackend{}
	case BackendNetem:
		b, err := newNetemBackend(s.Seed)
		if err != nil {
			return err
		}
		n.backend = b
	default:
		n.backend = &emulatorBackend{seed: s.Seed, log: n.log}
	}
	return nil
}

// Host returns the host with that name, or nil.
func (n *Network) Host(name string) *Host {
	for _, h := range n.hosts {
		if h.Name() == name {
			return h
		}
	}
	return nil
}

// SetLink changes the parameters of both directions of a link at the same moment.
func (n *Network) SetLink(name string, ab, ba LinkParams) error {
	for _, p := range []LinkParams{ab, ba} {
		if err := p.Validate(); err != nil {
			return fmt.Errorf("set link %s: %w", name, err)
		}
	}
	return n.onLink("set", name, func(link int) error { return n.backend.set(link, ab, ba) })
}

// LinkDown starts or stops dropping all packets on a link, including those in flight. The hosts' interfaces stay up, so
// the hosts notice no more than for a failure further away on the path.
func (n *Network) LinkDown(name string, down bool) error {
	return n.onLink("take down", name, func(link int) error { return n.backend.down(link, down) })
}

// LinkStats returns a link's counters since Build or the last ResetStats.
func (n *Network) LinkStats(name string) (ab, ba LinkStats, err error) {
	err = n.onLink("read counters of", name, func(link int) error {
		ab, ba, err = n.backend.stats(link)
		return err
	})
	return ab, ba, err
}

// ResetStats sets the counters of all links to zero.
func (n *Network) ResetStats() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return ErrClosed
	}
	return n.backend.reset()
}

func (n *Network) onLink(what, name string, act func(link int) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return fmt.Errorf("%s link %s: %w", what, name, ErrClosed)
	}
	for i, l := range n.plan.links {
		if l.Name != name {
			continue
		}
		if err := act(i); err != nil {
			return fmt.Errorf("%s link %s: %w", what, name, err)
		}
		return nil
	}
	return fmt.Errorf("%s link %s: there is no such link", what, name)
}

// Backend returns the kind of links: BackendNetem, BackendEmulator or BackendVeth.
func (n *Network) Backend() string { return n.name }

// Scheduling describes the links' priority for the processor: "kernel", or the scheduling class of the link
// emulator.
func (n *Network) Scheduling() string { return n.backend.scheduling() }

// Close ends all processes on all hosts and removes the network. Later calls do nothing.
func (n *Network) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.closed = true
	errs := make([]error, len(n.hosts))
	var wg sync.WaitGroup
	for i, h := range n.hosts {
		wg.Go(func() { errs[i] = h.close() })
	}
	wg.Wait()
	if n.backend != nil {
		errs = append(errs, n.backend.close())
	}
	return errors.Join(errors.Join(errs...), n.coupled.close())
}
