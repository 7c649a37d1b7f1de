package client

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/paths/pathserver"
)

const (
	// renewAfter is the time after which a path server is asked again while connections use what it answered. It counts
	// their flows for twice as long.
	renewAfter = 5 * time.Minute
	// renewSoon is the same the first renewsSoon times. A path server places flows when it does not know those that come later,
	// and moves one of a host's flows each time that the host asks again.
	renewSoon  = 30 * time.Second
	renewsSoon = 3
	// askAgain is the time after which a path server that did not answer is asked again for a new connection.
	askAgain = 30 * time.Second
	// askTime bounds one request.
	askTime = 5 * time.Second
	// hearAgain is the least time between two requests for moves.
	hearAgain = time.Second
)

// pathServerAt returns the client of a path server, given as NAME@HOST:PORT.
func (c *Client) pathServerAt(at string) *pathserver.Client {
	name, addr, _ := strings.Cut(at, "@")
	return &pathserver.Client{Identity: c.config.Identity, Name: name, Addr: addr}
}

// pathServer returns a function that asks a path server, given as NAME@HOST:PORT, for ports to a server.
func (c *Client) pathServer(at string, server netip.Addr) findWays {
	asked := c.pathServerAt(at)
	source, noRoute := c.host.routes.SourceFor(server)
	return func(ctx context.Context, server netip.AddrPort, ways, each int) (ports [][]uint16, err error) {
		if noRoute != nil {
			return nil, noRoute
		}
		limited, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		a, err := asked.Place(limited, pathserver.PlaceRequest{Source: source.Addr, Destination: server, Paths: ways, Each: each})
		if err != nil || len(a.Paths) < 2 {
			return nil, err
		}
		for _, p := range a.Paths {
			ports = append(ports, p.Ports)
		}
		return ports, nil
	}
}

// hears reports whether a request for moves is to be opened at a path server: connections wanted lately what it answered.
func (w *ways) hears(at string, now time.Time) bool {
	if at == "" || w.hearing[at] {
		return false
	}
	for _, known := range w.known {
		if known.asked == at && known.answers > 0 && now.Sub(known.wanted) < wayLifetime {
			return true
		}
	}
	return false
}

// takeMoves notes to which servers a path server has moved flows. Those with living connections are asked about with the next sample.
func (w *ways) takeMoves(at string, servers []netip.AddrPort) {
	for _, server := range servers {
		if known := w.known[server]; known != nil && known.asked == at {
			known.moved = true
		}
	}
}

// hearMoves keeps a request for moves open at a path server, as long as connections use what it answers.
func (c *Client) hearMoves(ctx context.Context, at string, now time.Time) {
	w := &c.host.ways
	if !w.hears(at, now) {
		return
	}
	w.hearing[at] = true
	server := c.pathServerAt(at)
	c.requests.Go(func() {
		servers, err := server.Moved(ctx)
		c.post(ctx, func(time.Time) {
			c.log.Debug("a request for moves has ended", "path_server", at, "moved", servers, "err", err)
			w.takeMoves(at, servers)
		})
		pause := hearAgain
		if err != nil {
			pause = askAgain
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		c.post(ctx, func(now time.Time) {
			delete(w.hearing, at)
			c.hearMoves(ctx, at, now)
		})
	})
}

// awaits reports whether a path server may be asked about a connection because it carried so many bytes.
func (w *ways) awaits(server netip.AddrPort, carried uint64) bool {
	return w.known[server] == nil && slices.ContainsFunc(w.policies, func(p waysPolicy) bool {
		p.rule.Cgroup = ""
		return p.server != "" && p.bytes > 0 && carried >= p.bytes && p.rule.Covers(server.Port(), server.Addr(), "")
	})
}

// wanted returns the samples of connections that have become large, and of those that still live, whose path servers may be
// asked.
func (w *ways) wanted(samples []path.Sample) (list []path.Sample) {
	if len(w.policies) == 0 {
		return nil
	}
	for i := range samples {
		s := &samples[i]
		if known := w.known[s.Remote]; w.awaits(s.Remote, s.BytesReceived+s.BytesAcked) || known != nil && known.asked != "" {
			list = append(list, *s)
		}
	}
	return list
}

// measuredWays asks path servers about such connections.
func (c *Client) measuredWays(ctx context.Context, samples []path.Sample, now time.Time) {
	w := &c.host.ways
	for i := range samples {
		s := &samples[i]
		carried := s.BytesReceived + s.BytesAcked
		switch known := w.known[s.Remote]; {
		case w.awaits(s.Remote, carried):
			c.lookForWays(ctx, s.Remote, c.host.cgroupOf(s.Local, s.Remote), carried, now)
		case known != nil && known.asked != "" && known.search(now):
			known.wanted = now
			c.searchWays(ctx, s.Remote)
		}
	}
}
