package experiment

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

const (
	// sampleInterval is the time between samples of the client. It limits the resolution of stalls and of goodput over
	// time.
	sampleInterval = 50 * time.Millisecond
	// endsEvery is the number of samples of the client for each sample of the other ends, where only the final sums are
	// used.
	endsEvery = 20
	// settleWithin bounds the wait for the last counters of sockets that were closed at the end of a run.
	settleWithin = 10 * time.Second
	// seriesStep is the resolution of goodput over time.
	seriesStep = 250 * time.Millisecond
)

// sampler reads the kernel's counters of the workload's sockets on client, server and converters during a run. It
// includes every TCP socket between the client and the server, a waypoint or a converter, MPTCP or not (see hostSockets).
type sampler struct {
	paths  []string // in the order of the output
	client *hostSockets
	// ends are the other ends of paths: the server and, if connections may go through converters, the converters.
	ends  []*hostSockets
	began time.Time

	mu      sync.Mutex // guards what follows, and the taps
	samples []sample
	err     error
}

// settled reports whether the last counters of all sockets that were seen are known.
func (s *sampler) settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.client.settled() && !slices.ContainsFunc(s.ends, func(end *hostSockets) bool { return !end.settled() })
}

// sample is a snapshot of the bytes that each path has carried.
type sample struct {
	at    time.Duration // since the workload's start
	bytes map[string]int64
}

func (s sample) total() int64 {
	sum := int64(0)
	for _, b := range s.bytes {
		sum += b
	}
	return sum
}

// startSampling takes a sample every sampleInterval. It ignores sockets that were open before. converting is set if
// connections may go through converters.
func startSampling(ctx context.Context, l *Lab, converting bool) (*sampler, func(), error) {
	s := &sampler{paths: append([]string{scenario.DirectPath}, l.Scenario.WithRole(scenario.RoleWaypoint)...)}
	if err := s.open(l, converting); err != nil {
		s.close()
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	s.began = time.Now()
	s.take(true)
	done.Go(func() { s.loop(ctx) })
	return s, func() {
		cancel()
		done.Wait()
		s.take(true)
		for end := time.Now().Add(settleWithin); !s.settled() && time.Now().Before(end); s.take(true) {
			time.Sleep(sampleInterval / 10)
		}
		s.close()
	}, nil
}

// open opens sock_diag on all ends. After an error, the caller must call close.
func (s *sampler) open(l *Lab, converting bool) (err error) {
	name := l.Scenario.Workload.Client
	if converting {
		name = l.Scenario.ClientAgent() // connections with several paths end at this host
	}
	client := l.net.Host(name)
	tunnels := func() ([]crew.TunnelEnd, error) { return crew.TunnelEnds(client, l.clientVia) }
	if s.client, err = openHostSockets(client, l.paths.client, l.net.FirstAddr, tunnels); err != nil {
		return err
	}
	ends, peers := []string{l.Scenario.Workload.Server}, l.paths.server
	if converting {
		ends = append(ends, l.Scenario.WithRole(scenario.RoleConverter)...)
		s.client.converters = l.paths.converters
		// For a server, a converter is a client, even if it is also a waypoint.
		peers = maps.Clone(peers)
		maps.DeleteFunc(peers, func(a netip.Addr, _ string) bool { return l.paths.converters[a] })
	}
	for _, name := range ends {
		noTunnels := func() ([]crew.TunnelEnd, error) { return nil, nil }
		end, err := openHostSockets(l.net.Host(name), peers, l.net.FirstAddr, noTunnels)
		if err != nil {
			return err
		}
		s.ends = append(s.ends, end)
	}
	return nil
}

// close closes the sockets that are open.
func (s *sampler) close() {
	if s.client != nil {
		s.client.close()
	}
	for _, end := range s.ends {
		end.close()
	}
}

func (s *sampler) loop(ctx context.Context) {
	ticker := time.NewTicker(sampleInterval)
	defer ticker.Stop()
	for i := 1; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.take(i%endsEvery == 0)
		}
	}
}

// take samples the client's sockets and, if ends is set, those of the other ends.
func (s *sampler) take(ends bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := time.Since(s.began)
	err := s.client.look()
	for _, end := range s.ends {
		if ends {
			err = errors.Join(err, end.look())
		}
	}
	now := sample{at: at, bytes: map[string]int64{}}
	for _, t := range s.client.sockets {
		now.bytes[t.path] += t.bytes
	}
	s.samples = append(s.samples, now)
	s.err = errors.Join(s.err, err)
}

// last returns the latest sample.
func (s *sampler) last() sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.samples[len(s.samples)-1]
}

// at returns the bytes that a path had carried at a moment, or all paths if path is empty. Between samples it
// interpolates.
func (s *sampler) at(path string, moment time.Duration) float64 {
	value := func(x sample) float64 {
		if path == "" {
			return float64(x.total())
		}
		return float64(x.bytes[path])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, x := range s.samples {
		if x.at < moment {
			continue
		}
		if i == 0 {
			return value(x)
		}
		before := s.samples[i-1]
		part := float64(moment-before.at) / float64(x.at-before.at)
		return value(before) + part*(value(x)-value(before))
	}
	return value(s.samples[len(s.samples)-1])
}

// use returns the bytes and the retransmissions of each path. It reads the sockets of all ends, because only the sender
// counts retransmissions.
func (s *sampler) use() []report.PathUse {
	var uses []report.PathUse
	for _, path := range s.paths {
		u := report.PathUse{Path: path, Bytes: s.last().bytes[path]}
		for _, t := range append([]*hostSockets{s.client}, s.ends...) {
			for _, socket := range t.sockets {
				if socket.path == path {
					u.Retransmitted += socket.retransmitted
				}
			}
		}
		if u.Bytes > 0 {
			uses = append(uses, u)
		}
	}
	return uses
}

// series returns the goodput over time up to end.
func (s *sampler) series(end time.Duration) report.Series {
	out := report.Series{StepSeconds: seriesStep.Seconds()}
	for _, path := range s.paths {
		if s.last().bytes[path] == 0 {
			continue
		}
		p := report.PathSeries{Path: path}
		for from := time.Duration(0); from+seriesStep <= end; from += seriesStep {
			carried := s.at(path, from+seriesStep) - s.at(path, from)
			p.Mbps = append(p.Mbps, max(carried, 0)*8/1e6/seriesStep.Seconds())
		}
		out.Paths = append(out.Paths, p)
	}
	return out
}

// longestStall returns the longest time without any data between the first byte and end. Its resolution is
// sampleInterval.
func (s *sampler) longestStall(end time.Duration) time.Duration {
	longest, since, carried := time.Duration(0), time.Duration(-1), int64(0)
	for _, x := range s.samples {
		if x.at > end {
			break
		}
		if total := x.total(); total > carried {
			carried, since = total, x.at
		} else if since >= 0 {
			longest = max(longest, x.at-since)
		}
	}
	return longest
}
