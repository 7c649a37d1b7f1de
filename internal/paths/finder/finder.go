// Package finder finds source ports that lead along distinct paths from this host to a server, by probes.
package finder

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/paths"
	"github.com/detour-collective/dcol/internal/trace/wire"
)

const (
	mostProbes = 2000 // limit of one search
	mostFlows  = 128  // limit of the flows that paths.Aliases probes in addition
)

// Find returns source ports of TCP connections to a server, grouped by path: up to ways paths, with about each ports
// for every path. It sends some hundred packets. If it finds fewer than two paths, it returns none.
func Find(ctx context.Context, server netip.AddrPort, ways, each int) (ports [][]uint16, err error) {
	conn, err := wire.Open(server.Addr(), "")
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	w := paths.NewWire(conn, paths.Template{
		Source: conn.Source(), Destination: server.Addr(), Protocol: packet.ProtocolTCP, Port: server.Port(),
		Random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
	})
	found, err := search(ctx, w, ways, each)
	if err != nil {
		return nil, fmt.Errorf("find the paths to %v: %w", server, err)
	}
	for _, flows := range found {
		var list []uint16
		for _, f := range flows {
			list = append(list, w.Ports(f).Source)
		}
		ports = append(ports, list)
	}
	return ports, nil
}

// ErrRenumbered means that the path does not depend on this host's source ports.
var ErrRenumbered = errors.New("a NAT on the way changes source ports, so that they choose no path")

// search returns flows grouped by path. If the limit of probes is reached before the graph is complete, it returns the
// paths found so far.
func search(ctx context.Context, p paths.Prober, ways, each int) ([][]int, error) {
	g, err := paths.Explore(ctx, p, paths.Options{Ways: ways, MaxProbes: mostProbes})
	if err != nil && !errors.Is(err, paths.ErrProbes) {
		return nil, err
	}
	if g.Renumbered() {
		return nil, ErrRenumbered
	}
	distinct := g.Distinct(ways)
	if len(distinct) < 2 {
		return nil, nil
	}
	return paths.Aliases(ctx, p, g, distinct, each, mostFlows)
}
