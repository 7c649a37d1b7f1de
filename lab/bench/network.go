package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/testbed"
)

const (
	serverHost = "server"
	router     = "router"
	// startLimit limits how long a program may take to be ready.
	startLimit = 15 * time.Second
)

// network is a network of which a benchmark controls every part. For example, members may have no agent, and nothing
// samples sockets. (lab/experiment runs whole workloads.)
type network struct {
	crew.Crew
	opts Options
}

// openStar builds a network whose hosts all have one link, to one router. The direct path leads from client to server,
// detours lead by way of a waypoint. The hosts are the server, members of the collective, and others. delays holds the
// delay of a host's link, in each direction. The caller must close the network even if ctx was cancelled.
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
	s := &network{Crew: crew.Crew{Network: built, Programs: o.Programs, Logs: o.Out}, opts: o}
	if err := s.Issue(members...); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// identity has the paths of a member's credentials on its host.
var identity = crew.FilesIn(crew.IdentityDir(false))

// startClient starts a client's agent that takes detours of some kinds, and waits until it can take them.
func (s *network) startClient(ctx context.Context, kinds []config.Kind, name string, waypoints ...string) (*crew.Process, error) {
	return s.startClientWith(ctx, nil, kinds, name, waypoints...)
}

// startClientWith is startClient with more settings of the client role.
func (s *network) startClientWith(ctx context.Context, more crew.Settings, kinds []config.Kind, name string, waypoints ...string) (*crew.Process, error) {
	list := []crew.Waypoint{}
	for _, w := range waypoints {
		list = append(list, crew.Waypoint{Name: w, Addresses: []netip.Addr{s.Host(w).Addr4()}})
	}
	settings := crew.Settings{"waypoint": list, "exclude": []string{}, "kinds": kinds}
	return s.startAgent(ctx, name, crew.Agent{Client: crew.Overlay(settings, more)}, waypoints, kinds)
}

// startWaypoint starts the agent of a waypoint that offers some kinds of detours, with quotas too high to
// affect a benchmark. With proof unset it also accepts in-band detours without authentication.
func (s *network) startWaypoint(ctx context.Context, kinds []config.Kind, name string, proof bool) (*crew.Process, error) {
	return s.startWaypointWith(ctx, nil, kinds, name, proof)
}

// startWaypointWith is startWaypoint with more settings of the waypoint role.
func (s *network) startWaypointWith(ctx context.Context, more crew.Settings, kinds []config.Kind, name string, proof bool) (*crew.Process, error) {
	const plenty = 1_000_000
	settings := crew.Settings{
		"offers": kinds, "in_band_authenticator": proof,
		"allow":               []string{"10.0.0.0/8"}, // the addresses of all networks here; by default, private addresses are denied
		"mappings_per_member": plenty, "connections_per_member": 0, "connections_per_second": 0, "requests_per_second": plenty,
	}
	return s.startAgent(ctx, name, crew.Agent{Waypoint: crew.Overlay(settings, more)}, nil, nil)
}

// startAgent starts an agent and waits until it can use all kinds of detours through all waypoints.
func (s *network) startAgent(ctx context.Context, name string, a crew.Agent, waypoints []string, kinds []config.Kind) (*crew.Process, error) {
	a.Over = crew.Overlay(crew.Settings{"log_level": "warn"}, a.Over)
	if err := s.Configure(name, a); err != nil {
		return nil, err
	}
	agent, err := s.Start(ctx, name, "agent", s.Programs.DCol, "agent")
	if err != nil {
		return nil, err
	}
	err = agent.Await(ctx, startLimit, func() error {
		status, err := s.Status(ctx, name)
		if err != nil {
			return err
		}
		return crew.Ready(status, waypoints, scenario.Words(kinds)...)
	})
	return agent, err
}

// counters returns what the agent of a client has counted.
func (s *network) counters(ctx context.Context, client string) (api.Counters, error) {
	status, err := s.Status(ctx, client)
	if err != nil || status.Client == nil {
		return api.Counters{}, err
	}
	return status.Client.Counters, nil
}

// serveLoad starts the server's end of a load and waits until it listens.
func (s *network) serveLoad(ctx context.Context, l Load) error {
	p, err := s.Start(ctx, serverHost, "load", s.Part(LoadServerPart, l)...)
	if err != nil {
		return err
	}
	return p.AwaitOutput(ctx, startLimit, loadReady)
}

// dial connects from a host by TCP. It uses from as the local address and port, unless that is zero.
func (s *network) dial(ctx context.Context, host string, from, to netip.AddrPort, multipath bool) (net.Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(from)
	}
	d.SetMultipathTCP(multipath)
	conn, err := testbed.On(s.Host(host), func() (net.Conn, error) { return d.DialContext(ctx, "tcp4", to.String()) })
	if err != nil {
		return nil, fmt.Errorf("connect to %v: %w", to, err)
	}
	return conn, nil
}
