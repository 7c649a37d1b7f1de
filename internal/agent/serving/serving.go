package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/tunnel"
	"github.com/detour-collective/dcol/internal/waypoint"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// serving is the waypoint role: sessions with members, and what they are given.
type serving struct {
	listen string
	config config.Waypoint
	*handler
	outside *outside
}

// startServing begins the waypoint role. The socket comes first: a port that is
// taken must not have made this host a router.
func startServing(ctx context.Context, p *Plan, m *member, sightings <-chan nat.Sighting, group *errgroup.Group) (*serving, error) {
	c := p.config.Waypoint
	limits := session.DefaultLimits()
	limits.RequestRate, limits.RequestBurst = rate.Limit(c.RequestsPerSecond), 2*c.RequestsPerSecond
	h := &handler{givers: make(map[wire.Kind]giver)}
	server, err := session.Listen(session.ServerConfig{
		Identity: p.identity, Listen: p.config.Session.Listen, Handler: h, Log: p.log.With("subsystem", "session"),
		Lease: c.MappingLifetime.Std(), Limits: limits,
	})
	if err != nil {
		return nil, err
	}
	h.server = server
	outside, err := startOutside(ctx, p, server, m, sightings, group)
	if err != nil {
		return nil, errors.Join(err, endUnserved(ctx, server))
	}
	h.doorman, h.seen = newDoorman(ctx, outside), outside.seen.news
	if err := h.start(ctx, p, server.Addr()); err != nil {
		return nil, errors.Join(err, endUnserved(ctx, server))
	}
	group.Go(func() error {
		serving, stop := context.WithCancel(ctx)
		var others errgroup.Group
		others.Go(func() error {
			h.expelling.run(serving, server.Sweep, p.identity.Trust, m.enforced)
			return nil
		})
		for _, g := range h.givers {
			others.Go(func() error { return g.Run(serving) })
		}
		err := server.Serve(ctx)
		stop()
		return errors.Join(err, others.Wait(), h.way.Close())
	})
	return &serving{listen: p.config.Session.Listen, config: p.config.Waypoint, handler: h, outside: outside}, nil
}

// endUnserved closes a server that accepted nothing yet.
func endUnserved(ctx context.Context, server *session.Server) error {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return server.Serve(ctx)
}

func deniedPorts(c config.Waypoint) []uint16 {
	var ports []uint16
	for _, port := range c.DenyPorts {
		ports = append(ports, uint16(port))
	}
	return ports
}

// tell has members told what the waypoint says it gives.
func (h *handler) tell(s giving.Standing) {
	var closed *session.Closed
	if s.Closed() {
		closed = &session.Closed{Code: s.Cause.Code(), Until: s.Until}
	}
	h.closed.Store(closed)
	h.server.Tell()
}

// Closed implements session.Handler.
func (h *handler) Closed() *session.Closed { return h.closed.Load() }

// handler gives sessions what the waypoint has. It is complete before the server
// serves the first one.
type handler struct {
	server    *session.Server
	doorman   *doorman
	way       *waypoint.Waypoint
	seen      <-chan egress.Outside          // how others see this host
	closed    atomic.Pointer[session.Closed] // nil: the waypoint gives
	expelling *expeller
	givers    map[wire.Kind]giver
	offers    []wire.Kind
	problems  []string // why something that the operator wants offered is not
}

// start makes everything ready that the waypoint gives; session is where the server
// listens.
func (h *handler) start(ctx context.Context, p *Plan, session netip.AddrPort) error {
	c, self := p.config.Waypoint, p.identity.Self()
	way, err := waypoint.Start(waypoint.Config{
		Allow: c.Allow, Deny: c.Deny, DenyPorts: deniedPorts(c), InBand: inBandMode(c), FastPath: c.FastPath,
		MappingsPerMember: c.MappingsPerMember, ConnectionsPerMember: c.ConnectionsPerMember, RatePerMember: c.ConnectionsPerSecond,
		BandwidthPerMember: int64(c.BandwidthPerMember) / 8, MappingLifetime: c.MappingLifetime.Std(),
		Bandwidth: int64(c.Bandwidth) / 8, Quota: uint64(c.MonthlyQuota), Hours: c.Hours,
		Log: c.Log, Record: waypointRecord(p.config.StateDir), Memory: waypointMemory(p.config.StateDir),
		Counts: waypointCounts(p.config.RunDir),
		Marks:  rules.Marks(c.Marks), Outside: h.seen, Tell: h.tell,
		Author: attribution.Author{Collective: self.Collective, Waypoint: self.Name, Sign: p.identity.SignWithChain},
	}, p.log)
	if err != nil {
		return err
	}
	h.way = way
	if err := h.open(ctx, p, session); err != nil {
		return errors.Join(err, way.Close())
	}
	snap, err := way.Snapshot()
	if err != nil {
		return errors.Join(err, way.Close())
	}
	h.expelling = newExpeller(p.identity.Check, h.expel, p.log.With("subsystem", "expulsion"))
	for _, m := range snap.Members { // of an agent before us
		h.expelling.seen(collective.Member{Name: m.Name, Serial: m.Serial})
	}
	return nil
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

func (h *handler) SessionUp(p session.Peer) {
	h.expelling.seen(memberOf(p))
	h.way.SessionUp(p)
}

func (h *handler) SessionDown(p session.Peer) {
	h.way.SessionDown(p)
	h.expelling.sessionDown(p)
}

func (h *handler) Map(ctx context.Context, p session.Peer, r wire.MapRequest) (wire.MapGrant, *wire.Refusal) {
	if !slices.Contains(h.offers, wire.Mapped) {
		return wire.MapGrant{}, &wire.Refusal{Code: wire.NotOffered}
	}
	return h.way.Map(ctx, p, r)
}

// describe is the waypoint role's part of the status.
func (s *serving) describe() (*api.Serving, []string, error) {
	snap, err := s.way.Snapshot()
	if err != nil {
		return nil, nil, err
	}
	out := &api.Serving{Listen: s.listen, Mappings: snap.Mappings, Refused: map[string]int{}, Members: []api.Served{}, Offers: []string{}, Given: s.given(snap.Giving)}
	for _, k := range s.offers {
		out.Offers = append(out.Offers, k.String())
	}
	for _, m := range snap.Members {
		out.Sessions += m.Sessions
		out.Granted += m.Granted
		out.Members = append(out.Members, api.Served{
			Member: m.Name, Sessions: m.Sessions, Mappings: m.Mappings, Tunnels: m.Tunnels, Flows: m.Flows, Bytes: m.BytesFromClient + m.BytesToClient,
		})
	}
	if slices.Contains(s.offers, wire.InBand) {
		out.InBand = &api.InBand{Addresses: snap.InBand}
		if c := snap.SYNs; c != nil {
			out.InBand = &api.InBand{
				Authenticated: true, Addresses: snap.InBand, Accepted: c.Accepted, UnknownAddress: c.UnknownAddress,
				BadAuthenticator: c.BadAuthenticator, Replayed: c.Replayed, Malformed: c.Malformed,
			}
		}
	}
	out.FastFlows = snap.Fast
	out.Outside = s.outside.describe()
	for code, n := range snap.Refused {
		out.Refused[code.String()] = int(n)
	}
	problems := slices.Clone(s.problems)
	for kind, g := range s.givers {
		if err := g.Problem(); err != nil {
			problems = append(problems, fmt.Sprintf("%v tunnels do not work now: %s", kind, tunnel.OneLine(err)))
		}
	}
	for _, p := range snap.Problems {
		problems = append(problems, fmt.Sprintf("%s: %s", p.Text, p.Mend))
	}
	return out, problems, nil
}
