package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/stats"
	"github.com/detour-collective/dcol/lab/testbed"
)

const (
	// joinConnections is the number of measured connections of each kind.
	joinConnections = 200
	// joinDelayed is the number on links with delay. It is smaller, because each takes a tenth of a second.
	joinDelayed = 60
	// joinPort is the first of the server's ports.
	joinPort = 20000
	// oneRoundTrip is the target for in-band joins: the ms that they may take beyond a round trip.
	oneRoundTrip = 1
)

// joinTrips lists the measured round trips of the detour. The waypoint is half-way.
var joinTrips = []time.Duration{30 * time.Millisecond, 60 * time.Millisecond}

// allKinds lists the kinds of detours.
var allKinds = []config.Kind{config.InBand, config.Mapped, config.WireGuard, config.OpenVPN}

// join measures the time from the kernel's event ESTABLISHED to SUB_ESTABLISHED, with a listener independent of the
// agent. On links without delay, that time shows what joins take besides the protocol's round trips. On links with delay,
// it is compared with TCP's round trip over the same detour.
func join(ctx context.Context, o Options) (found []Measurement, err error) {
	for _, kind := range allKinds {
		j, err := joins(ctx, o, kind, testbed.BackendVeth, joinConnections, 0)
		if err != nil {
			return found, fmt.Errorf("%s: %w", kind, err)
		}
		found = append(found, j.withoutDelay()...)
	}
	for _, trip := range joinTrips {
		for _, kind := range allKinds {
			j, err := joins(ctx, o, kind, testbed.BackendEmulator, joinDelayed, trip)
			if err != nil {
				return found, fmt.Errorf("%s over a round trip of %v: %w", kind, trip, err)
			}
			found = append(found, j.withDelay(trip)...)
		}
	}
	return found, nil
}

// joined holds the measurements of one kind of detour. cold are first connections to a server, warm are later ones. They
// differ only with mappings.
type joined struct {
	kind       config.Kind
	cold, warm []float64 // ms
	trips      []float64 // ms, round trips of the subflows as measured by TCP
}

func (j joined) rounds() map[string][]float64 {
	if j.kind == config.Mapped {
		return map[string][]float64{"cold mapping": j.cold, "warm mapping": j.warm}
	}
	return map[string][]float64{string(j.kind): append(j.cold, j.warm...)}
}

func (j joined) names() []string {
	if j.kind == config.Mapped {
		return []string{"cold mapping", "warm mapping"}
	}
	return []string{string(j.kind)}
}

func (j joined) withoutDelay() (found []Measurement) {
	rounds := j.rounds()
	for _, name := range j.names() {
		m := of("join: "+name, "ms", rounds[name])
		switch name {
		case "cold mapping":
			m = m.target("<= 2 ms", m.Value <= 2)
		case "warm mapping", string(config.InBand):
			m = m.target("<= 1 ms", m.Value <= 1)
		}
		found = append(found, m, percentile("join: "+name+", 99th percentile", rounds[name], 0.99))
	}
	return found
}

func (j joined) withDelay(trip time.Duration) (found []Measurement) {
	measured := stats.Median(j.trips)
	rounds := j.rounds()
	for _, name := range j.names() {
		m := of(fmt.Sprintf("join: %s, round trip %v", name, trip), "ms", rounds[name]).against(measured)
		if j.kind == config.InBand {
			m.Note = "baseline: the least round trip that TCP measured on the same subflows; SUB_ESTABLISHED comes with the SYN-ACK"
			m = m.target(fmt.Sprintf("within %d ms of one round trip", oneRoundTrip), m.Value-measured <= oneRoundTrip)
		}
		found = append(found, m)
	}
	return found
}

// joins opens connections one by one: first each to a new port of the server, then to the same ports again.
// trip is the round trip over the detour.
func joins(ctx context.Context, o Options, kind config.Kind, backend string, n int, trip time.Duration) (j joined, err error) {
	j.kind = kind
	// Packets cross the waypoint's link twice in each direction.
	s, err := openStar(ctx, o, backend, []string{"client", "waypoint"}, nil, map[string]time.Duration{"waypoint": trip / 4})
	if err != nil {
		return j, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	load := Load{At: netip.AddrPortFrom(s.Host(serverHost).Addr4(), joinPort), Ports: n}
	if err := s.serveLoad(ctx, load); err != nil {
		return j, err
	}
	if _, err := s.startWaypoint(ctx, []config.Kind{kind}, "waypoint", true); err != nil {
		return j, err
	}
	if _, err := s.startClient(ctx, []config.Kind{kind}, "client", "waypoint"); err != nil {
		return j, err
	}
	w, err := watchEvents(s.Host("client"), o.Log)
	if err != nil {
		return j, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for _, round := range []*[]float64{&j.cold, &j.warm} {
		for i := range n {
			took, measured, err := joinOnce(ctx, s, w, load.port(i))
			if err != nil {
				return j, fmt.Errorf("connection %d: %w", i+1, err)
			}
			*round = append(*round, stats.Milliseconds(took))
			j.trips = append(j.trips, stats.Milliseconds(measured))
		}
	}
	return j, nil
}

// joinOnce opens and closes one connection. It returns the time until its subflow, and the least round trip that TCP
// measured on the subflow.
func joinOnce(ctx context.Context, s *network, w *watcher, at netip.AddrPort) (took, trip time.Duration, err error) {
	w.forget()
	conn, err := s.dial(ctx, "client", netip.AddrPort{}, at, true)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	if err := echo(conn); err != nil {
		return 0, 0, err
	}
	took, local, remote, err := w.nextJoin(ctx)
	if err != nil {
		return 0, 0, err
	}
	subflow, err := w.kernel.Subflow(local, remote)
	if err != nil {
		return 0, 0, fmt.Errorf("measure the subflow from %v to %v: %w", local, remote, err)
	}
	return took, subflow.Metrics.MinRTT, end(conn)
}
