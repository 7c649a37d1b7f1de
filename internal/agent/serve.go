package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint"
)

// serving is the waypoint role: sessions with members, and what they are given.
type serving struct {
	listen string
	way    *waypoint.Waypoint
}

// startServing begins the waypoint role. The socket comes first: a port that is
// taken must not have made this host a router.
func startServing(ctx context.Context, p *Plan, group *errgroup.Group) (*serving, error) {
	c := p.config.Waypoint
	limits := session.DefaultLimits()
	limits.RequestRate, limits.RequestBurst = rate.Limit(c.RequestsPerSecond), 2*c.RequestsPerSecond
	h := &handler{}
	server, err := session.Listen(session.ServerConfig{
		Identity: p.identity, Listen: p.config.Session.Listen, Handler: h, Log: p.log.With("subsystem", "session"),
		Offers: []wire.Kind{wire.Mapped}, Lease: c.MappingLifetime.Std(), Limits: limits,
	})
	if err != nil {
		return nil, err
	}
	if err := h.start(p); err != nil {
		return nil, errors.Join(err, endUnserved(ctx, server))
	}
	group.Go(func() error {
		serving, stop := context.WithCancel(ctx)
		var expulsions sync.WaitGroup
		expulsions.Go(func() { h.expelling.run(serving, p.identity.Refresh) })
		err := server.Serve(ctx)
		stop()
		expulsions.Wait()
		return errors.Join(err, h.way.Close())
	})
	return &serving{listen: p.config.Session.Listen, way: h.way}, nil
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

// handler gives sessions what the waypoint has. It is complete before the server
// serves the first one.
type handler struct {
	way       *waypoint.Waypoint
	expelling *expeller
}

func (h *handler) start(p *Plan) error {
	c := p.config.Waypoint
	way, err := waypoint.Start(waypoint.Config{
		Allow: c.Allow, Deny: c.Deny, DenyPorts: deniedPorts(c),
		MappingsPerMember: c.MappingsPerMember, ConnectionsPerMember: c.ConnectionsPerMember,
		BandwidthPerMember: int64(c.BandwidthPerMember) / 8, MappingLifetime: c.MappingLifetime.Std(),
		Log: c.Log, Record: waypointRecord(p.config.StateDir),
	}, p.log)
	if err != nil {
		return err
	}
	snap, err := way.Snapshot()
	if err != nil {
		return errors.Join(err, way.Close())
	}
	h.way, h.expelling = way, newExpeller(p.identity.Check, way.Expel, p.log.With("subsystem", "expulsion"))
	for _, m := range snap.Members { // of an agent before us
		h.expelling.seen(m.Name, m.Serial)
	}
	return nil
}

func (h *handler) SessionUp(p session.Peer) {
	h.expelling.seen(p.Name, p.Serial)
	h.way.SessionUp(peer(p))
}

func (h *handler) SessionDown(p session.Peer) {
	h.way.SessionDown(peer(p))
	h.expelling.sessionDown(p)
}

func (h *handler) Map(ctx context.Context, p session.Peer, r wire.MapRequest) (wire.MapGrant, *wire.Refusal) {
	return h.way.Map(ctx, peer(p), r)
}

func (h *handler) SessionMoved(_, _ session.Peer) {}

func (h *handler) Tunnel(context.Context, session.Peer, wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal) {
	return wire.TunnelGrant{}, &wire.Refusal{Code: wire.NotOffered}
}

func peer(p session.Peer) waypoint.Peer {
	return waypoint.Peer{Name: p.Name, Serial: p.Serial, Addr: p.Addr}
}

// describe is the waypoint role's part of the status.
func (s *serving) describe() (*api.Serving, []string, error) {
	snap, err := s.way.Snapshot()
	if err != nil {
		return nil, nil, err
	}
	out := &api.Serving{Listen: s.listen, Mappings: snap.Mappings, Refused: map[string]int{}, Members: []api.Served{}}
	for _, m := range snap.Members {
		out.Sessions += m.Sessions
		out.Granted += m.Granted
		out.Members = append(out.Members, api.Served{
			Member: m.Name, Sessions: m.Sessions, Mappings: m.Mappings, Flows: m.Flows, Bytes: m.BytesFromClient + m.BytesToClient,
		})
	}
	for code, n := range snap.Refused {
		out.Refused[code.String()] = int(n)
	}
	var problems []string
	for _, p := range snap.Problems {
		problems = append(problems, fmt.Sprintf("%s: %s", p.Text, p.Mend))
	}
	return out, problems, nil
}
