package paths

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/cflb/cflbtest"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
)

// lossyShooter loses every fourth probe of the first flow, and all probes of the third.
type lossyShooter struct{ rounds int }

func (s *lossyShooter) Once(_ context.Context, all []Request) ([]Reply, error) {
	replies := make([]Reply, len(all))
	for i, r := range all {
		if r.Distance != 64 || i == 2 || i == 0 && s.rounds%4 == 3 {
			continue
		}
		replies[i] = Reply{From: wireDestination, RTT: time.Duration(i+1)*time.Millisecond + time.Duration(s.rounds)*time.Microsecond}
	}
	s.rounds++
	return replies, nil
}

// TestMeasure checks each path's loss and round trips.
func TestMeasure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		got, err := Measure(t.Context(), &lossyShooter{}, []int{5, 6, 7}, 20, 64)
		us := time.Microsecond
		want := []Quality{{20, 5, 1000 * us, 1009 * us, 1018 * us}, {20, 0, 2000 * us, 2010 * us, 2019 * us}, {20, 20, 0, 0, 0}}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
		if took := time.Since(start); took != 19*roundTime {
			t.Errorf("took %v", took)
		}
	})
}

// TestOnce: a probe without an answer is sent only once.
func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &wireNetwork{routers: 3, last: map[int]time.Time{}, arrivals: make(chan trace.Arrival, 100)}
		w := NewWire(n, Template{
			Source: wireSource, Destination: wireDestination, Protocol: packet.ProtocolTCP, Port: 443, Random: rand.New(rand.NewPCG(1, 2)),
		})
		n.every = time.Hour
		n.last[2] = time.Now()
		replies, err := w.Once(t.Context(), []Request{{0, 64}, {1, 2}})
		if err != nil || replies[0].From != wireDestination || replies[1].From.IsValid() || n.sent != 2 {
			t.Errorf("%+v, %d sent: %v", replies, n.sent, err)
		}
	})
}

// recorder records the greatest distance of a flow's probes.
type recorder struct {
	*network
	flow, furthest int
}

func (r *recorder) Probe(ctx context.Context, all []Request) ([]Reply, error) {
	for _, q := range all {
		if q.Flow == r.flow {
			r.furthest = max(r.furthest, q.Distance)
		}
	}
	return r.network.Probe(ctx, all)
}

// TestShared: another flow on the path of a session is found, and no probe of the session's flow reaches the
// destination.
func TestShared(t *testing.T) {
	const session = 5000
	for seed := range uint64(20) {
		n := &network{next: symmetric, seed: seed}
		g := explore(t, n, Options{})
		r := &recorder{network: n, flow: session}
		path, flow, err := Shared(t.Context(), r, g, session)
		if err != nil || flow == session || len(path.Vertices) != len(g.Hops) || r.furthest != len(g.Hops)-1 {
			t.Fatalf("flow %d on %v, probed to %d: %v", flow, path, r.furthest, err)
		}
		for d, want := range path.Vertices {
			if n.at(flow, d+1) != n.at(session, d+1) || addrOf(n.at(flow, d+1)) != want {
				t.Errorf("seed %d: the flows part at distance %d", seed, d+1)
			}
		}
	}
	if _, _, err := Shared(t.Context(), &network{next: unequal}, explore(t, &network{next: [][]int{{1, 2}, nil, {3}, nil}}, Options{}), session); !errors.Is(err, ErrLengths) {
		t.Errorf("paths of two lengths: %v", err)
	}
}

// TestRoutedShared: a port on a session's path through CFLB routers is computed for the time to live of the session's
// packets.
func TestRoutedShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := cflbtest.Scheme(t, cflb.Speck, 3)
		n := &steeredNetwork{s, [][]int{{1}, {2, 3, 4}, {5, 6, 8}, {5}, {6}, {7}, {7}, nil, {7}}, make(chan trace.Arrival, 100)}
		w := NewWire(n, Template{
			Source: wireSource, Destination: wireDestination, Protocol: packet.ProtocolTCP, Port: 443, Random: rand.New(rand.NewPCG(1, 2)),
		})
		r, err := DiscoverRouted(t.Context(), w, s, cflb.Options{MaxDistance: 30}, 64)
		if err != nil {
			t.Fatal(err)
		}
		u := cflb.Flow(wireSource, wireDestination, packet.ProtocolTCP)
		way := func(port uint16) (passed []int) {
			at := 0
			for ttl := uint8(64); len(n.next[at]) > 0; ttl-- {
				passed = append(passed, at)
				at = n.next[at][cflb.Router{Scheme: s, ID: uint32(at)}.Next(cflb.OfPorts(port, 443), u, ttl, len(n.next[at]))]
			}
			return passed
		}
		for session := uint16(40000); session < 40050; session++ {
			path, flow, err := RoutedShared(w, s, r.Network, r.Graph, session, 64)
			if err != nil {
				t.Fatal(err)
			}
			port := w.Ports(flow).Source
			if port == session || !slices.Equal(way(port), way(session)) || len(path.Vertices) != len(way(session))+1 {
				t.Errorf("port %d takes %v, and %d takes %v; the path is %v", session, way(session), port, way(port), path.Vertices)
			}
		}
	})
}
