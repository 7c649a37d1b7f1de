package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/testbed"
)

const (
	serverHost = "server"
	router     = "router"
	// startLimit limits how long a program may take to be ready.
	startLimit = 15 * time.Second
)

// network is hosts whose every part a benchmark has a hand on: an agent watched
// from outside, members without an agent, no sampling of ten thousand sockets.
// (lab/experiment runs workloads from start to end.)
type network struct {
	*testbed.Network
	opts      Options
	members   []string
	processes []*process // all that were started
}

// openStar builds a network round one router, as single-homed hosts of the
// Internet see it: client to server is the direct path, by way of a waypoint the
// detour. Beside the server there are members and others; delays, by host, are
// those of the host's link in each direction. Close it even after a cancelled
// context.
func openStar(ctx context.Context, o Options, backend string, members, others []string, delays map[string]time.Duration) (*network, error) {
	spec := testbed.Spec{Hosts: []testbed.HostSpec{{Name: router, Forward: true}}, Seed: 1, Backend: backend}
	for _, name := range append(append([]string{serverHost}, members...), others...) {
		p := testbed.LinkParams{Delay: delays[name]}
		spec.Hosts = append(spec.Hosts, testbed.HostSpec{Name: name})
		spec.Links = append(spec.Links, testbed.LinkSpec{Name: name, A: name, B: router, AtoB: p, BtoA: p})
	}
	return openNetwork(ctx, o, spec, members)
}

// openNetwork builds a network in which the members have identities of their own.
func openNetwork(ctx context.Context, o Options, spec testbed.Spec, members []string) (*network, error) {
	built, err := testbed.Build(ctx, spec, o.Log)
	if err != nil {
		return nil, err
	}
	s := &network{Network: built, opts: o, members: members}
	if err := s.makeAuthority(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close ends every program and removes the network.
func (s *network) Close() error {
	err := s.Network.Close()
	for _, p := range s.processes {
		<-p.ended
	}
	return err
}

// identity has the paths of a member's credentials on its host.
var identity = collective.Files{
	Certificate: "/etc/dcol/host.crt", Key: "/etc/dcol/host.key", CA: "/etc/dcol/ca.crt", CRL: "/etc/dcol/ca.crl",
}

// authorityDir is a folder of a host's own, which the kernel removes with the host.
const authorityDir = "/run/bench-authority"

// makeAuthority makes a throw-away authority, and gives every member its credentials. The
// authority's keys never touch the machine's own files.
func (s *network) makeAuthority() error {
	if len(s.members) == 0 {
		return nil
	}
	var credentials map[string]map[string][]byte
	err := s.Host(s.members[0]).Do(func() (err error) {
		credentials, err = issue(s.members)
		return errors.Join(err, os.RemoveAll(authorityDir))
	})
	if err != nil {
		return fmt.Errorf("make the authority: %w", err)
	}
	for name, files := range credentials {
		for to, data := range files {
			if err := s.Host(name).Do(func() error { return os.WriteFile(to, data, 0o600) }); err != nil {
				return fmt.Errorf("install the credentials of %s: %w", name, err)
			}
		}
	}
	return nil
}

// issue makes an authority, and returns each member's files.
func issue(members []string) (map[string]map[string][]byte, error) {
	ca, err := collective.InitCA(authorityDir, "bench")
	if err != nil {
		return nil, err
	}
	credentials := make(map[string]map[string][]byte)
	for _, name := range members {
		issued, err := ca.Issue(collective.Request{Name: name, Validity: 24 * time.Hour})
		if err != nil {
			return nil, err
		}
		credentials[name] = make(map[string][]byte)
		for to, from := range map[string]string{
			identity.Certificate: issued.CertFile, identity.Key: issued.KeyFile, identity.CA: ca.CertFile(), identity.CRL: ca.CRLFile(),
		} {
			if credentials[name][to], err = os.ReadFile(from); err != nil {
				return nil, err
			}
		}
	}
	return credentials, nil
}

// lab is the address space of every testbed: not to be excluded, by clients or
// waypoints, as private addresses are by default.
var lab = []string{"10.0.0.0/8"}

// startClient starts a client's agent that takes detours of some kinds, and waits
// until it can.
func (s *network) startClient(ctx context.Context, kinds []config.Kind, name string, waypoints ...string) (*process, error) {
	list := []map[string]any{}
	for _, w := range waypoints {
		list = append(list, map[string]any{"name": w, "addresses": []netip.Addr{s.Host(w).Addr4()}})
	}
	return s.startAgent(ctx, name, "client", map[string]any{
		"waypoint": list, "exclude": []string{}, "kinds": kinds,
	})
}

// startWaypoint starts the agent of a waypoint that offers some kinds of detours, with quotas too high to
// affect a benchmark. With proof unset it also accepts in-band detours without authentication.
func (s *network) startWaypoint(ctx context.Context, kinds []config.Kind, name string, proof bool) (*process, error) {
	const plenty = 1_000_000
	return s.startAgent(ctx, name, "waypoint", map[string]any{
		"offers": kinds, "in_band_authenticator": proof,
		"allow": lab, "mappings_per_member": plenty, "connections_per_member": 0, "connections_per_second": 0, "requests_per_second": plenty,
	})
}

// startAgent starts an agent of one role and waits until it is ready.
func (s *network) startAgent(ctx context.Context, name, role string, settings map[string]any) (*process, error) {
	data, err := toml.Marshal(map[string]any{
		"name": name, "roles": []string{role}, "log_level": "warn", role: settings,
		"identity": map[string]any{
			"certificate": identity.Certificate, "key": identity.Key, "ca": identity.CA, "crl": identity.CRL,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("write the configuration of %s: %w", name, err)
	}
	host := s.Host(name)
	if err := host.Do(func() error { return os.WriteFile(config.DefaultPath, data, 0o644) }); err != nil {
		return nil, fmt.Errorf("write the configuration of %s: %w", name, err)
	}
	agent, err := s.start(ctx, name, "agent", s.opts.Programs.DCol, "agent")
	if err != nil {
		return nil, err
	}
	return agent, await(ctx, func() error {
		if err := agent.check(); err != nil {
			return err
		}
		status, err := s.status(ctx, name)
		if err != nil || status.Client == nil {
			return err
		}
		for _, w := range status.Client.Waypoints {
			if w.State != api.WaypointUp {
				return fmt.Errorf("waypoint %s is %s: %s", w.Name, w.State, w.Why)
			}
			for _, k := range w.Kinds {
				if k.State != api.KindReady {
					return fmt.Errorf("%s through %s is %s: %s", k.Kind, w.Name, k.State, k.Why)
				}
			}
		}
		return nil
	})
}

// status asks the agent of a host what it is doing.
func (s *network) status(ctx context.Context, host string) (status api.Status, err error) {
	out, err := s.Host(host).Command(ctx, s.opts.Programs.DCol, "status", "--json").Output()
	if err != nil {
		return status, fmt.Errorf("ask the agent of %s: %w", host, err)
	}
	if err := json.Unmarshal(out, &status); err != nil {
		return status, fmt.Errorf("read the status of %s: %w", host, err)
	}
	return status, nil
}

// counters returns what the agent of a client has counted.
func (s *network) counters(ctx context.Context, client string) (api.Counters, error) {
	status, err := s.status(ctx, client)
	if err != nil || status.Client == nil {
		return api.Counters{}, err
	}
	return status.Client.Counters, nil
}

// serveLoad starts the server's end of a load and waits until it listens.
func (s *network) serveLoad(ctx context.Context, l Load) error {
	p, err := s.start(ctx, serverHost, "load", append([]string{s.opts.Programs.Lab, "load", "serve"}, l.flags()...)...)
	if err != nil {
		return err
	}
	return p.awaitSaid(ctx, loadReady)
}

// await polls a condition until it returns nil, and returns its last error when the time runs out.
func await(ctx context.Context, condition func() error) error {
	const interval = 50 * time.Millisecond
	deadline := time.Now().Add(startLimit)
	for {
		err := condition()
		var over *endedError
		switch {
		case err == nil || errors.As(err, &over):
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("%w, after %v", err, startLimit)
		}
		if err := pause(ctx, interval); err != nil {
			return err
		}
	}
}

// pause waits, unless the context ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
