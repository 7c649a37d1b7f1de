package client

import (
	"context"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/agent/client/sourceports"
	"github.com/detour-collective/dcol/internal/path"
)

// wantPorts starts a search for source ports that lead to a connection's server on distinct paths, if its
// policy wants them and they are not known.
func (c *Client) wantPorts(ctx context.Context, server netip.AddrPort, cgroup string, carried uint64, now time.Time) {
	s, search, changes := c.ports.Want(server, cgroup, carried, now)
	c.backlog = append(c.backlog, changes...)
	if search {
		c.searchPorts(ctx, s)
	}
}

// searchPortsAnew searches again for the ports that connections wanted lately, because routes may have
// changed.
func (c *Client) searchPortsAnew(ctx context.Context, now time.Time) {
	for _, s := range c.ports.RoutesChanged(now) {
		c.searchPorts(ctx, s)
	}
}

func (c *Client) searchPorts(ctx context.Context, s sourceports.Search) {
	var source netip.Addr
	var noRoute error
	if s.PathServer != "" {
		source, noRoute = c.sourceFor(s.Server.Addr())
	}
	c.inbox.inBackground(ctx, func() func(time.Time) {
		ports, err := [][]uint16(nil), noRoute
		if err == nil {
			ports, err = c.searcher.Search(ctx, s, source)
		}
		return func(now time.Time) {
			c.log.Debug("paths by ports were searched", "server", s.Server, "ports", ports)
			if err != nil && ctx.Err() == nil {
				c.log.Warn("no source ports for distinct paths to a server were found", "server", s.Server, "err", err)
			}
			c.backlog = append(c.backlog, c.ports.Found(s.Server, ports, err, now)...)
			c.decide(ctx, now)
			c.hearMoves(ctx, s.PathServer, now)
		}
	})
}

// sourceFor returns this host's address from which packets to dst leave.
func (c *Client) sourceFor(dst netip.Addr) (netip.Addr, error) {
	source, err := c.host.routes.SourceFor(dst)
	return source.Addr, err
}

// askPathServers asks path servers about connections that were sampled.
func (c *Client) askPathServers(ctx context.Context, samples []path.Sample, now time.Time) {
	for i := range samples {
		s := &samples[i]
		if carried := s.BytesReceived + s.BytesAcked; c.ports.Grown(s.Remote, carried) {
			c.wantPorts(ctx, s.Remote, c.host.cgroupOf(s.Local, s.Remote), carried, now)
		} else if again, search := c.ports.Renew(s.Remote, now); search {
			c.searchPorts(ctx, again)
		}
	}
}

// hearMoves keeps a request for moves open at a path server, as long as connections use its answers.
func (c *Client) hearMoves(ctx context.Context, at string, now time.Time) {
	if !c.ports.Hear(at, now) {
		return
	}
	c.inbox.inBackground(ctx, func() func(time.Time) {
		servers, err := c.searcher.Moves(ctx, at)
		return func(time.Time) {
			c.log.Debug("a request for moves has ended", "path_server", at, "moved", servers, "err", err)
			c.ports.Moved(at, servers)
			c.hearMovesLater(ctx, at, sourceports.PauseAfter(err))
		}
	})
}

func (c *Client) hearMovesLater(ctx context.Context, at string, pause time.Duration) {
	c.inbox.inBackground(ctx, func() func(time.Time) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		return func(now time.Time) {
			c.ports.HearingEnded(at)
			c.hearMoves(ctx, at, now)
		}
	})
}

// awaitPorts asks for the ports of a detour, if a policy wants that and they are not known. It reports whether the subflow has
// to wait for them.
func (c *Client) awaitPorts(ctx context.Context, a path.CreateSubflow, now time.Time) bool {
	at := c.ports.PathServer(a)
	if at == "" {
		if c.ports.WantFirstLeg(a, now) {
			c.searchFirstLeg(ctx, a)
		}
		return false
	}
	legs, ok := c.legsOf(a)
	if !ok {
		return false
	}
	waits, ask := c.ports.Await(a, now)
	if ask {
		c.placeDetour(ctx, at, a, legs)
	}
	return waits
}

// placeDetour asks a path server for the ports of a detour.
func (c *Client) placeDetour(ctx context.Context, at string, a path.CreateSubflow, legs sourceports.Legs) {
	c.inbox.inBackground(ctx, func() func(time.Time) {
		ports, err := c.searcher.Place(ctx, at, legs)
		return func(now time.Time) {
			c.log.Debug("ports for both legs of a detour", "waypoint", a.Waypoint, "server", a.Server, "ports", ports)
			if err != nil && ctx.Err() == nil {
				c.log.Warn("the ports of a detour are left to chance", "waypoint", a.Waypoint, "server", a.Server, "err", err)
			}
			for _, waited := range c.ports.Placed(a, ports, err, now) {
				c.createSubflow(waited)
			}
			c.decide(ctx, now)
		}
	})
}

// searchFirstLeg searches ports that lead along distinct paths to a detour's waypoint.
func (c *Client) searchFirstLeg(ctx context.Context, a path.CreateSubflow) {
	c.inbox.inBackground(ctx, func() func(time.Time) {
		ports, err := c.searcher.FirstLeg(ctx, a.Remote)
		return func(now time.Time) {
			c.log.Debug("ports for the first leg of a detour", "waypoint", a.Waypoint, "ports", ports)
			if err != nil && ctx.Err() == nil {
				c.log.Warn("the ports of a detour are left to chance", "waypoint", a.Waypoint, "err", err)
			}
			c.ports.FirstLegFound(a, ports, err, now)
		}
	})
}

// legsOf returns the addresses of a detour's legs. It reports false if the waypoint's address is not of the server's family,
// or this host has no route to it.
func (c *Client) legsOf(a path.CreateSubflow) (legs sourceports.Legs, ok bool) {
	legs = sourceports.Legs{Source: a.Local, Waypoint: a.Remote, Server: a.Server}
	switch a.Kind {
	case path.WireGuard, path.OpenVPN:
		legs.Waypoint = netip.AddrPortFrom(c.tunnels.endOf(a), 0)
	default:
		if source, err := c.sourceFor(a.Remote.Addr()); !legs.Source.IsValid() && err == nil {
			legs.Source = source
		}
	}
	return legs, legs.Source.IsValid() && legs.Waypoint.Addr().BitLen() == a.Server.Addr().BitLen()
}
