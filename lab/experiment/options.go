package experiment

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/detour-collective/dcol/lab/programs"
	"github.com/detour-collective/dcol/lab/runner"
	"github.com/detour-collective/dcol/lab/scenario"
)

// Options configures an experiment.
type Options struct {
	// Programs are the programs that hosts run. If empty, they are found beside the running one.
	Programs programs.Pair
	// Out is the folder for logs, results and plots. It is created if it does not exist.
	Out string
	// Repetitions, unless 0, replaces the scenario's or the suite's.
	Repetitions int
	// Variants are the names of the variants to run. If empty, only the base network runs; if "all", all variants do.
	// For a suite, Variants, Procedures and Congestions select among its parts.
	Variants []string
	// Procedures are the names of the procedures to run. If empty, all procedures run that are not optional; if "all",
	// all do.
	Procedures []string
	// Congestions are the congestion controls to run with. If empty, the scenario's are used.
	Congestions []string
	// Backend is the testbed's backend. If empty, the testbed chooses.
	Backend string
	// Jobs is the number of networks at a time. 0 means one. runner.Automatic means as many as the machine can run
	// accurately.
	Jobs int
	// Resume keeps the recorded runs of the same experiment in the output folder, and makes only the missing ones.
	Resume bool
	// Stderr receives progress. If nil, no progress is shown.
	Stderr io.Writer
	Log    *slog.Logger
	// Capture, unless 0, makes tcpdump write the TCP packets of each run to CaptureFile beside the run's logs. It
	// captures this number of bytes of each packet, on the host of the client's agent.
	Capture int

	// anyFidelity also counts runs with inaccurate links, for tests on busy machines.
	anyFidelity bool
	// within is the folder for agents' output, below logs. It is created if necessary.
	within string
	// seed, unless 0, replaces the scenario's seed.
	seed uint64
	// reference, if not nil, runs during the measurements.
	reference *runner.Reference
}

// selection returns the selected part of the scenario or suite.
func (o Options) selection() scenario.Selection {
	return scenario.Selection{Variants: o.Variants, Procedures: o.Procedures, Congestions: o.Congestions, Repetitions: o.Repetitions}
}

// complete fills in defaults, checks everything that can be checked before a network is built, and creates the output
// folder.
func (o *Options) complete(s *scenario.Scenario, agents bool) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	if len(o.Variants) == 0 {
		o.Variants = []string{scenario.Base}
	}
	if o.Out == "" {
		return errors.New("an experiment needs a folder for its output")
	}
	out, err := filepath.Abs(o.Out)
	if err != nil {
		return fmt.Errorf("output folder: %w", err)
	}
	o.Out = out
	if agents {
		if err := checkAgents(s); err != nil {
			return err
		}
	}
	if o.Programs == (programs.Pair{}) && (agents || s.Workload.MadeByDCol()) {
		if o.Programs, err = programs.Find(); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(o.Out, "logs", o.within), 0o755); err != nil {
		return fmt.Errorf("output folder: %w", err)
	}
	if len(s.Procedures) > 0 && s.Workload.Kind == scenario.HTTP {
		if err := makeFiles(o.Out, s, o.Variants); err != nil {
			return fmt.Errorf("make the file to download: %w", err)
		}
	}
	return nil
}
