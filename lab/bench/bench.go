// Package bench measures dcol's performance, as ratios within one run, and compares each figure with its
// target. Each file has one benchmark. Tests do not use it: numbers depend on the machine, and tests must
// not.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/lab/programs"
)

// Options configures the benchmarks' output.
type Options struct {
	Out      string        // folder for the result and logs
	Programs programs.Pair // that hosts run
	Members  int           // of the benchmark collective
	// Repetitions is the number of times that the benchmarks convert, selection and transport measure each figure; 0: their
	// default.
	Repetitions int
	// HAProxy is the program that convert compares the engine with.
	HAProxy string
	// Places is a regular expression: the benchmark selection measures the places whose names match, and transport the parts.
	// Messages is how many messages or requests selection measures in each place.
	Places   string
	Messages int
	Stdout   io.Writer
	Stderr   io.Writer
	Log      *slog.Logger
}

// benchmark is a benchmark with its name.
type benchmark struct {
	name  string
	about string
	run   func(context.Context, Options) ([]Measurement, error)
}

func benchmarks() []benchmark {
	return []benchmark{
		{"aggregate", "goodput against the sum of the paths, and what MPTCP costs", aggregate},
		{"join", "time from a connection to its second subflow", join},
		{"joins", "joins a waypoint sends on in a second", acceptedJoins},
		{"connections", "2,000 new connections per second, 10,000 alive", connections},
		{"forwarding", "what a waypoint costs, by kind of detour, beside plain forwarding", forwarding},
		{"mappings", "100,000 mappings on one waypoint, and the way of 2017", mappings},
		{"collective", "one coordinator with very many members: joins, memory, an expulsion", collectives},
		{"convert", "dcol's engine for servers without MPTCP, beside forwarding, io.Copy and HAProxy", convert},
		{"selection", "how well detours are chosen, beside plain TCP and the best fixed choice", selection},
		{"transport", "what dcol changes about TCP: options, congestion controls, initial windows, fairness", transport},
		{"cflb", "paths chosen by ports: probes, misses, load, beside scamper", pathsByPorts},
		{"trace", "dcol trace: what it finds and how fast, beside other programs", traces},
		{"view", "what dcol top and the page cost, the page's first paint, an upgrade in mid-download, the history's time saved", view},
		{"analyse", "dcol analyse on generated captures, beside tshark", analyseTraffic},
		{"wire", "the emulated link against what was asked of it", emulator},
	}
}

// Names lists the benchmarks.
func Names() []string {
	var names []string
	for _, b := range benchmarks() {
		names = append(names, b.name)
	}
	return names
}

// Run runs the named benchmarks, or all. If one fails, the others still run.
func Run(ctx context.Context, names []string, o Options) error {
	for _, n := range names {
		if !slices.Contains(Names(), n) {
			return fmt.Errorf("there is no benchmark %q; there are %s", n, strings.Join(Names(), ", "))
		}
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return fmt.Errorf("output folder: %w", err)
	}
	var all []Measurement
	var errs []error
	for _, b := range benchmarks() {
		if len(names) > 0 && !slices.Contains(names, b.name) {
			continue
		}
		fmt.Fprintf(o.Stderr, "bench %s: %s\n", b.name, b.about)
		each := o
		each.Out = filepath.Join(o.Out, b.name)
		if err := os.MkdirAll(each.Out, 0o755); err != nil {
			return fmt.Errorf("output folder: %w", err)
		}
		found, err := b.run(ctx, each)
		for i := range found {
			found[i].Benchmark = b.name
		}
		all = append(all, found...)
		if err != nil {
			errs = append(errs, fmt.Errorf("bench %s: %w", b.name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	if len(all) > 0 {
		errs = append(errs, record(filepath.Join(o.Out, resultFile), all), table(o.Stdout, all))
	}
	return errors.Join(errs...)
}
