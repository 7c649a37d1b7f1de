package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cc"
	"github.com/detour-collective/dcol/internal/kernel/bpf/option"
	"github.com/detour-collective/dcol/internal/tcpopt"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/stats"
	"github.com/detour-collective/dcol/lab/testbed"
)

// anyPeer are all networks.
var anyPeer = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}

// granting returns a configuration that grants all requests.
func granting() option.Config {
	return option.Config{
		Accept: tcpopt.Options, Trusted: anyPeer, Bounds: tcpopt.Bounds{
			UserTimeoutMin: time.Second, UserTimeoutMax: time.Hour, Congestions: tcpopt.CongestionNames(), WindowMax: 1000,
		},
	}
}

// asking returns a configuration that requests everything.
func asking() option.Config {
	return option.Config{Ask: []tcpopt.Request{
		{Option: tcpopt.UserTimeout, Value: 60}, {Option: tcpopt.Congestion, Value: 2}, {Option: tcpopt.InitialWindow, Value: 10},
		{Option: tcpopt.DelayedACK, Value: tcpopt.Strategy{Fraction: 16, Segments: 2}.Value()},
	}}
}

// optionCost measures a bulk download at the speed of the processor, with and without the programs.
func optionCost(ctx context.Context, o Options, repetitions int) (found []Measurement, err error) {
	size, rounds := int64(1)<<30, 5*repetitions
	var none, with []float64
	s, err := openPair(ctx, o, testbed.BackendVeth, testbed.LinkParams{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	calls := uint64(0)
	err = inTurns(rounds, 2, func(_, i int) error {
		rate, n, err := s.timedDownload(ctx, i == 1, size)
		if i == 1 {
			with, calls = append(with, rate), n
		} else {
			none = append(none, rate)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	base := of("", "Gbit/s", none)
	m := of("transport cost, a download with all options exchanged", "Gbit/s", with).against(base.Value)
	m = m.target(">= 0.98", *m.Ratio >= 0.98)
	m.Note = fmt.Sprintf("the client's and the server's programs were called %d times for %d MB", calls, size>>20)
	return []Measurement{m}, nil
}

// timedDownload returns the rate of a download in Gbit/s, and the number of calls of the programs.
func (s *network) timedDownload(ctx context.Context, exchange bool, size int64) (rate float64, calls uint64, err error) {
	var both []*option.Exchange
	defer func() {
		for _, x := range both {
			n, e := x.Calls()
			calls, err = calls+n, errors.Join(err, e, x.Close())
		}
	}()
	if exchange {
		for host, c := range map[string]option.Config{clientHost: asking(), serverHost: granting()} {
			x, err := s.exchangeOn(host, c)
			if err != nil {
				return 0, 0, err
			}
			both = append(both, x)
		}
	}
	rate, err = s.download(ctx, size)
	return rate, calls, err
}

// download returns the rate of a download of size bytes in Gbit/s.
func (s *network) download(ctx context.Context, size int64) (rate float64, err error) {
	w, err := s.startWeb(ctx)
	if err != nil {
		return 0, err
	}
	defer w.close()
	began := time.Now()
	n, err := s.get(ctx, size)
	return float64(n) * 8 / 1e9 / time.Since(began).Seconds(), err
}

// roundTrips measures a download's round trips under each congestion control that the client asks for.
func roundTrips(ctx context.Context, o Options, repetitions int) (found []Measurement, err error) {
	const rate, delay = 8_000_000, 40 * time.Millisecond
	length := 8 * time.Second
	if repetitions >= transportFull {
		length = 40 * time.Second
	}
	// The queue is long, because congestion controls differ in the part of it that they fill.
	open := func() (*network, error) {
		return openPair(ctx, o, testbed.BackendEmulator, testbed.LinkParams{Rate: rate, Delay: delay, Queue: rate / 8})
	}
	// Few kernels have Vegas. With one subflow, wVegas behaves like it.
	vegas, err := cc.Register(cc.WVegas)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, vegas.Close()) }()
	kernels := map[string]string{string(cc.WVegas): vegas.Name()}
	var names []string
	for _, name := range []string{"reno", "cubic", "vegas", string(cc.WVegas), "bbr"} {
		if name == string(cc.WVegas) || cc.Available(name) == nil {
			names = append(names, name)
		}
	}
	seen, err := abreast(transportAbreast, open, repetitions, len(names), func(s *network, i int) ([]float64, error) {
		return s.askedRoundTrips(ctx, names[i], kernels, length)
	})
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		m := of(fmt.Sprintf("transport rtt, a download at 8 Mbit/s by %s on request", name), "ms", slices.Concat(seen[i]...)).against(float64(2 * delay.Milliseconds()))
		m.Note = "published (fig. 5.6): Vegas and BBR near the links' 80 ms, CUBIC above, NewReno most; with one subflow, wVegas behaves like Vegas"
		found = append(found, m)
	}
	return found, nil
}

// askedRoundTrips returns the server's smoothed round trips in ms, ten times a second in the second half of a download.
// kernels holds the kernel's names of congestion controls, where they differ.
func (s *network) askedRoundTrips(ctx context.Context, name string, kernels map[string]string, length time.Duration) (seen []float64, err error) {
	number, ok := tcpopt.CongestionNumber(name)
	if !ok {
		return nil, fmt.Errorf("%s has no number in the option", name)
	}
	grants := granting()
	grants.CongestionNames = kernels
	granted, err := s.exchangeOn(serverHost, grants)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, granted.Close()) }()
	asks, err := s.exchangeOn(clientHost, option.Config{Ask: []tcpopt.Request{{Option: tcpopt.Congestion, Value: uint32(number)}}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, asks.Close()) }()
	w, err := s.startWeb(ctx)
	if err != nil {
		return nil, err
	}
	defer w.close()
	during, stop := context.WithCancel(ctx)
	defer stop()
	got := make(chan error, 1)
	go func() { _, err := s.get(during, 1<<40); got <- err }()
	if err := crew.Pause(ctx, length/2); err != nil {
		return nil, err
	}
	for until := time.Now().Add(length / 2); time.Now().Before(until); {
		for _, c := range w.connections() {
			info, congestion, err := inspect(c)
			if err != nil {
				return nil, err
			}
			if congestion != cmp.Or(kernels[name], name) {
				return nil, fmt.Errorf("the server sends by %s, and %s was asked for", congestion, name)
			}
			seen = append(seen, float64(info.Rtt)/1000)
		}
		if err := crew.Pause(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
	stop()
	if err := <-got; err == nil {
		return nil, errors.New("the download ended by itself")
	}
	return seen, nil
}

// inspect returns the kernel's information on a connection, and the name of its congestion control.
func inspect(c net.Conn) (info *unix.TCPInfo, congestion string, err error) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return nil, "", err
	}
	var one, two error
	e := raw.Control(func(fd uintptr) {
		info, one = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		congestion, two = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	})
	if congestion != "" { // the kernel's field ends with zeros
		congestion = string(slices.DeleteFunc([]byte(congestion), func(b byte) bool { return b == 0 }))
	}
	return info, congestion, errors.Join(e, one, two)
}

// page is the objects of a made-up web page, in bytes.
func page(seed uint64) (objects []int64) {
	random := rand.New(rand.NewPCG(seed, 1))
	for range 5 + random.IntN(35) {
		objects = append(objects, int64(2000*(1+random.ExpFloat64()*10)))
	}
	return objects
}

// pages measures the time to load pages, with larger initial windows on request.
func pages(ctx context.Context, o Options, repetitions int) (found []Measurement, err error) {
	const rate, delay = 40_000_000, 40 * time.Millisecond
	count := 8 * repetitions
	s, err := openPair(ctx, o, testbed.BackendEmulator, testbed.LinkParams{Rate: rate, Delay: delay})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	windows := []uint32{10, 20, 30, 40}
	times := make([][]float64, len(windows))
	for i := range windows {
		times[i] = make([]float64, count)
	}
	err = inTurns(count, len(windows), func(n, i int) (err error) {
		times[i][n], err = s.loadPage(ctx, windows[i], page(uint64(n)))
		return err
	})
	if err != nil {
		return nil, err
	}
	base := of("", "s", times[0])
	for i, window := range windows[1:] {
		faster := 0
		var ratios []float64
		for n, t := range times[i+1] {
			if t < times[0][n] {
				faster++
			}
			ratios = append(ratios, t/times[0][n])
		}
		m := of(fmt.Sprintf("transport pages, load time with an initial window of %d on request", window), "s", times[i+1]).against(base.Value)
		m.Note = fmt.Sprintf("%d of %d pages are faster than with 10, the median page takes %.3f of the time; published: about 70 %% of pages faster, few slower with 40",
			faster, count, stats.Quantile(ratios, 0.5))
		found = append(found, m)
	}
	return found, nil
}

// browserConnections is the number of objects that a browser fetches from a server at a time.
const browserConnections = 6

// loadPage returns the seconds that a page takes.
func (s *network) loadPage(ctx context.Context, window uint32, objects []int64) (seconds float64, err error) {
	granted, err := s.exchangeOn(serverHost, granting())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, granted.Close()) }()
	asks, err := s.exchangeOn(clientHost, option.Config{Ask: []tcpopt.Request{{Option: tcpopt.InitialWindow, Value: window}}})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, asks.Close()) }()
	w, err := s.startWeb(ctx)
	if err != nil {
		return 0, err
	}
	defer w.close()
	began := time.Now()
	group, during := errgroup.WithContext(ctx)
	group.SetLimit(browserConnections)
	var mu sync.Mutex
	var last time.Time
	for _, size := range objects {
		group.Go(func() error {
			_, err := s.get(during, size)
			mu.Lock()
			defer mu.Unlock()
			last = time.Now()
			return err
		})
	}
	err = group.Wait()
	return last.Sub(began).Seconds(), err
}
