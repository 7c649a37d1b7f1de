package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/scenario"
)

const (
	// agentLimit limits how long an agent may take until it, its sessions and its tunnels are ready.
	agentLimit = 30 * time.Second
	// The members' certificates outlive any experiment.
	certificateValidity = 7 * 24 * time.Hour
)

// authorityDir is a folder of a host's own, which the kernel removes with the host.
const authorityDir = "/run/lab-authority"

// makeAuthority makes a throw-away authority and a certificate for every host
// that runs an agent. Its keys never touch the machine's own files.
func (l *Lab) makeAuthority() error {
	var members []string
	for _, h := range l.Scenario.Hosts {
		if h.RunsAgent() {
			members = append(members, h.Name)
		}
	}
	if len(members) == 0 {
		return nil
	}
	var identities map[string]map[string][]byte
	err := l.net.Host(members[0]).Do(func() (err error) {
		identities, err = issue(authorityDir, members)
		return errors.Join(err, os.RemoveAll(authorityDir))
	})
	if err != nil {
		return fmt.Errorf("make the lab's authority: %w", err)
	}
	for host, files := range identities {
		if err := l.install(host, files); err != nil {
			return err
		}
	}
	return nil
}

// issue makes an authority in a folder, and returns each member's files.
func issue(dir string, members []string) (map[string]map[string][]byte, error) {
	ca, err := collective.InitCA(dir, "lab")
	if err != nil {
		return nil, err
	}
	identities := map[string]map[string][]byte{}
	for _, name := range members {
		issued, err := ca.Issue(collective.Request{Name: name, Validity: certificateValidity})
		if err != nil {
			return nil, err
		}
		identities[name] = map[string][]byte{}
		for file, from := range map[string]string{
			"host.crt": issued.CertFile, "host.key": issued.KeyFile, "ca.crt": ca.CertFile(), "ca.crl": ca.CRLFile(),
		} {
			if identities[name][file], err = os.ReadFile(from); err != nil {
				return nil, err
			}
		}
	}
	return identities, nil
}

// install writes files into a host's own /etc/dcol.
func (l *Lab) install(host string, files map[string][]byte) error {
	err := l.net.Host(host).Do(func() error {
		for name, data := range files {
			if err := os.WriteFile(filepath.Join("/etc/dcol", name), data, 0o600); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("install certificates on %s: %w", host, err)
	}
	return nil
}

// startAgent starts a host's agent and waits until it is ready.
func (l *Lab) startAgent(ctx context.Context, name string, plan agentPlan) (*program, error) {
	agent, err := l.launchAgent(ctx, name, plan)
	if err != nil {
		return nil, err
	}
	if err := l.awaitAgent(ctx, agent, plan); err != nil {
		agent.stop()
		return nil, blameDCol(err)
	}
	return agent, nil
}

// launchAgent starts a host's agent.
func (l *Lab) launchAgent(ctx context.Context, name string, plan agentPlan) (*program, error) {
	h, _ := l.Scenario.Host(name)
	plan.coordinator = l.coordinatorAt()
	data, err := agentConfig(h, plan, func(waypoint string) []netip.Addr {
		return reachedAt(l.Scenario, l.net, name, waypoint)
	})
	if err != nil {
		return nil, err
	}
	host := l.net.Host(name)
	if err := host.Do(func() error { return os.WriteFile(config.DefaultPath, data, 0o644) }); err != nil {
		return nil, fmt.Errorf("write the agent's configuration on %s: %w", name, err)
	}
	l.plans[name] = plan
	return start(ctx, host, l.logs, "agent", []string{l.opts.Programs.DCol, "agent"}, nil)
}

// awaitAgent waits until an agent answers, has sessions to its waypoints, and has the kind of detour it
// requires.
func (l *Lab) awaitAgent(ctx context.Context, agent *program, plan agentPlan) error {
	err := waitUntil(ctx, agentLimit, 50*time.Millisecond, func() error {
		if !agent.running() {
			return hopeless(agent.failure())
		}
		status, err := l.Status(ctx, agent.host)
		if err != nil {
			return err
		}
		via := without(plan.via, agent.host)
		if err := notUp(status, via); err != nil {
			return err
		}
		return notReady(status, via, plan.needs)
	})
	if err == nil || ctx.Err() != nil || !agent.running() {
		return err
	}
	return agent.trouble(err)
}

// notUp returns an error that names the waypoints without a session.
func notUp(s api.Status, via []string) error {
	if len(via) == 0 {
		return nil
	}
	if s.Client == nil {
		return errors.New("the agent has no client role")
	}
	for _, w := range s.Client.Waypoints {
		if slices.Contains(via, w.Name) && w.State != api.WaypointUp {
			return errors.New(strings.TrimSpace(fmt.Sprintf("waypoint %s is %s: %s", w.Name, w.State, w.Why)))
		}
	}
	return nil
}

// notReady returns an error that names the waypoints through which a kind of detour, or any if kind is empty,
// is not ready. One address of a waypoint is enough: in-band detours are for IPv4 only, and a tunnel leads to
// one address.
func notReady(s api.Status, via []string, kind scenario.Detour) error {
	if kind == "" || kind == scenario.NoDetour || s.Client == nil {
		return nil
	}
	for _, name := range via {
		ready, state, why := false, api.KindState("unknown"), "its agent says nothing of it"
		for _, w := range s.Client.Waypoints {
			for _, k := range w.Kinds {
				if w.Name != name || k.Kind != string(kind) && kind != scenario.DefaultDetour {
					continue
				}
				ready = ready || k.State == api.KindReady
				if state == "unknown" || k.Why != "" {
					state, why = k.State, k.Why
				}
			}
		}
		if !ready {
			return errors.New(strings.TrimSuffix(fmt.Sprintf("no %s detour through waypoint %s: it is %s: %s", kind, name, state, why), ": "))
		}
	}
	return nil
}

// Status asks a host's agent what it is doing.
func (l *Lab) Status(ctx context.Context, host string) (api.Status, error) {
	var s api.Status
	out, err := l.ask(ctx, host, "status", "--json")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return s, fmt.Errorf("read the status of %s: %w", host, err)
	}
	return s, nil
}

// mapping asks the client's agent for a mapping to the server.
func (l *Lab) mapping(ctx context.Context, via string, server netip.AddrPort) (netip.AddrPort, error) {
	out, err := l.ask(ctx, l.Scenario.Workload.Client, "map", server.String(), "--via", via)
	if err != nil {
		return netip.AddrPort{}, err
	}
	at, err := netip.ParseAddrPort(strings.TrimSpace(string(out)))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("read what `dcol map` answered: %w", err)
	}
	return at, nil
}

// ask runs a short dcol command on a host.
func (l *Lab) ask(ctx context.Context, host string, argv ...string) ([]byte, error) {
	cmd := l.net.Host(host).Command(ctx, l.opts.Programs.DCol, argv...)
	var diagnostics buffer
	cmd.Stderr = &diagnostics
	out, err := cmd.Output()
	if err != nil {
		said := strings.TrimSpace(strings.TrimPrefix(string(diagnostics.Bytes()), "error: "))
		return nil, fmt.Errorf("dcol %s on %s: %w: %s", argv[0], host, err, said)
	}
	return out, nil
}
