// Package serving is the waypoint role: it serves sessions with members, and gives them detours.
package serving

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/detour-collective/dcol/internal/agent/member"
	"github.com/detour-collective/dcol/internal/agent/outside"
	"github.com/detour-collective/dcol/internal/agent/relaying"
	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/internal/converter/resets"
	"github.com/detour-collective/dcol/internal/converter/server"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/tunnel"
	"github.com/detour-collective/dcol/internal/waypoint"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// Config configures the waypoint role; see Start.
type Config struct {
	Identity *collective.Identity
	Settings *config.Config
	// Member is this host's part in its collective; nil: it has joined none.
	Member *member.Member
	// Trusted and Sightings are for outside.Config.
	Trusted   func(member string) bool
	Sightings <-chan nat.Sighting
	// Relay takes connections for members at the ports that it is given.
	Relay Relay
	Log   *slog.Logger
}

// Relay is the process that relays connections. It is *relaying.Keeper.
type Relay interface {
	Change(func(*relay.State))
	Standing() relaying.Standing
}

// Check returns an error if the waypoint role cannot start with these settings.
func Check(c config.Waypoint) error {
	if _, err := egress.New(c.Allow, c.Deny, deniedPorts(c)); err != nil {
		return fmt.Errorf("[waypoint] %w", err)
	}
	if err := rules.Marks(c.Marks).Check(); err != nil {
		return fmt.Errorf("[waypoint] marks: %w", err)
	}
	return nil
}

// Serving is the waypoint role.
type Serving struct {
	config   Config
	server   *session.Server
	outside  *outside.Outside
	handler  *handler
	offering *offering // nil: this host has joined no collective
	terms    atomic.Pointer[config.Waypoint]
}

// Start prepares the waypoint. It opens the socket first, so that it does not make this host a router if the port is taken.
// Run must follow. All parts end with ctx.
func Start(ctx context.Context, c Config) (s *Serving, err error) {
	var undo []func() error
	defer func() {
		for i := len(undo) - 1; err != nil && i >= 0; i-- {
			err = errors.Join(err, undo[i]())
		}
	}()
	s = &Serving{config: c}
	s.terms.Store(&c.Settings.Waypoint)
	server, err := listen(c, s.mappedOnly)
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() error { return closeUnserved(ctx, server) })
	s.server = server
	var members outside.Members
	if c.Member != nil {
		members = c.Member
	}
	s.outside, err = outside.New(ctx, outside.Config{
		Identity: c.Identity, Settings: c.Settings, Server: server, Members: members, Trusted: c.Trusted, Sightings: c.Sightings, Log: c.Log,
	})
	if err != nil {
		return nil, err
	}
	undo = append(undo, s.outside.Close)
	if s.handler, err = newHandler(ctx, c, server, s.outside); err != nil {
		return nil, err
	}
	undo = append(undo, s.handler.way.Close)
	if c.Member != nil {
		s.offering, err = newOffering(c, s.handler.offers, s.outside)
	}
	return s, err
}

func listen(c Config, mappedOnly func(member string) bool) (*session.Server, error) {
	limits, operator := session.DefaultLimits(), c.Settings.Waypoint
	limits.RequestRate, limits.RequestBurst = rate.Limit(operator.RequestsPerSecond), 2*operator.RequestsPerSecond
	return session.Listen(session.ServerConfig{
		Identity: c.Identity, Listen: c.Settings.Session.Listen, Log: c.Log.With("subsystem", "session"),
		Lease: operator.MappingLifetime.Std(), Limits: limits, Asides: c.Settings.Trace.VantagePoint,
		MappedOnly: mappedOnly,
	})
}

// closeUnserved closes a server that has accepted no session yet.
func closeUnserved(ctx context.Context, server *session.Server) error {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return server.Serve(ctx, nil)
}

// Run serves members until ctx ends.
func (s *Serving) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.outside.Run(ctx) })
	group.Go(func() error { return s.serve(ctx) })
	if s.offering != nil {
		group.Go(func() error { return s.offering.run(ctx) })
		group.Go(func() error { s.handler.doorman.run(ctx, s.config.Member.Knocks()); return nil })
	}
	return group.Wait()
}

// serve serves sessions until ctx ends.
func (s *Serving) serve(ctx context.Context) error {
	h := s.handler
	giving, stop := context.WithCancel(ctx)
	var others errgroup.Group
	others.Go(func() error {
		h.expelling.run(giving, s.server.Sweep, s.config.Identity.Trust, s.enforced)
		return nil
	})
	for _, g := range h.givers {
		others.Go(func() error { return g.Run(giving) })
	}
	if own := Converter(s.config.Settings, s.config.Identity); own != nil {
		others.Go(func() error { repeatResets(giving, own.Port, s.config.Log); return nil })
	}
	err := s.server.Serve(ctx, h)
	stop()
	return errors.Join(err, others.Wait(), h.way.Close())
}

// repeatResets repeats the converter's resets until ctx ends. The agent does that, because the relay may have been killed.
// Without it, the converter works, and the kernel sends each reset once.
func repeatResets(ctx context.Context, port uint16, log *slog.Logger) {
	r, err := resets.Open(port)
	if err == nil {
		err = r.Run(ctx)
	}
	if err != nil {
		log.Warn("clients may miss that the converter has reset their connections", "err", err)
	}
}

// enforced confirms to the coordinators, if there are any, that this waypoint refuses all members revoked by t.
func (s *Serving) enforced(t *collective.Trust) {
	if m := s.config.Member; m != nil {
		m.Enforced(t)
	}
}

func deniedPorts(c config.Waypoint) []uint16 {
	var ports []uint16
	for _, port := range c.DenyPorts {
		ports = append(ports, uint16(port))
	}
	return ports
}

func inBandMode(c config.Waypoint) waypoint.InBandMode {
	switch {
	case !c.Gives(config.InBand):
		return waypoint.InBandOff
	case c.InBandAuthenticator:
		return waypoint.InBandAuthenticated
	}
	return waypoint.InBandOpen
}

// startWaypoint prepares the kernel for members.
func startWaypoint(c Config, seen <-chan egress.Outside, a *announcer) (*waypoint.Waypoint, error) {
	operator, self := c.Settings.Waypoint, c.Identity.Self()
	files := FilesOf(c.Settings)
	return waypoint.Start(waypoint.Config{
		Allow: operator.Allow, Deny: operator.Deny, DenyPorts: deniedPorts(operator), InBand: inBandMode(operator), FastPath: operator.FastPath,
		MappingsPerMember: operator.MappingsPerMember, ConnectionsPerMember: operator.ConnectionsPerMember, RatePerMember: operator.ConnectionsPerSecond,
		BandwidthPerMember: int64(operator.BandwidthPerMember) / 8, MappingLifetime: operator.MappingLifetime.Std(),
		Bandwidth: int64(operator.Bandwidth) / 8, Quota: uint64(operator.MonthlyQuota), Hours: operator.Hours, Members: memberTerms(operator),
		Log: operator.Log, Record: files.Sysctls, Memory: files.Given, Counts: files.Counts,
		Marks: rules.Marks(operator.Marks), Converter: Converter(c.Settings, c.Identity), Outside: seen, Tell: a.announce, TellLoad: a.announceLoad,
		TellIncoming: func(list []waypoint.Incoming) { c.Relay.Change(incoming(list)) },
		PortUnusable: func(port uint16, member string) bool { return portUnusable(c.Relay.Standing(), port, member) },
		Author:       attribution.Author{Collective: self.Collective, Waypoint: self.Name, Sign: c.Identity.SignWithChain},
	}, c.Log)
}

// Converter returns the converter that this host offers, or nil. Its key is derived, so that cookies stay valid after a
// restart.
func Converter(settings *config.Config, id *collective.Identity) *waypoint.Converter {
	if !settings.Has(config.RoleWaypoint) || !settings.Waypoint.Gives(config.Converter) {
		return nil
	}
	own := &waypoint.Converter{Port: uint16(settings.Waypoint.ConverterPort), Key: cookie.Key(id.Derive("converter"))}
	for _, r := range settings.Waypoint.ConverterIncoming {
		for port := int(r.First); port <= int(r.Last); port++ {
			own.Incoming = append(own.Incoming, uint16(port))
		}
	}
	return own
}

// incoming changes the ports at which the relay takes connections for members.
func incoming(list []waypoint.Incoming) func(*relay.State) {
	out := []relay.Incoming{}
	for _, x := range list {
		to := relay.Incoming{Port: x.Port.Port, Member: x.Member, Mark: x.Mark, Expelled: x.Expelled}
		for _, w := range x.Ways {
			to.Ways = append(to.Ways, server.Way(w))
		}
		out = append(out, to)
	}
	return func(s *relay.State) {
		if s.Serve != nil {
			changed := *s.Serve // the one before may be on its way to the relay
			changed.Incoming = out
			s.Serve = &changed
		}
	}
}

// portUnusable reports whether the relay cannot listen at a port for a member. If it has not tried yet, its rights decide.
func portUnusable(now relaying.Standing, port uint16, member string) bool {
	if now.Relay != nil {
		if p := now.Relay.Parts[relay.Incoming{Port: port, Member: member}.Part()]; p != nil {
			return p.Problem != ""
		}
	}
	first, err := netstate.FirstPort()
	return err == nil && port < first
}

// Servers returns the servers that the operator lets members use, for the converter.
func Servers(c config.Waypoint) *relay.Servers {
	return &relay.Servers{Allow: c.Allow, Deny: c.Deny, DenyPorts: deniedPorts(c)}
}

// Status returns the waypoint role's part of the status, and its problems.
func (s *Serving) Status() (*api.Serving, []string, error) {
	h := s.handler
	snap, err := h.way.Snapshot()
	if err != nil {
		return nil, nil, err
	}
	out := &api.Serving{
		Listen: s.config.Settings.Session.Listen, Mappings: snap.Mappings, Refused: map[string]int{}, Members: []api.Served{}, Offers: []string{},
		Given: s.given(&snap), FastFlows: snap.Fast, Outside: s.outside.Status(),
	}
	for _, k := range h.offers {
		out.Offers = append(out.Offers, k.String())
	}
	for _, m := range snap.Members {
		out.Sessions += m.Sessions
		out.Granted += m.Granted
		out.Members = append(out.Members, api.Served{
			Member: m.Name, Sessions: m.Sessions, Mappings: m.Mappings, Tunnels: m.Tunnels, Flows: m.Flows, Bytes: m.BytesFromClient + m.BytesToClient,
			Expelled: m.Expelled,
		})
	}
	if slices.Contains(h.offers, wire.InBand) {
		out.InBand = &api.InBand{Addresses: snap.InBand}
		if c := snap.SYNs; c != nil {
			out.InBand = &api.InBand{
				Authenticated: true, Addresses: snap.InBand, Accepted: c.Accepted, UnknownAddress: c.UnknownAddress,
				BadAuthenticator: c.BadAuthenticator, Replayed: c.Replayed, Malformed: c.Malformed,
			}
		}
	}
	for code, n := range snap.Refused {
		out.Refused[code.String()] = int(n)
	}
	return out, s.problems(snap.Problems), nil
}

func (s *Serving) problems(own []waypoint.Problem) []string {
	list := slices.Clone(s.handler.problems)
	for kind, g := range s.handler.givers {
		if err := g.Problem(); err != nil {
			list = append(list, fmt.Sprintf("%v tunnels do not work: %s", kind, tunnel.OneLine(err)))
		}
	}
	for _, p := range own {
		list = append(list, fmt.Sprintf("%s: %s", p.Text, p.Fix))
	}
	return list
}
