package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/internal/trace/campaign/report"
	"github.com/detour-collective/dcol/lab/middlebox"
)

// Many destinations at a time: traceMany addresses of one server, behind traceManyRouters routers.
const (
	traceMany        = 1000
	traceManyRouters = 6
	traceManyMemory  = 100   // MiB
	traceManyRate    = 4_000 // packets per second, which the emulator carries on a busy machine, too
)

var traceManyNetwork = netip.MustParsePrefix("10.250.0.0/20")

// traceMemory measures the memory of a campaign of 1,000 destinations at a time.
func traceMemory(ctx context.Context, o Options) (found []Measurement, err error) {
	p, err := openTracePath(ctx, o, traceManyRouters, 5*time.Millisecond)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := p.addDestinations(ctx); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "dcol-bench-trace")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	list, out := filepath.Join(dir, "list"), filepath.Join(dir, "results.jsonl")
	var names strings.Builder
	address := traceManyNetwork.Addr()
	for range traceMany {
		address = address.Next()
		fmt.Fprintln(&names, address)
	}
	if err := os.WriteFile(list, []byte(names.String()), 0o644); err != nil {
		return nil, err
	}
	return p.campaign(ctx, list, out)
}

// campaign traces all destinations of a list at a time.
func (p *tracePath) campaign(ctx context.Context, list, out string) ([]Measurement, error) {
	cmd := p.Host("client").Command(ctx, p.dcol, "trace", "campaign", "--contact", "benchmark, root@example.org", "--out", out,
		"--parallel", fmt.Sprint(traceMany), "--rate", fmt.Sprint(traceManyRate), "--json", list)
	var said strings.Builder
	cmd.Stderr = &said
	start := time.Now()
	printed, err := cmd.Output()
	took := time.Since(start).Seconds()
	var figures report.Summary
	if err == nil {
		err = json.Unmarshal(printed, &figures)
	}
	if err != nil {
		return nil, fmt.Errorf("dcol trace campaign: %w: %s", err, said.String())
	}
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return nil, errors.New("the memory of a campaign is not known")
	}
	mib := float64(usage.Maxrss) / 1024
	answered := once(fmt.Sprintf("trace: destinations of %d at a time that answered", traceMany), "destinations", float64(figures.Answered)).
		target(fmt.Sprint(traceMany), figures.Answered == traceMany)
	_, answered.Note, _ = strings.Cut(strings.TrimSpace(said.String()), "\n") // about lost answers
	return []Measurement{
		once(fmt.Sprintf("trace: memory of a campaign, %d destinations at a time", traceMany), "MiB", mib).
			target(fmt.Sprintf("< %d", traceManyMemory), mib < traceManyMemory),
		answered,
		once(fmt.Sprintf("trace: a campaign of %d destinations", traceMany), "s", took),
	}, nil
}

// addDestinations gives the server all addresses of traceManyNetwork.
func (p *tracePath) addDestinations(ctx context.Context) error {
	to := traceManyNetwork.String()
	for i := 1; i <= traceManyRouters; i++ {
		next, link := routerName(i+1), fmt.Sprintf("l%d", i+1)
		if i == traceManyRouters {
			next, link = serverHost, "last"
		}
		via, _ := p.Host(next).AddrOn(link)
		if out, err := p.Host(routerName(i)).Command(ctx, "ip", "route", "add", to, "via", via.String()).CombinedOutput(); err != nil {
			return fmt.Errorf("route at %s: %w: %s", routerName(i), err, out)
		}
		if err := p.SetStation(routerName(i), "", middlebox.QuoteAll, ""); err != nil {
			return err
		}
	}
	first, _ := p.Host(routerName(1)).AddrOn("l1")
	for _, c := range [][]string{{"client", "ip", "route", "add", to, "via", first.String()}, {serverHost, "ip", "route", "add", "local", to, "dev", "lo"}} {
		if out, err := p.Host(c[0]).Command(ctx, c[1], c[2:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("route at %s: %w: %s", c[0], err, out)
		}
	}
	return nil
}
