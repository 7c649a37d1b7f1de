package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint"
)

// serving is the waypoint role: sessions with members, and what they are given.
type serving struct {
	listen string
	way    *waypoint.Waypoint
	server *session.Server
}

// startServing begins the waypoint role.
func startServing(ctx context.Context, p *Plan, group *errgroup.Group) (*serving, error) {
	c := p.config.Waypoint
	var denied []uint16
	for _, port := range c.DenyPorts {
		denied = append(denied, uint16(port))
	}
	way, err := waypoint.Start(waypoint.Config{
		Allow: c.Allow, Deny: c.Deny, DenyPorts: denied,
		MappingsPerMember: c.MappingsPerMember, ConnectionsPerMember: c.ConnectionsPerMember,
		BandwidthPerMember: int64(c.BandwidthPerMember) / 8, MappingLifetime: c.MappingLifetime.Std(),
		Log: c.Log, Record: waypointRecord(p.config.StateDir),
	}, p.log)
	if err != nil {
		return nil, err
	}
	limits := session.DefaultLimits()
	limits.RequestRate, limits.RequestBurst = rate.Limit(c.RequestsPerSecond), 2*c.RequestsPerSecond
	s := &serving{listen: p.config.Session.Listen, way: way}
	expelling := newExpeller(p.identity.Check, way.Expel, p.log.With("subsystem", "expulsion"))
	snap, err := way.Snapshot()
	if err != nil {
		return nil, errors.Join(err, way.Close())
	}
	for _, m := range snap.Members { // of an agent before us
		expelling.seen(m.Name, m.Serial)
	}
	s.server, err = session.Listen(session.ServerConfig{
		Identity: p.identity, Listen: p.config.Session.Listen, Handler: handler{way, expelling}, Log: p.log.With("subsystem", "session"),
		Offers: []wire.Kind{wire.Mapped}, Lease: c.MappingLifetime.Std(), Limits: limits,
	})
	if err != nil {
		return nil, errors.Join(err, way.Close())
	}
	group.Go(func() error {
		serving, stop := context.WithCancel(ctx)
		var expulsions sync.WaitGroup
		expulsions.Go(func() { expelling.run(serving, p.identity.Refresh) })
		err := s.server.Serve(ctx)
		stop()
		expulsions.Wait()
		return errors.Join(err, way.Close())
	})
	return s, nil
}

// handler gives sessions what the waypoint has.
type handler struct {
	way       *waypoint.Waypoint
	expelling *expeller
}

func (h handler) SessionUp(p session.Peer) {
	h.expelling.seen(p.Name, p.Serial)
	h.way.SessionUp(peer(p))
}

func (h handler) SessionDown(p session.Peer) {
	h.way.SessionDown(peer(p))
	h.expelling.sessionDown(p)
}

func (h handler) Map(ctx context.Context, p session.Peer, r wire.MapRequest) (wire.MapGrant, *wire.Refusal) {
	return h.way.Map(ctx, peer(p), r)
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
