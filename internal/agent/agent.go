// Package agent puts dcol together: it alone sees every part. Prepare only
// reads: configuration, identity. Plan.Run touches the system, and leaves it as
// it found it when it ends, but for a waypoint's mappings, which outlive a
// restart as a waypoint; Down removes those too.
//
// The client role is client.go (the loop), carryout.go (what was decided is
// done), meter.go (counters and rates), status.go and link.go (sessions); the
// waypoint role is serve.go.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/coordinator"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/waypoint"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
	"github.com/detour-collective/dcol/packaging"
)

// Plan is a checked configuration with a good identity.
type Plan struct {
	config   *config.Config
	identity *collective.Identity
	// coordinators of a collective that this host joined.
	coordinators []enrol.Endpoint
	version      string
	log          *slog.Logger
}

// Prepare reads all that Run will need and changes nothing.
func Prepare(c *config.Config, version string, log *slog.Logger) (*Plan, error) {
	files := collective.Files{Certificate: c.Identity.Certificate, Key: c.Identity.Key, CA: c.Identity.CA, CRL: c.Identity.CRL}
	open := collective.Load
	if c.Collective.Joined() {
		open = collective.Open // the coordinators mend what is wrong with a certificate, or say why not
	}
	identity, err := open(files, log)
	if err != nil {
		return nil, mendHere(c, err)
	}
	if err := identity.Usable(); err != nil {
		log.Warn("this host's certificate cannot be used now; its coordinators are asked for another", "err", err)
	}
	coordinators, err := parseServers("[collective] coordinators", c.Collective.Coordinators)
	if err != nil {
		return nil, err
	}
	for _, a := range c.Coordinator.Addresses {
		if err := enrol.CheckHost(a); err != nil {
			return nil, fmt.Errorf("[coordinator] addresses: %w", err)
		}
	}
	if identity.Name() != c.Name {
		return nil, fmt.Errorf("the configuration says this member is %q, but %s is %q's certificate: correct one of them",
			c.Name, c.Identity.Certificate, identity.Name())
	}
	if c.Has(config.RoleWaypoint) {
		if _, err := egress.New(c.Waypoint.Allow, c.Waypoint.Deny, deniedPorts(c.Waypoint)); err != nil {
			return nil, fmt.Errorf("[waypoint] %w", err)
		}
		if err := rules.Marks(c.Waypoint.Marks).Check(); err != nil {
			return nil, fmt.Errorf("[waypoint] marks: %w", err)
		}
	}
	return &Plan{config: c, identity: identity, coordinators: coordinators, version: version, log: log}, nil
}

// isCoordinator reports whether a member is one of the coordinators that this host was told of when it joined.
func (p *Plan) isCoordinator(name string) bool {
	return slices.ContainsFunc(p.coordinators, func(e enrol.Endpoint) bool { return e.Name == name })
}

// gcPercent is half of Go's own: the host's memory is for its programs, and with
// ten thousand connections collecting more often takes a few hundredths of a core.
const gcPercent = 50

// sightingRoom is for as many as come while members are asked where they see this host.
const sightingRoom = 256

// Run is the agent's life, until ctx ends.
func (p *Plan) Run(ctx context.Context) error {
	debug.SetGCPercent(gcPercent)
	if os.Geteuid() != 0 {
		return errors.New("the agent needs root (or CAP_NET_ADMIN, CAP_NET_RAW and write access to net.* sysctls): start it as root, with: " + packaging.StartCommand())
	}
	only, err := lockNamespace(lockDir)
	if err != nil {
		return err
	}
	defer only.Close()
	listener, err := api.Listen(p.config.Socket())
	if err != nil {
		return err
	}
	defer listener.Close()

	a := &running{plan: p, since: time.Now(), member: newMember(p)}
	group, ctx := errgroup.WithContext(ctx)
	if err := p.endFormerWaypoint(); err != nil {
		return err
	}
	// Who is a member is known before anything else: this host's own membership needs it.
	if p.config.Has(config.RoleCoordinator) {
		if a.coordinator, err = startCoordinating(ctx, p, group); err != nil {
			return errors.Join(err, stopGroup(group))
		}
	}
	// Waypoints that the client role uses see this host, which the waypoint role wants to know.
	var sightings chan nat.Sighting
	if p.config.Has(config.RoleWaypoint) {
		sightings = make(chan nat.Sighting, sightingRoom)
	}
	// The client goes first: what it did to the host goes with it, while a waypoint's
	// table stays, and must not when the agent could not start.
	if p.config.Has(config.RoleClient) {
		if a.client, err = startClient(ctx, p, a.member, sightings, group); err != nil {
			return errors.Join(err, stopGroup(group))
		}
	}
	if p.config.Has(config.RoleWaypoint) {
		if a.serving, err = startServing(ctx, p, a.member, sightings, group); err != nil {
			return errors.Join(err, stopGroup(group))
		}
	}
	if a.member != nil {
		if err := a.member.start(ctx, p, a.serving, group); err != nil {
			return errors.Join(err, stopGroup(group))
		}
	}
	group.Go(func() error { return api.Serve(ctx, listener, a) })
	for _, err := range damagedRecords(p.config.StateDir) {
		p.log.Warn("sysctls may not be put back", "err", err)
	}
	p.log.Info("agent is running", "member", p.config.Name, "roles", p.config.Roles, "version", p.version)
	err = group.Wait()
	p.log.Info("agent has stopped")
	return err
}

// endFormerWaypoint has a member that is a waypoint no more give nothing: what an agent left for the
// next one would work until its leases are over, and connections as long as they like.
func (p *Plan) endFormerWaypoint() error {
	record := waypointRecord(p.config.StateDir)
	if p.config.Has(config.RoleWaypoint) || !waypoint.Left(record) {
		return nil
	}
	p.log.Info("this member is a waypoint no more: what it forwards for others ends")
	return waypoint.CleanUp(record, waypointMemory(p.config.StateDir), waypointCounts(p.config.RunDir), rules.Marks(p.config.Waypoint.Marks))
}

var errAborted = errors.New("start was given up")

// stopGroup ends what was started before something else could not be.
func stopGroup(group *errgroup.Group) error {
	group.Go(func() error { return errAborted })
	if err := group.Wait(); !errors.Is(err, errAborted) {
		return err
	}
	return nil
}

// running answers the local socket.
type running struct {
	plan        *Plan
	since       time.Time
	client      *client
	serving     *serving
	coordinator *coordinator.Coordinator // nil: it has not the role
	member      *member                  // nil: it has joined no collective
}

// Status implements api.Agent.
func (a *running) Status(ctx context.Context) (api.Status, error) {
	s := api.Status{
		Schema: api.StatusSchema, Member: a.plan.config.Name, Version: a.plan.version,
		Since: a.since, Problems: []string{},
	}
	for _, r := range a.plan.config.Roles {
		s.Roles = append(s.Roles, string(r))
	}
	if err := a.plan.identity.Problem(); err != nil {
		s.Problems = append(s.Problems, err.Error())
	}
	for _, err := range damagedRecords(a.plan.config.StateDir) {
		s.Problems = append(s.Problems, err.Error())
	}
	var err error
	if a.client != nil {
		if s.Client, err = a.client.describe(ctx); err != nil {
			return s, err
		}
		s.Problems = append(s.Problems, a.client.problems...)
		if err := a.client.checkPM(); err != nil {
			s.Problems = append(s.Problems, pathManagerProblem(err))
		}
	}
	if a.serving != nil {
		var problems []string
		if s.Serving, problems, err = a.serving.describe(); err != nil {
			return s, err
		}
		s.Problems = append(s.Problems, problems...)
	}
	if a.coordinator != nil {
		var problems []string
		s.Coordinator, problems = describeCoordinator(a.coordinator.Status())
		s.Problems = append(s.Problems, problems...)
	}
	if a.member != nil {
		var problems []string
		if s.Collective, problems, err = a.member.describe(ctx); err != nil {
			return s, err
		}
		s.Problems = append(s.Problems, problems...)
	}
	return s, nil
}

// Map implements api.Agent.
func (a *running) Map(ctx context.Context, r api.MapRequest) (api.MapAnswer, error) {
	if a.client == nil {
		return api.MapAnswer{}, errors.New(`this member is no client: add "client" to roles in its configuration`)
	}
	return a.client.mapping(ctx, r)
}
