// Package experiment turns a scenario into a running network and measures on
// it: it builds the hosts and links, starts agents, servers and workloads, and
// returns a report.Result. It also is the shell that lets a person look round
// such a network. Commands, benchmarks and the demo import it.
//
// A run goes through the files in this order: run.go (the plan), lab.go (the
// network), agent.go (the members), tunnels.go (their tunnels), workload.go with iperf.go, web.go and
// command.go (the traffic), sample.go (what the kernel counts meanwhile),
// timeline.go (what happens meanwhile), fidelity.go (whether it counts).
package experiment

import (
	"io"
	"log/slog"

	"github.com/detour-collective/dcol/lab/scenario"
)

// Options are what a caller may decide about an experiment.
type Options struct {
	// Program is the dcol executable that hosts run; the running one when empty.
	Program string
	// Out is the folder for logs, results and plots. It is made if need be.
	Out string
	// Repetitions, unless 0, replaces the scenario's.
	Repetitions int
	// Variants are the names of those to run; the base network when empty,
	// every one when it is "all".
	Variants []string
	// Procedures are the names of those to run; every one that is not optional
	// when empty, every one when it is "all".
	Procedures []string
	// Backend is the testbed's; empty lets it choose.
	Backend string
	// Stderr receives progress; nil for none.
	Stderr io.Writer
	Log    *slog.Logger

	// anyFidelity counts runs whatever the links did: tests must pass on a
	// machine too busy to measure.
	anyFidelity bool
}

// allVariants is the word for every variant.
const allVariants = "all"

func (o Options) variants(s *scenario.Scenario) []string {
	switch {
	case len(o.Variants) == 0:
		return []string{scenario.Base}
	case len(o.Variants) == 1 && o.Variants[0] == allVariants:
		return s.VariantNames()
	default:
		return o.Variants
	}
}
