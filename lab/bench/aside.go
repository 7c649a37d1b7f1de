package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/stats"
	"github.com/detour-collective/dcol/lab/testbed"
)

// asidePlan sets the amount of work for measuring connections that a converter does not help.
type asidePlan struct {
	pairs    int // of requests, one by each client
	parallel int
	size     int           // bytes of an answer
	delay    time.Duration // of each link
	// multipath is about a server that speaks MPTCP, which the mode auto leaves alone by itself. Else the server is plain, and
	// excluded.
	multipath bool
}

// aside has the times of requests in milliseconds, without dcol and with dcol in the mode auto. Requests with the same
// index were made one right after the other, in either order.
type aside struct {
	plan      asidePlan
	off, auto []float64
}

// Hosts of the measurement. The links of both clients are alike.
const (
	autoHost      = "auto" // has an agent
	converterHost = "converter"
)

// compareAside measures the duration of requests to a server that a client in the mode auto does not convert.
func compareAside(ctx context.Context, o Options, plan asidePlan) (a aside, err error) {
	spec := testbed.Spec{Seed: 1, Backend: testbed.BackendAuto, Hosts: []testbed.HostSpec{{Name: middleHost, Forward: true}}}
	p := testbed.LinkParams{Delay: plan.delay}
	for _, name := range []string{clientHost, autoHost, converterHost, serverHost} {
		spec.Hosts = append(spec.Hosts, testbed.HostSpec{Name: name})
		spec.Links = append(spec.Links, testbed.LinkSpec{Name: name, A: name, B: middleHost, AtoB: p, BtoA: p})
	}
	s, err := openNetwork(ctx, o, spec, []string{autoHost, converterHost})
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	server := netip.AddrPortFrom(s.Host(serverHost).Addr4(), exchangePort)
	excluded := []netip.Prefix{}
	if !plan.multipath {
		excluded = append(excluded, netip.PrefixFrom(server.Addr(), server.Addr().BitLen()))
	}
	if err := s.startAuto(ctx, excluded); err != nil {
		return a, err
	}
	if _, err := s.startServer(ctx, &ExchangeServer{At: server, Multipath: plan.multipath}); err != nil {
		return a, err
	}
	off, err := s.startEnd(ctx, clientHost, ExchangeClientPart, &ExchangeClient{})
	if err != nil {
		return a, err
	}
	auto, err := s.startEndBy(ctx, autoHost, ExchangeClientPart, &ExchangeClient{}, s.Programs.DCol, "run", "--")
	if err != nil {
		return a, err
	}
	clients := []asideClient{{off, Target{To: server}}, {auto, Target{To: server, Run: plan.multipath}}}
	for _, c := range clients {
		err := c.end.Await(ctx, startLimit, func() error { return c.end.remote.Call("First", c.to, new(time.Duration)) })
		if err != nil {
			return a, err
		}
	}
	a = aside{plan: plan, off: make([]float64, plan.pairs), auto: make([]float64, plan.pairs)}
	err = a.measure(clients[0], clients[1])
	return a, err
}

// asideClient is one of the two clients, and how it reaches the server.
type asideClient struct {
	end *exchangeEnd
	to  Target
}

// startAuto starts the agents of a client in the mode auto, with excluded prefixes, and of a converter.
func (s *network) startAuto(ctx context.Context, excluded []netip.Prefix) error {
	kinds := []config.Kind{config.Mapped}
	if _, err := s.startWaypoint(ctx, append(kinds, config.Converter), converterHost, true); err != nil {
		return err
	}
	agent, err := s.startAgent(ctx, autoHost, crew.Agent{Client: crew.Settings{
		"waypoint": []crew.Waypoint{{Name: converterHost, Addresses: []netip.Addr{s.Host(converterHost).Addr4()}}}, "exclude": []string{}, "kinds": kinds,
		"converter": crew.Settings{"use": config.ConvertAuto, "exclude": excluded},
	}}, []string{converterHost}, kinds)
	if err != nil {
		return err
	}
	return agent.Await(ctx, startLimit, func() error {
		status, err := s.Status(ctx, autoHost)
		if err != nil {
			return err
		}
		return crew.ConverterReady(status, []string{converterHost}, false)
	})
}

// measure makes the requests in pairs. Several pairs run at a time.
func (a *aside) measure(off, auto asideClient) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	one := func(c asideClient, into *float64) {
		var took time.Duration
		if err := c.end.call("Request", Exchanges{Target: c.to, Size: a.plan.size}, &took); err != nil {
			failed.Store(&err)
		}
		*into = stats.Milliseconds(took)
	}
	for range a.plan.parallel {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(a.plan.pairs) && failed.Load() == nil; i = next.Add(1) - 1 {
				if rand.IntN(2) == 0 {
					one(off, &a.off[i])
					one(auto, &a.auto[i])
				} else {
					one(auto, &a.auto[i])
					one(off, &a.off[i])
				}
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// The largest difference, in either direction, that dcol may make to a request's duration.
const (
	asideMedian     = 0.01 // of the median
	asideTail       = 0.10 // of the 99th percentile, or:
	asideTailMillis = 2.0
)

// figures returns the median and the 99th percentile of both clients.
func (a aside) figures() (found []Measurement) {
	server := "a server that gains nothing"
	if a.plan.multipath {
		server = "a server that speaks MPTCP"
	}
	what := fmt.Sprintf("convert off-auto: request of %d kB to %s", a.plan.size/1000, server)
	for _, q := range []struct {
		name, target string
		at           float64
		met          func(off, auto float64) bool
	}{
		{"median", "within 1 %", 0.5, func(off, auto float64) bool { return math.Abs(auto-off) <= asideMedian*off }},
		{"99th percentile", "within 10 % or 2 ms", 0.99, func(off, auto float64) bool {
			return math.Abs(auto-off) <= max(asideTail*off, asideTailMillis)
		}},
	} {
		off := percentile(fmt.Sprintf("%s, %s, without dcol", what, q.name), a.off, q.at)
		auto := percentile(fmt.Sprintf("%s, %s, auto", what, q.name), a.auto, q.at).against(off.Value)
		auto = auto.target(q.target, q.met(off.Value, auto.Value))
		likely := stats.PairedInterval(a.off, a.auto, func(off, auto []float64) float64 {
			return stats.Quantile(auto, q.at) - stats.Quantile(off, q.at)
		})
		auto.Note = fmt.Sprintf("the difference is %+.2f %% (95 %% of the bootstrap's samples of pairs: %+.2f to %+.2f %%), or %+.3f ms (%+.3f to %+.3f)",
			percent(auto.Value-off.Value, off.Value), percent(likely.Low, off.Value), percent(likely.High, off.Value),
			auto.Value-off.Value, likely.Low, likely.High)
		found = append(found, off, auto)
	}
	return found
}

func percent(part, whole float64) float64 { return 100 * part / whole }
