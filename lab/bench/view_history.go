package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/testbed"
)

const (
	// savingPairs is the number of pairs of downloads in each network, savingSize the bytes of each download.
	savingPairs = 5
	savingSize  = 30_000_000
	// savingError is the target: how far the estimates may be from the pairs' differences, as a share of them.
	savingError = 0.15
	// savingSettles is the time after a download until the history has all of it: it looks every three seconds.
	savingSettles = 5 * time.Second
)

// savingNetwork is a network in which the time saved is measured. Both paths end at a link of 50 Mbit/s, unless home says
// otherwise.
type savingNetwork struct {
	name           string
	home           int64 // rate of the client's link in bit/s
	direct, detour testbed.LinkParams
	atOnce         int // number of downloads at the same time
}

var savingNetworks = []savingNetwork{
	{"direct 8 Mbit/s, detour 12 Mbit/s", 50e6, testbed.LinkParams{Rate: 8e6, Delay: 10 * time.Millisecond, Loss: 0.001},
		testbed.LinkParams{Rate: 12e6, Delay: 12 * time.Millisecond}, 1},
	{"direct 8 Mbit/s with a long queue, detour 12 Mbit/s", 50e6, longQueue, testbed.LinkParams{Rate: 12e6, Delay: 12 * time.Millisecond}, 1},
	{"the same, two downloads at once", 50e6, longQueue, testbed.LinkParams{Rate: 12e6, Delay: 12 * time.Millisecond}, 2},
	{"direct 20 Mbit/s that loses 0.5 %, detour 8 Mbit/s", 50e6, testbed.LinkParams{Rate: 20e6, Delay: 10 * time.Millisecond, Loss: 0.005},
		testbed.LinkParams{Rate: 8e6, Delay: 12 * time.Millisecond}, 1},
	{sharedNetwork, 12e6, testbed.LinkParams{Rate: 50e6, Delay: 10 * time.Millisecond},
		testbed.LinkParams{Rate: 50e6, Delay: 12 * time.Millisecond}, 1},
}

// longQueue is a direct path whose queue holds 300 ms, three times as long as the detour's.
var longQueue = testbed.LinkParams{Rate: 8e6, Delay: 10 * time.Millisecond, Queue: 300_000}

// sharedNetwork has a bottleneck that both paths share, so that a detour saves nothing.
const sharedNetwork = "one bottleneck for both paths"

// saving is a pair of downloads, in seconds.
type saving struct {
	alone, with float64 // durations: plain TCP, and with dcol
	said        float64 // the time saved, as shown by dcol history
	low, high   float64 // its bounds
	unknown     float64 // the part of high for which only bounds are known, no estimate
}

// estimated reports whether the history has an estimate, and not only bounds.
func (p saving) estimated() bool { return p.unknown == 0 }

func (p saving) saved() float64 { return p.alone - p.with }

// savings compares the time saved that dcol history shows with what pairs of downloads show, one of them on the direct path
// alone.
func savings(ctx context.Context, o Options) (found []Measurement, err error) {
	for i, n := range savingNetworks {
		each := o
		each.Out = filepath.Join(o.Out, fmt.Sprintf("history-%d", i+1))
		if err := os.MkdirAll(each.Out, 0o755); err != nil {
			return found, fmt.Errorf("folder for logs: %w", err)
		}
		pairs, err := n.pairs(ctx, each)
		if err != nil {
			return found, fmt.Errorf("history, %s: %w", n.name, err)
		}
		found = append(found, n.figures(pairs)...)
	}
	return found, nil
}

func (n savingNetwork) open(ctx context.Context, o Options) (*network, error) {
	params := func(p testbed.LinkParams) (toServer, toClient testbed.LinkParams) {
		toServer = p
		toServer.Loss = 0
		return toServer, p
	}
	link := func(name, a, b string, p testbed.LinkParams, cost int) testbed.LinkSpec {
		there, back := params(p)
		return testbed.LinkSpec{Name: name, A: a, B: b, AtoB: there, BtoA: back, Cost: cost}
	}
	const farther = 10 // so that only detours go through the waypoint
	end := testbed.LinkParams{Rate: 50e6, Delay: 2 * time.Millisecond}
	home := end
	home.Rate = n.home
	return openNetwork(ctx, o, testbed.Spec{
		Seed: 1, Backend: testbed.BackendEmulator,
		Hosts: []testbed.HostSpec{{Name: clientHost}, {Name: serverHost}, {Name: "waypoint", Forward: true}, {Name: "west", Forward: true}, {Name: "east", Forward: true}},
		Links: []testbed.LinkSpec{
			link("home", clientHost, "west", home, 0), link("transit", "west", "east", n.direct, 0), link("site", "east", serverHost, end, 0),
			link("member-west", "west", "waypoint", n.detour, farther), link("member-east", "waypoint", "east", n.detour, farther),
		},
	}, []string{clientHost, "waypoint"})
}

func (n savingNetwork) pairs(ctx context.Context, o Options) (pairs []saving, err error) {
	s, err := n.open(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	kinds := []config.Kind{config.InBand}
	if _, err := s.startWaypoint(ctx, kinds, "waypoint", true); err != nil {
		return nil, err
	}
	if _, err := s.startClientWith(ctx, nil, kinds, clientHost, "waypoint"); err != nil {
		return nil, err
	}
	server, err := s.serveBytes(ctx)
	if err != nil {
		return nil, err
	}
	defer server.Close()
	pairs = make([]saving, savingPairs)
	err = inTurns(savingPairs, 2, func(repetition, i int) (err error) {
		p := &pairs[repetition]
		if i == 0 {
			p.alone, err = s.fetchAll(ctx, n.atOnce, false)
			return err
		}
		before, err := s.gained(ctx)
		if err != nil {
			return err
		}
		if p.with, err = s.fetchAll(ctx, n.atOnce, true); err != nil {
			return err
		}
		if err := crew.Pause(ctx, savingSettles); err != nil {
			return err
		}
		after, err := s.gained(ctx)
		p.said, p.low, p.high = after.Saved-before.Saved, after.SavedLow-before.SavedLow, after.SavedHigh-before.SavedHigh
		p.unknown = after.SavedUnknown - before.SavedUnknown
		return err
	})
	return pairs, err
}

// figures compares the sums of the estimates, and of their bounds, with the sum of the pairs' differences: single downloads
// differ by chance where packets are lost. Where detours save nothing, errors are shares of the downloads' duration.
func (n savingNetwork) figures(pairs []saving) (found []Measurement) {
	var wrong []float64
	var each []string
	var said, saved, whole, all, low, high, duration float64
	what := "the pairs' differences"
	for _, p := range pairs {
		of := p.saved()
		if n.name == sharedNetwork {
			of, what = p.with, "the downloads' duration"
		}
		all, low, high, duration = all+p.saved(), low+p.low, high+p.high, duration+of
		if !p.estimated() {
			each = append(each, fmt.Sprintf("nothing for %.1f s of %.0f s", p.saved(), p.alone))
			continue
		}
		off := (p.said - p.saved()) / of
		wrong = append(wrong, 100*math.Abs(off))
		each = append(each, fmt.Sprintf("%.1f for %.1f s of %.0f s (%+.0f %%)", p.said, p.saved(), p.alone, 100*off))
		said, saved, whole = said+p.said, saved+p.saved(), whole+of
	}
	name := "view history, " + n.name
	if len(wrong) > 0 {
		m := of(name+": error of the time saved", "%", wrong)
		m.Value = 100 * math.Abs(said-saved) / whole
		m.Note = fmt.Sprintf("in all %.1f s for %.1f s, as a share of %s; the history says %s", said, saved, what, strings.Join(each, ", "))
		found = append(found, m.target(fmt.Sprintf("<= %.0f %%", 100*savingError), m.Value <= 100*savingError))
	}
	truth := max(all, 0)
	outside := 100 * max(low-truth, truth-high, 0) / duration
	m := once(name+": beyond the bounds of the time saved", "%", outside).target("0 %", outside == 0)
	m.Note = fmt.Sprintf("%.1f s were saved in all, and the bounds are %.1f and %.1f s; %d of %d downloads have an estimate", all, low, high, len(wrong), len(pairs))
	return append(found, m)
}

// serveBytes makes the server send savingSize bytes on each connection.
func (s *network) serveBytes(ctx context.Context) (net.Listener, error) {
	l, err := testbed.On(s.Host(serverHost), func() (net.Listener, error) {
		return (&net.ListenConfig{}).Listen(ctx, "tcp4", netip.AddrPortFrom(netip.IPv4Unspecified(), transferPort).String())
	})
	if err != nil {
		return nil, fmt.Errorf("serve downloads: %w", err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // it was closed
			}
			go func() {
				defer conn.Close()
				_, _ = io.CopyN(conn, nothing{}, savingSize) // the client sees what is missing
			}()
		}
	}()
	return l, nil
}

// nothing reads as zeros without end.
type nothing struct{}

func (nothing) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// fetchAll downloads several times at once. It returns how long it took until all had ended, in seconds.
func (s *network) fetchAll(ctx context.Context, atOnce int, multipath bool) (seconds float64, err error) {
	took := make([]float64, atOnce)
	each, ctx := errgroup.WithContext(ctx)
	for i := range took {
		each.Go(func() (err error) {
			took[i], err = s.fetch(ctx, multipath)
			return err
		})
	}
	err = each.Wait()
	return slices.Max(took), err
}

// fetch downloads from the server, and returns how long it took in seconds.
func (s *network) fetch(ctx context.Context, multipath bool) (seconds float64, err error) {
	began := time.Now()
	conn, err := s.dial(ctx, clientHost, netip.AddrPort{}, netip.AddrPortFrom(s.Host(serverHost).Addr4(), transferPort), multipath)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(began.Add(5 * time.Minute)); err != nil {
		return 0, err
	}
	n, err := io.Copy(io.Discard, conn)
	if err == nil && n != savingSize {
		err = fmt.Errorf("%d of %d bytes arrived", n, savingSize)
	}
	if err != nil {
		return 0, fmt.Errorf("download: %w", err)
	}
	return time.Since(began).Seconds(), nil
}

// gained returns what detours have gained until now, as the client's history says.
func (s *network) gained(ctx context.Context) (api.Gained, error) {
	out, err := s.DCol(ctx, clientHost, "history", "--by", "hour", "--json")
	if err != nil {
		return api.Gained{}, err
	}
	var h api.History
	if err := json.Unmarshal(out, &h); err != nil {
		return api.Gained{}, fmt.Errorf("read what `dcol history` printed: %w", err)
	}
	return h.Total.Gained, nil
}
