package experiment

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

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
	// Jobs is how many networks there are at a time; one if 0, and with Automatic as
	// many as the machine bears.
	Jobs int
	// Resume has runs that the output folder has from the same experiment not made
	// again.
	Resume bool
	// Stderr receives progress; nil for none.
	Stderr io.Writer
	Log    *slog.Logger

	// anyFidelity counts runs whatever the links did: tests must pass on a
	// machine too busy to measure.
	anyFidelity bool
	// within is the folder, below logs, for what agents say; it is made if need be.
	within string
	// luck, unless 0, is in place of the scenario's seed.
	luck uint64
	// reference, if there is one, runs beside what is measured.
	reference *reference
}

// Automatic as the number of jobs has it follow from how the runs go.
const Automatic = -1

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

// complete fills in what was left open, checks all that can be checked before
// anything is built, and makes the output folder.
func (o *Options) complete(s *scenario.Scenario, agents bool) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	if o.Out == "" {
		return errors.New("an experiment needs a folder for its output")
	}
	out, err := filepath.Abs(o.Out)
	if err != nil {
		return fmt.Errorf("output folder: %w", err)
	}
	o.Out = out
	if o.Program == "" && (agents || s.Workload.MadeByDCol()) {
		if o.Program, err = os.Executable(); err != nil {
			return fmt.Errorf("find the dcol program: %w", err)
		}
	}
	for _, v := range o.variants(s) {
		if _, ok := s.Variant(v); !ok {
			return fmt.Errorf("scenario %s has no variant %q; it has %s", s.Name, v, strings.Join(s.VariantNames(), ", "))
		}
	}
	if agents {
		if err := checkAgents(s); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(o.Out, "logs", o.within), 0o755); err != nil {
		return fmt.Errorf("output folder: %w", err)
	}
	if len(s.Procedures) > 0 && s.Workload.Kind == scenario.HTTP {
		if err := makeFiles(o.Out, s, o.variants(s)); err != nil {
			return fmt.Errorf("make the file to download: %w", err)
		}
	}
	return nil
}
