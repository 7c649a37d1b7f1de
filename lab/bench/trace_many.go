package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/lab/middlebox"
)

// Many destinations at a time: traceMany addresses of one server, behind traceManyRouters routers.
const (
	traceMany        = 1000
	traceManyRouters = 6
	traceManyMemory  = 100 // MiB
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
	cmd := p.Host("client").Command(ctx, p.dcol, "trace", "campaign", "--contact", "benchmark, root@example.org", "--out", out,
		"--parallel", fmt.Sprint(traceMany), "--rate", "10000", list)
	start := time.Now()
	said, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("dcol trace campaign: %w: %s", err, said)
	}
	took := time.Since(start).Seconds()
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return nil, errors.New("the memory of a campaign is not known")
	}
	mib := float64(usage.Maxrss) / 1024
	m := once(fmt.Sprintf("trace: memory of a campaign, %d destinations at a time", traceMany), "MiB", mib).
		target(fmt.Sprintf("< %d", traceManyMemory), mib < traceManyMemory)
	m.Note, _, _ = strings.Cut(string(said[strings.LastIndex(string(said), "destinations:")-5:]), "\n")
	return []Measurement{m, once(fmt.Sprintf("trace: a campaign of %d destinations", traceMany), "s", took)}, nil
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
