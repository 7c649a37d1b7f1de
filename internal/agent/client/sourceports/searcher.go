package sourceports

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/paths/pathserver"
)

const (
	// probedEach is the number of ports that probes find on each path. As many connections to one server
	// can use the path. Browsers open six.
	probedEach = 6
	// placedEach is the same number for a path server, which computes the ports.
	placedEach = 16
	// detourPaths is the number of paths that are wanted for a detour. Its connections take turns on them.
	detourPaths = 4

	// probeTime bounds a search by probes, with the wait for its turn.
	probeTime = time.Minute
	// askTime bounds one request to a path server.
	askTime = 5 * time.Second
	// placeTime is the same when a subflow waits for the answer. The path manager wants it to be up after four seconds.
	placeTime = time.Second

	// hearAgain is the least time between two requests for moves.
	hearAgain = time.Second
)

// Probe returns source ports that lead to a server, by path: about each ports on every one of up to paths paths.
type Probe func(ctx context.Context, server netip.AddrPort, paths, each int) ([][]uint16, error)

// Searcher finds source ports. Its methods wait for answers. They may be called by several goroutines.
type Searcher struct {
	identity *collective.Identity // for path servers
	probe    Probe
	turn     chan struct{} // held by the search in progress: one at a time
}

// NewSearcher returns a Searcher that asks path servers as the member identity.
func NewSearcher(identity *collective.Identity, probe Probe) *Searcher {
	return &Searcher{identity: identity, probe: probe, turn: make(chan struct{}, 1)}
}

// Search finds the ports for Ports.Found. source is this host's address on the way to the server; only a path server needs
// it.
func (s *Searcher) Search(ctx context.Context, x Search, source netip.Addr) ([][]uint16, error) {
	if x.PathServer == "" {
		return s.inTurn(ctx, x.Server, x.Paths)
	}
	ports, err := s.place(ctx, askTime, x.PathServer, pathserver.PlaceRequest{
		Source: source, Destination: x.Server, Paths: x.Paths, Each: placedEach,
	})
	if len(ports) < 2 { // then there is nothing to choose
		return nil, err
	}
	return ports, err
}

// FirstLeg finds ports that lead along distinct paths to a detour's waypoint, for Ports.FirstLegFound.
func (s *Searcher) FirstLeg(ctx context.Context, waypoint netip.AddrPort) ([][]uint16, error) {
	return s.inTurn(ctx, waypoint, detourPaths)
}

// inTurn searches by probes, one server after the other.
func (s *Searcher) inTurn(ctx context.Context, server netip.AddrPort, paths int) ([][]uint16, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
		return s.probe(ctx, server, paths, probedEach)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Legs has the addresses of a detour's legs: from Source to Waypoint, and from there to Server. In a tunnel, the waypoint's
// port is 0.
type Legs struct {
	Source   netip.Addr
	Waypoint netip.AddrPort
	Server   netip.AddrPort
}

// Place asks a path server, given as NAME@HOST:PORT, for ports for both legs of a detour, for Ports.Placed.
func (s *Searcher) Place(ctx context.Context, at string, legs Legs) ([][]uint16, error) {
	return s.place(ctx, placeTime, at, pathserver.PlaceRequest{
		Source: legs.Source, Destination: legs.Server, Paths: detourPaths, Each: placedEach, Waypoint: legs.Waypoint,
	})
}

func (s *Searcher) place(ctx context.Context, limit time.Duration, at string, q pathserver.PlaceRequest) (ports [][]uint16, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer, err := s.at(at).Place(ctx, q)
	if err != nil {
		return nil, err
	}
	for _, p := range answer.Paths {
		ports = append(ports, p.Ports)
	}
	return ports, nil
}

// Moves waits until a path server moves flows of this host, and returns the servers to which they go, for
// Ports.Moved.
func (s *Searcher) Moves(ctx context.Context, at string) ([]netip.AddrPort, error) {
	return s.at(at).Moved(ctx)
}

// PauseAfter returns the time to wait after a request for moves that ended with err.
func PauseAfter(err error) time.Duration {
	if err != nil {
		return askAgain
	}
	return hearAgain
}

func (s *Searcher) at(at string) *pathserver.Client {
	name, addr, _ := strings.Cut(at, "@")
	return &pathserver.Client{Identity: s.identity, Name: name, Addr: addr}
}
