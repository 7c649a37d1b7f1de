package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/lab/report/stats"
	"github.com/detour-collective/dcol/lab/testbed"
)

const (
	// joinConnections is how many connections are measured, of each kind.
	joinConnections = 200
	// joinDelayed is fewer: with delays each takes a tenth of a second.
	joinDelayed = 100
	// joinDelay is one way, on the waypoint's link.
	joinDelay = 10 * time.Millisecond
	// joinPort is the first of the server's ports.
	joinPort = 20000
)

// join measures from ESTABLISHED to SUB_ESTABLISHED, as a listener beside the
// agent sees it: on links without delay, where all of it is beyond the round
// trips that the protocol needs, and as a check on links with delay, where
// these are subtracted.
func join(ctx context.Context, o Options) ([]Measurement, error) {
	cold, warm, err := joins(ctx, o, testbed.BackendVeth, joinConnections, nil)
	if err != nil {
		return nil, err
	}
	coldMedian, warmMedian := stats.Median(cold), stats.Median(warm)
	found := []Measurement{
		of("join: cold mapping", "ms", cold).target("<= 2 ms", coldMedian <= 2),
		of("join: warm mapping", "ms", warm).target("<= 1 ms", warmMedian <= 1),
		percentile("join: cold mapping, 99th percentile", "ms", cold, 0.99),
		percentile("join: warm mapping, 99th percentile", "ms", warm, 0.99),
	}

	// Packets cross the waypoint's link twice in each direction on their way to
	// the server and back, and once to ask the waypoint for a mapping.
	const handshake, asking = 4 * joinDelay, 2 * joinDelay
	cold, warm, err = joins(ctx, o, testbed.BackendWire, joinDelayed, map[string]time.Duration{"waypoint": joinDelay})
	if err != nil {
		return found, fmt.Errorf("with delay: %w", err)
	}
	note := fmt.Sprintf("with %v one way to and from the waypoint; the round trips, which are subtracted, take ", joinDelay)
	coldDelayed := of("join: cold mapping, with delay", "ms", less(cold, handshake+asking))
	coldDelayed.Note = note + (handshake + asking).String()
	warmDelayed := of("join: warm mapping, with delay", "ms", less(warm, handshake))
	warmDelayed.Note = note + handshake.String()
	return append(found, coldDelayed, warmDelayed), nil
}

// joins opens connections one after the other: first each to a port of the
// server that was not asked for before, then to the same ports again.
func joins(ctx context.Context, o Options, backend string, n int, delays map[string]time.Duration) (cold, warm []float64, err error) {
	s, err := openStar(ctx, o, backend, []string{"client", "waypoint"}, nil, delays)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	load := Load{At: netip.AddrPortFrom(s.Host(serverHost).Addr4(), joinPort), Ports: n}
	if err := s.serveLoad(ctx, load); err != nil {
		return nil, nil, err
	}
	if _, err := s.startWaypoint(ctx, "waypoint"); err != nil {
		return nil, nil, err
	}
	if _, err := s.startClient(ctx, "client", "waypoint"); err != nil {
		return nil, nil, err
	}
	w, err := watchEvents(s.Host("client"), o.Log)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for _, round := range []*[]float64{&cold, &warm} {
		for i := range n {
			took, err := joinOnce(ctx, s, w, load.port(i))
			if err != nil {
				return nil, nil, fmt.Errorf("connection %d: %w", i+1, err)
			}
			*round = append(*round, milliseconds(took))
		}
	}
	return cold, warm, nil
}

// joinOnce is the life of one connection.
func joinOnce(ctx context.Context, s *star, w *watcher, at netip.AddrPort) (time.Duration, error) {
	w.forget()
	conn, err := dial(ctx, s.Host("client"), at, true)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := echo(conn); err != nil {
		return 0, err
	}
	took, err := w.nextJoin(ctx)
	if err != nil {
		return 0, err
	}
	return took, end(conn)
}

// dial connects from a host.
func dial(ctx context.Context, from *testbed.Host, to netip.AddrPort, multipath bool) (conn net.Conn, err error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	d.SetMultipathTCP(multipath)
	err = from.Do(func() error {
		conn, err = d.DialContext(ctx, "tcp4", to.String())
		return err
	})
	return conn, err
}

// less is values in milliseconds less what is not to be counted.
func less(values []float64, by time.Duration) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = v - milliseconds(by)
	}
	return out
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }
