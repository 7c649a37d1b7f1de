package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/units"
	"github.com/detour-collective/dcol/lab/browser"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/experiment"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/scenarios"
)

const (
	viewConnections = 1000
	viewOpening     = 10 * time.Second
	// viewFor is the time for which processor time is counted, without and with viewers.
	viewFor = 30 * time.Second
	// viewCores is the target for top and the page together.
	viewCores = 0.02
	paints    = 9
	// paintLimit is the target for the page's first paint, in milliseconds.
	paintLimit = 300
	upgrades   = 5
	// upgradeStall is the target for the longest stall of a download, in milliseconds.
	upgradeStall = 1000
)

// view measures the cost of looking at an agent, the stall that an upgrade causes, and the error of the time saved that
// the history shows.
func view(ctx context.Context, o Options) ([]Measurement, error) {
	found, err := looking(ctx, o)
	upgraded, upgradeErr := upgrading(ctx, o)
	saved, savedErr := savings(ctx, o)
	return append(append(found, upgraded...), saved...), errors.Join(err, upgradeErr, savedErr)
}

// looking makes dcol top and the page show an agent with very many connections. Each connection exchanges a line per second.
func looking(ctx context.Context, o Options) (found []Measurement, err error) {
	load := Load{Ports: connectionPorts, Rate: viewConnections / int(viewOpening.Seconds()), Duration: viewOpening,
		Hold: 4*viewFor + time.Minute, Active: viewConnections, Pulse: time.Second}
	s, agent, _, err := openLoaded(ctx, o, config.InBand, &load)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	client, err := s.Start(ctx, "client", "load", s.Part(LoadClientPart, load)...)
	if err != nil {
		return nil, err
	}
	defer client.Kill()
	err = agent.Await(ctx, time.Minute, func() error {
		status, err := s.Status(ctx, "client")
		if err == nil && (status.Client == nil || len(status.Client.Connections) < viewConnections) {
			err = errors.New("not all connections are there yet")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	alone, err := busy(ctx, agent.CPU)
	if err != nil {
		return nil, err
	}
	top, err := s.startTop(ctx)
	if err != nil {
		return nil, err
	}
	defer top.close()
	page, err := s.openPage(ctx, "client")
	if err != nil {
		return nil, err
	}
	defer page.close()
	painted, err := page.paints()
	if err != nil {
		return nil, err
	}
	watched, err := busy(ctx, agent.CPU, top.cpu)
	if err != nil {
		return nil, err
	}
	extra := watched[0] - alone[0]
	sum := once("view top and page, 1,000 connections", "cores", extra+watched[1]).
		target(fmt.Sprintf("<= %.2f", viewCores), extra+watched[1] <= viewCores)
	sum.Note = fmt.Sprintf("the agent for both %.4f cores more than the %.4f without viewers, dcol top %.4f; the browser is not counted", extra, alone[0], watched[1])
	paint := of("view first paint of the page", "ms", painted)
	return []Measurement{sum, paint.target(fmt.Sprintf("<= %d", paintLimit), paint.Value <= paintLimit)}, nil
}

// busy returns the processor time that each of some clocks shows for a while, in cores.
func busy(ctx context.Context, clocks ...func() (time.Duration, error)) ([]float64, error) {
	read := func() (list []time.Duration, err error) {
		for _, clock := range clocks {
			t, err := clock()
			if err != nil {
				return nil, err
			}
			list = append(list, t)
		}
		return list, nil
	}
	begin := time.Now()
	before, err := read()
	if err == nil {
		err = crew.Pause(ctx, viewFor)
	}
	if err != nil {
		return nil, err
	}
	after, err := read()
	if err != nil {
		return nil, err
	}
	cores := make([]float64, len(clocks))
	for i := range cores {
		cores[i] = (after[i] - before[i]).Seconds() / time.Since(begin).Seconds()
	}
	return cores, nil
}

// topView is dcol top in a terminal of tmux.
type topView struct {
	pid   int
	close func()
}

func (t topView) cpu() (time.Duration, error) { return crew.Clock(t.pid) }

func (s *network) startTop(ctx context.Context) (t topView, err error) {
	socket := filepath.Join(s.opts.Out, "tmux")
	tmux := func(argv ...string) ([]byte, error) {
		return s.Run(ctx, "client", append([]string{"tmux", "-S", socket, "-f", "/dev/null"}, argv...)...)
	}
	if _, err := tmux("new-session", "-d", "-x", "120", "-y", "40", s.Programs.DCol+" top"); err != nil {
		return t, err
	}
	t.close = func() { _, _ = tmux("kill-server") } // at the latest it ends with the network
	for range 100 {
		if t.pid, err = findProcess(s.Programs.DCol, "top"); err != nil || t.pid != 0 {
			return t, err
		}
		if err := crew.Pause(ctx, 100*time.Millisecond); err != nil {
			return t, err
		}
	}
	t.close()
	return t, errors.New("dcol top did not start")
}

// findProcess returns the process with a command line; 0: there is none.
func findProcess(argv ...string) (int, error) {
	parents, err := readParents()
	if err != nil {
		return 0, err
	}
	want := strings.Join(argv, "\x00") + "\x00"
	for pid := range parents {
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && string(line) == want {
			return pid, nil
		}
	}
	return 0, nil
}

// paints opens the page several times, and returns the times to its first contents in milliseconds.
func (p *pageView) paints() (times []float64, err error) {
	const painted = `performance.getEntriesByType('paint').find((p) => p.name === 'first-contentful-paint')?.startTime`
	for range paints {
		if err := p.browser.Open(p.address); err != nil {
			return nil, err
		}
		for _, condition := range []string{"document.readyState === 'complete'", painted, rowsShown} {
			if err := p.browser.Wait(condition, time.Minute); err != nil {
				return nil, err
			}
		}
		var ms float64
		if err := p.browser.Eval(painted, &ms); err != nil {
			return nil, err
		}
		times = append(times, ms)
	}
	return times, nil
}

// pageView is the page of an agent in Chromium.
type pageView struct {
	browser *browser.Browser
	address string
	close   func()
}

// upgrading restarts an agent in the middle of a download, as an upgrade of the package does: that of the client or of the
// waypoint. For comparison it restarts none.
func upgrading(ctx context.Context, o Options) (found []Measurement, err error) {
	hosts := []string{"", "client", "waypoint"}
	runs := make([][]report.Run, len(hosts))
	err = inTurns(upgrades, len(hosts), func(repetition, i int) error {
		run, err := download(ctx, o, hosts[i], fmt.Sprintf("upgrade-%d-%s", repetition, hosts[i]))
		if err == nil {
			runs[i] = append(runs[i], run)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	calm := of("", "ms", stalls(runs[0])).Value
	for i, host := range hosts[1:] {
		found = append(found, upgradeFigure(host, runs[i+1], calm))
	}
	return found, nil
}

// download downloads a file over two paths, and meanwhile restarts the agent of the host restart, if that is not empty.
// Each download has a network of its own, because a restarted agent ends with the run.
func download(ctx context.Context, o Options, restart, folder string) (run report.Run, err error) {
	s, err := scenarios.Open("two-paths")
	if err != nil {
		return run, err
	}
	s.Workload.Size = 16_000_000
	lab, err := experiment.Open(ctx, s, experiment.Options{Out: filepath.Join(o.Out, folder), Stderr: o.Stderr, Log: o.Log})
	if err != nil {
		return run, err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	base, _ := s.Variant(scenario.Base)
	procedure, _ := s.Procedure("dcol")
	order := experiment.Order{Variant: base, Procedure: procedure, Log: "run"}
	if restart != "" {
		order.Events = []scenario.Event{{At: units.Duration(2 * time.Second), Host: restart, Agent: scenario.RestartAgent}}
	}
	return lab.Execute(ctx, order)
}

func stalls(runs []report.Run) (list []float64) {
	for _, run := range runs {
		list = append(list, run.LongestStallMS)
	}
	return list
}

func upgradeFigure(host string, runs []report.Run, calm float64) Measurement {
	damaged := 0
	for _, run := range runs {
		if run.SHA256OK == nil || !*run.SHA256OK {
			damaged++
		}
	}
	longest := slices.Max(stalls(runs))
	m := of("view upgrade of the "+host+" in mid-download, longest stall", "ms", stalls(runs)).against(calm)
	m.Note = fmt.Sprintf("at most %.0f ms; %d of %d downloads were damaged; the baseline is the same download without an upgrade", longest, damaged, len(runs))
	return m.target(fmt.Sprintf("< %d each, no byte lost", upgradeStall), longest < upgradeStall && damaged == 0)
}
