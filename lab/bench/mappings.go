package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/stats"
	"github.com/detour-collective/dcol/lab/testbed"
)

const (
	mappingPort = 1024 // the first, above the ports that may be denied
)

// mappingPlan sets the amount of work.
type mappingPlan struct {
	// Each of two clients requests `each` mappings in each round. One client cannot have all, because an address has only
	// 65,535 ports.
	rounds, each   int
	original       time.Duration // the time for which the original may add rules
	goodputs       int           // repetitions
	goodputSeconds int
	connects       int // repetitions
}

// mappingClients are the clients that hold the mappings.
var mappingClients = []string{"alice", "bob"}

func (p mappingPlan) total() int { return len(mappingClients) * p.rounds * p.each }

// mappings fills a waypoint with mappings. It compares that waypoint with one that has a single mapping, and with one that
// has iptables rules as in 2017.
func mappings(ctx context.Context, o Options) ([]Measurement, error) {
	return compareMappings(ctx, o, mappingPlan{
		rounds: 10, each: 5000, original: time.Minute, goodputs: 20, goodputSeconds: 1, connects: 300,
	})
}

func compareMappings(ctx context.Context, o Options, plan mappingPlan) (found []Measurement, err error) {
	s, err := openStar(ctx, o, testbed.BackendVeth, append([]string{"many", "one"}, mappingClients...), []string{"original"}, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	many, err := s.startWaypoint(ctx, []config.Kind{config.Mapped}, "many", true)
	if err != nil {
		return nil, err
	}
	if _, err := s.startWaypoint(ctx, []config.Kind{config.Mapped}, "one", true); err != nil {
		return nil, err
	}
	rates, err := s.fill(ctx, plan)
	if err != nil {
		return nil, err
	}
	memory, err := many.Memory()
	if err != nil {
		return nil, err
	}
	original, err := s.addRules(ctx, "original", "alice", plan.original)
	if err != nil {
		return nil, err
	}
	ways, err := s.mappedRoutes(ctx, mappingPort+plan.rounds*plan.each-1, original)
	if err != nil {
		return nil, err
	}
	if err := s.measureGoodput(ctx, ways, plan); err != nil {
		return nil, err
	}
	if err := s.measureConnect(ctx, ways, plan); err != nil {
		return nil, err
	}
	return mappingFigures(rates, memory, original, ways), nil
}

// fill makes the clients request all mappings, in rounds. It returns the mappings granted per second in each round.
func (s *network) fill(ctx context.Context, plan mappingPlan) (rates []float64, err error) {
	var askers []*asker
	for _, client := range mappingClients {
		a, err := s.startAsker(ctx, client, "many")
		if err != nil {
			return nil, err
		}
		askers = append(askers, a)
	}
	for round := range plan.rounds {
		seconds, err := askAll(askers, mappingPort+round*plan.each, plan.each)
		if err != nil {
			return nil, err
		}
		rates = append(rates, float64(len(askers)*plan.each)/seconds)
	}
	status, err := s.Status(ctx, "many")
	if err != nil {
		return nil, err
	}
	if status.Serving == nil || status.Serving.Mappings != plan.total() {
		return nil, fmt.Errorf("the waypoint says it has %+v, not %d mappings", status.Serving, plan.total())
	}
	return rates, nil
}

// mappedRoute is one mapping of alice's, through one of the waypoints.
type mappedRoute struct {
	at       netip.AddrPort // where she connects
	server   uint16         // the server's port it leads to
	goodput  []float64      // Mbit/s
	connects []float64      // ms
}

// mappedRoutes holds three mappings: one among thousands, the only one at a waypoint, and the original's last.
type mappedRoutes struct{ many, one, original mappedRoute }

func (w *mappedRoutes) all() []*mappedRoute { return []*mappedRoute{&w.many, &w.one, &w.original} }

// servers returns the ports where the server must listen.
func (w *mappedRoutes) servers() []uint16 {
	return slices.Compact([]uint16{w.many.server, w.original.server})
}

// mappedRoutes makes both waypoints grant alice a mapping to the same port of the server. She already has the one at the
// waypoint many.
func (s *network) mappedRoutes(ctx context.Context, port int, o original) (*mappedRoutes, error) {
	var w mappedRoutes
	for name, into := range map[string]*mappedRoute{"many": &w.many, "one": &w.one} {
		a, err := s.startAsker(ctx, "alice", name)
		if err != nil {
			return nil, err
		}
		got, err := a.ask(port, 1)
		if err != nil {
			return nil, err
		}
		into.at, into.server = netip.AddrPortFrom(s.Host(name).Addr4(), got.Port), uint16(port)
	}
	w.original.at, w.original.server = netip.AddrPortFrom(s.Host("original").Addr4(), o.port), o.port
	return &w, nil
}

// measureGoodput measures plain TCP over the routes in turns.
func (s *network) measureGoodput(ctx context.Context, w *mappedRoutes, plan mappingPlan) error {
	stop, err := s.serveIperf(ctx, w.servers())
	defer stop()
	if err != nil {
		return err
	}
	all := w.all()
	return inTurns(plan.goodputs, len(all), func(_, i int) error {
		mbps, err := s.iperf(ctx, "alice", all[i].at, plan.goodputSeconds)
		all[i].goodput = append(all[i].goodput, mbps)
		return err
	})
}

// serveIperf starts iperf3's servers.
func (s *network) serveIperf(ctx context.Context, ports []uint16) (stop func(), err error) {
	var servers []*crew.Process
	stop = func() {
		for _, p := range servers {
			p.Kill()
		}
	}
	for _, port := range ports {
		at := strconv.Itoa(int(port))
		p, err := s.Start(ctx, serverHost, "iperf3-"+at, "iperf3", "--server", "--forceflush", "--port", at)
		if err != nil {
			return stop, err
		}
		servers = append(servers, p)
		if err := p.AwaitOutput(ctx, startLimit, "Server listening"); err != nil {
			return stop, err
		}
	}
	return stop, nil
}

// iperf returns the goodput of plain TCP as counted by the receiver. It tries again while the server is busy, which it
// is for a moment after the previous test.
func (s *network) iperf(ctx context.Context, from string, to netip.AddrPort, seconds int) (mbps float64, err error) {
	for range 20 {
		if mbps, err = s.iperfOnce(ctx, from, to, seconds); !errors.Is(err, errServerBusy) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return mbps, err
}

var errServerBusy = errors.New("the server is busy")

func (s *network) iperfOnce(ctx context.Context, from string, to netip.AddrPort, seconds int) (mbps float64, err error) {
	out, err := s.Host(from).Command(ctx, "iperf3", "--client", to.Addr().String(), "--port", strconv.Itoa(int(to.Port())),
		"--time", strconv.Itoa(seconds), "--json").Output()
	var said struct {
		Error string `json:"error"`
		End   struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	parseErr := json.Unmarshal(out, &said)
	switch {
	case strings.Contains(said.Error, "busy"):
		return 0, fmt.Errorf("iperf3 to %v: %w", to, errServerBusy)
	case said.Error != "":
		return 0, fmt.Errorf("iperf3 to %v: %s", to, said.Error)
	case err != nil || parseErr != nil:
		return 0, fmt.Errorf("iperf3 to %v: %w", to, errors.Join(err, parseErr))
	case said.End.Received.BitsPerSecond <= 0:
		return 0, fmt.Errorf("iperf3 to %v: nothing arrived", to)
	}
	return said.End.Received.BitsPerSecond / 1e6, nil
}

// measureConnect measures how long connect() takes. The waypoint looks for the mapping when it receives the first packet.
func (s *network) measureConnect(ctx context.Context, w *mappedRoutes, plan mappingPlan) error {
	for _, port := range w.servers() {
		if err := s.serveLoad(ctx, Load{At: netip.AddrPortFrom(s.Host(serverHost).Addr4(), port), Ports: 1}); err != nil {
			return err
		}
	}
	all := w.all()
	return inTurns(plan.connects, len(all), func(_, i int) error {
		m := all[i]
		start := time.Now()
		conn, err := s.dial(ctx, "alice", netip.AddrPort{}, m.at, false)
		if err != nil {
			return err
		}
		m.connects = append(m.connects, stats.Milliseconds(time.Since(start)))
		if err := end(conn); err != nil {
			return err
		}
		if err := conn.Close(); err != nil {
			return fmt.Errorf("close a connection to %v: %w", m.at, err)
		}
		return nil
	})
}

func mappingFigures(rates []float64, memory crew.Memory, o original, w *mappedRoutes) []Measurement {
	rules := fmt.Sprintf("two rules a mapping with %s: %d mappings in %.0f s", o.version, o.mappings, o.seconds)
	granted := of("mappings: grants, up to 100,000 of them", "grants/s", rates).against(float64(o.mappings) / o.seconds)
	granted.Note = "over two sessions with mutual TLS; the baseline is " + rules
	goodput := of("mappings: goodput through 100,000 against one", "Mbit/s", w.many.goodput).against(stats.Median(w.one.goodput))
	connect := of("mappings: a new TCP connection, through 100,000 against one", "ms", w.many.connects).against(stats.Median(w.one.connects))
	asBefore := fmt.Sprintf("the baseline is the original's way, through the last of %d mappings", o.mappings)
	goodputBefore := of("mappings: goodput through 100,000 against the original's way", "Mbit/s", w.many.goodput).against(stats.Median(w.original.goodput))
	goodputBefore.Note = asBefore
	connectBefore := of("mappings: a new TCP connection, against the original's way", "ms", w.many.connects).against(stats.Median(w.original.connects))
	connectBefore.Note = asBefore
	return []Measurement{
		granted.target(">= 5000 grants/s", granted.Value >= 5000),
		goodput.target("ratio >= 0.98", *goodput.Ratio >= 0.98),
		connect,
		goodputBefore,
		connectBefore,
		once("mappings: waypoint's agent's memory with 100,000", "MiB", float64(memory.Now)/(1<<20)),
	}
}
