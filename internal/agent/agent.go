// Package agent composes the parts of dcol. Prepare reads configuration and identity, and changes nothing.
// Plan.Run changes the system, and undoes its changes when it ends. A waypoint's mappings and a gateway's
// rules stay, so that a restart ends no connection. Down removes those, too.
//
// Each role is a package of its own, and runs by itself. If another program has a role's port, the others
// run, and that role is tried again.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/agent/client"
	"github.com/detour-collective/dcol/internal/agent/member"
	"github.com/detour-collective/dcol/internal/agent/probing"
	"github.com/detour-collective/dcol/internal/agent/relaying"
	"github.com/detour-collective/dcol/internal/agent/routing"
	"github.com/detour-collective/dcol/internal/agent/serving"
	"github.com/detour-collective/dcol/internal/agent/transport"
	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/gateway"
	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/history"
	"github.com/detour-collective/dcol/internal/loglevel"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/packaging"
)

// Plan is a checked configuration with a valid identity.
type Plan struct {
	config   *config.Config
	file     string // of the configuration
	identity *collective.Identity
	// coordinators of a collective that this host joined.
	coordinators []enrol.Endpoint
	version      string
	log          *slog.Logger
	levels       *loglevel.Levels
}

// Prepare reads everything that Run needs and changes nothing. c was read from file, and levels are those of log.
func Prepare(c *config.Config, file, version string, log *slog.Logger, levels *loglevel.Levels) (*Plan, error) {
	files := collective.Files{Certificate: c.Identity.Certificate, Key: c.Identity.Key, CA: c.Identity.CA, CRL: c.Identity.CRL}
	open := collective.Load
	if c.Collective.Joined() {
		open = collective.Open // with a certificate that is not valid, too: the coordinators renew it, or give the reason why not
	}
	identity, err := open(files, log)
	if err != nil {
		return nil, adviseCoordinator(c, err)
	}
	if err := identity.Usable(); err != nil {
		log.Warn("this host's certificate cannot be used now; the agent requests a new one from the coordinators", "err", err)
	}
	if identity.Name() != c.Name {
		return nil, fmt.Errorf("the configuration says this member is %q, but %s is %q's certificate: correct one of them",
			c.Name, c.Identity.Certificate, identity.Name())
	}
	if err := Check(c); err != nil {
		return nil, err
	}
	coordinators, err := coordinatorsOf(c)
	if err != nil {
		return nil, err
	}
	return &Plan{config: c, file: file, identity: identity, coordinators: coordinators, version: version, log: log, levels: levels}, nil
}

// Check returns an error if an agent cannot use values of the configuration, whatever the host's identity is.
func Check(c *config.Config) error {
	if _, err := coordinatorsOf(c); err != nil {
		return err
	}
	for _, a := range c.Coordinator.Addresses {
		if err := enrol.CheckHost(a); err != nil {
			return fmt.Errorf("[coordinator] addresses: %w", err)
		}
	}
	if c.Has(config.RoleWaypoint) {
		return serving.Check(c.Waypoint)
	}
	return nil
}

// coordinatorsOf returns the coordinators of the collective that the host joined.
func coordinatorsOf(c *config.Config) ([]enrol.Endpoint, error) {
	return parseServers("[collective] coordinators", c.Collective.Coordinators)
}

// parseServers reads the servers that the configuration names at key.
func parseServers(key string, texts []string) (list []enrol.Endpoint, err error) {
	for _, text := range texts {
		e, err := enrol.ParseEndpoint(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		list = append(list, e)
	}
	return list, nil
}

// isCoordinator reports whether a member is one of the coordinators that this host was told of when it joined.
func (p *Plan) isCoordinator(name string) bool {
	return slices.ContainsFunc(p.coordinators, func(e enrol.Endpoint) bool { return e.Name == name })
}

// gcPercent is a quarter of Go's default, because the host's memory is for its programs.
// With ten thousand connections, the more frequent collections take a few hundredths of
// a core.
const gcPercent = 25

// sightingRoom is the number of sightings that may arrive while members are asked for this host's external address.
const sightingRoom = 256

// Run runs the agent until ctx ends.
func (p *Plan) Run(ctx context.Context) error {
	hangups := catchHangups()
	debug.SetGCPercent(gcPercent)
	if !mayAdminister() {
		return errors.New("the agent needs root (or CAP_NET_ADMIN): start it as root, with: " + packaging.StartCommand())
	}
	only, err := lockNamespace(lockDir)
	if err != nil {
		return err
	}
	defer only.Close()
	listener, err := p.listen()
	if err != nil {
		return err
	}
	defer listener.Close()
	if group := p.config.Operators; group != "" {
		if err := api.AllowGroup(p.config.Socket(), group); err != nil {
			p.log.Warn("only root can use the agent's socket: create the group, or correct operators in the configuration", "err", err)
		}
	}
	if err := p.endFormerWaypoint(); err != nil {
		return err
	}
	if !p.config.Has(config.RoleClient) { // else the client role takes the rules over or removes them
		if err := gateway.CleanUp(); err != nil {
			p.log.Warn("rules for a gateway may be left", "err", err)
		}
	}
	if !p.config.Has(config.RoleRouter) {
		if err := routing.CleanUp(p.config.StateDir); err != nil {
			p.log.Warn("what the router role changed may be left", "err", err)
		}
	}
	tcp, err := transport.Open(p.config, p.log.With("subsystem", "transport"))
	if err != nil {
		return err
	}
	defer tcp.Close()
	group, ctx := errgroup.WithContext(ctx)
	a, err := p.start(ctx, group, tcp)
	if err != nil {
		return errors.Join(err, stopGroup(group))
	}
	group.Go(func() error { return api.Serve(ctx, listener, a) })
	group.Go(func() error { a.reloadAt(ctx, hangups); return nil })
	for _, err := range damagedRecords(p.config) {
		p.log.Warn("sysctls may not be restored", "err", err)
	}
	p.log.Info("agent is running", "member", p.config.Name, "roles", p.config.Roles, "version", p.version)
	err = group.Wait()
	p.log.Info("agent has stopped")
	return err
}

// mayAdminister reports whether this process has CAP_NET_ADMIN, without which no part of the agent works.
func mayAdminister() bool {
	var held [2]unix.CapUserData
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return unix.Capget(&header, &held[0]) == nil && held[0].Effective&(1<<unix.CAP_NET_ADMIN) != 0
}

// listen opens the agent's socket. Then it reads from the file again for which servers converters are
// used. dcol convert may have changed that after the agent read the configuration, and found no agent
// because the socket was not open yet.
func (p *Plan) listen() (net.Listener, error) {
	listener, err := api.Listen(p.config.Socket())
	if err != nil {
		return nil, err
	}
	now, err := config.Load(p.file)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	settings := *p.config
	settings.Client.Converter.Use = now.Client.Converter.Use
	p.config = &settings
	return listener, nil
}

// start starts the roles, each after those that it needs.
func (p *Plan) start(ctx context.Context, group *errgroup.Group, tcp *transport.Transport) (*running, error) {
	a := &running{plan: p, settings: p.config, since: time.Now(), serving: &atomic.Pointer[serving.Serving]{}, transport: tcp}
	a.relaying = relaying.New(relaying.Config{
		Dir: p.config.RunDir, Version: p.version, LogLevel: p.config.LogLevel, State: p.relayed(), Log: p.log.With("subsystem", "relay"),
	})
	group.Go(func() error { return a.relaying.Run(ctx) })
	// The members must be known first, because this host's own membership needs them.
	if p.config.Has(config.RoleCoordinator) {
		co, err := openCoordinator(p)
		if err != nil {
			return nil, err
		}
		a.coordinator = co
		if err := a.begin(ctx, group, coordinatorRole(p, co)); err != nil {
			return nil, err
		}
	}
	if p.config.Collective.Joined() {
		a.member = member.New(member.Config{Identity: p.identity, Settings: p.config, Coordinators: p.coordinators, Log: p.log})
	}
	// Waypoints that the client role uses report this host's external address, which the waypoint role needs.
	var sightings chan nat.Sighting
	if p.config.Has(config.RoleWaypoint) {
		sightings = make(chan nat.Sighting, sightingRoom)
	}
	// Start the client before the waypoint. If the client cannot start, its changes to the
	// host are undone. A waypoint's table would stay, although the agent did not start.
	if p.config.Has(config.RoleClient) {
		c, err := startClient(ctx, p, a.member, a.relaying, tcp, sightings, group)
		if err != nil {
			return nil, err
		}
		a.client = c
	}
	if p.config.Has(config.RoleRouter) {
		r, err := routing.Start(routing.Config{
			Name: p.config.Name, Settings: p.config.Router, StateDir: p.config.StateDir, Log: p.log.With("subsystem", "router"),
		})
		if err != nil {
			return nil, err
		}
		a.routing = r
		group.Go(func() error { return r.Run(ctx) })
	}
	if p.config.Has(config.RoleWaypoint) {
		if err := a.begin(ctx, group, waypointRole(p, a.member, a.relaying, sightings, a.serving, a.with)); err != nil {
			return nil, err
		}
	} else if a.member != nil {
		a.member.Offer(member.BasicOffer(p.config, p.config.Roles))
	}
	if a.member != nil {
		group.Go(func() error { return a.member.Run(ctx) })
	}
	if p.config.History.Keep {
		a.history = history.NewRecorder(p.config.StateDir, a.activity, p.log.With("subsystem", "history"))
	}
	if p.config.Trace.Probe && a.client != nil {
		a.probing = probing.New(p.config.StateDir, a.Status, p.log.With("subsystem", "probing"))
		group.Go(func() error { return a.probing.Run(ctx) })
	}
	a.page = newPageKeeper(a, p.log.With("subsystem", "web"))
	if listen := p.config.Metrics.Listen; listen != "" {
		if err := a.begin(ctx, group, metricsRole(listen, a, p.log.With("subsystem", "metrics"))); err != nil {
			return nil, err
		}
	}
	group.Go(func() error { a.page.run(ctx); return nil })
	if a.history != nil {
		group.Go(func() error { return a.history.Run(ctx) })
	}
	return a, nil
}

// relayed returns the part of the relay's orders that follows from the configuration alone.
func (p *Plan) relayed() (s relay.State) {
	if c := serving.Converter(p.config, p.identity); c != nil {
		s.Serve = &relay.Serve{Port: c.Port, Key: c.Key, FastOpen: p.config.Waypoint.ConverterFastOpen, Servers: serving.Servers(p.config.Waypoint)}
	}
	if p.config.Has(config.RoleClient) {
		s.Use = client.Converting(p.config.Client, p.config.Waypoint.Marks)
		s.Receive = client.Receiving(p.config.Client, p.identity)
	}
	return s
}

// permitted returns a change of the relay's orders: the servers to which it may connect members.
func permitted(c config.Waypoint) func(*relay.State) {
	return func(s *relay.State) {
		if s.Serve != nil {
			changed := *s.Serve // the one before may be on its way to the relay
			changed.Servers = serving.Servers(c)
			s.Serve = &changed
		}
	}
}

func (a *running) begin(ctx context.Context, group *errgroup.Group, r *role) error {
	a.roles = append(a.roles, r)
	return r.begin(ctx, group)
}

// startClient starts the client role.
func startClient(ctx context.Context, p *Plan, m *member.Member, k *relaying.Keeper, tcp *transport.Transport, sightings chan<- nat.Sighting, group *errgroup.Group) (*client.Client, error) {
	var directory client.Directory
	if m != nil {
		directory = m
	}
	c, err := client.New(ctx, client.Config{
		Identity: p.identity, Settings: p.config, Directory: directory, Sightings: sightings, Relay: k, GrantedRates: tcp.GrantedRates(), Log: p.log,
	})
	if err != nil {
		return nil, err
	}
	group.Go(func() error { return c.Run(ctx) })
	return c, nil
}

// waypointRole returns the waypoint role, which starts with the settings in effect. up points to it while
// it runs.
func waypointRole(p *Plan, m *member.Member, k *relaying.Keeper, sightings <-chan nat.Sighting, up *atomic.Pointer[serving.Serving], with func(func(*config.Config) error) error) *role {
	begin := func(ctx context.Context, settings *config.Config) (*serving.Serving, error) {
		s, err := serving.Start(ctx, serving.Config{
			Identity: p.identity, Settings: settings, Member: m, Trusted: p.isCoordinator, Sightings: sightings, Relay: k, Log: p.log,
		})
		if err == nil {
			p.log.Info("members are served", "listen", settings.Session.Listen)
			up.Store(s)
		}
		return s, err
	}
	start := func(ctx context.Context) (func(context.Context) error, error) {
		var s *serving.Serving
		err := with(func(settings *config.Config) (err error) {
			s, err = begin(ctx, settings)
			return err
		})
		if err != nil {
			if m != nil { // others should use another waypoint meanwhile
				m.Offer(member.BasicOffer(p.config, slices.DeleteFunc(slices.Clone(p.config.Roles), func(r config.Role) bool { return r == config.RoleWaypoint })))
			}
			return nil, err
		}
		return func(ctx context.Context) error {
			defer up.Store(nil)
			return s.Run(ctx)
		}, nil
	}
	return &role{name: config.RoleWaypoint, log: p.log, start: start, isUp: func() bool { return up.Load() != nil }}
}

// endFormerWaypoint removes an earlier agent's waypoint, if this member is no longer a waypoint. Otherwise
// its mappings would work until their leases end, and its connections would never end.
func (p *Plan) endFormerWaypoint() error {
	if p.config.Has(config.RoleWaypoint) || !serving.IsLeft(p.config) {
		return nil
	}
	p.log.Info("this member is no longer a waypoint: the connections that it forwards for others end")
	return serving.CleanUp(p.config)
}

var errAborted = errors.New("start was aborted")

// stopGroup ends the parts that were started, because another part could not be started.
func stopGroup(group *errgroup.Group) error {
	group.Go(func() error { return errAborted })
	if err := group.Wait(); !errors.Is(err, errAborted) {
		return err
	}
	return nil
}
