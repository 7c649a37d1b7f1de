// Package bench measures how good dcol is, as ratios within one run, and says
// whether each figure reaches its target. Each file holds one benchmark. None
// of this is part of the tests: numbers depend on the machine, tests must not.
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/detour-collective/dcol/lab/programs"
	"github.com/detour-collective/dcol/lab/stats"
)

// Measurement is one figure, an element of out/bench/result.json.
type Measurement struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"` // median over the repetitions
	Unit  string  `json:"unit"`
	// Baseline is what it is compared with, measured in the same run; nil where
	// the figure stands for itself.
	Baseline *float64 `json:"baseline"`
	Ratio    *float64 `json:"ratio"` // value over baseline
	Target   string   `json:"target"`
	Met      *bool    `json:"met"` // nil: reported without a target
	// Repetitions and Spread (interquartile range, in Unit) say how sure it is.
	Repetitions int     `json:"repetitions"`
	Spread      float64 `json:"spread"`
	Note        string  `json:"note,omitempty"`
}

// Options say where things go.
type Options struct {
	Out      string        // folder for the result and logs
	Programs programs.Pair // that hosts run
	Members  int           // of the benchmark collective
	Stdout   io.Writer
	Stderr   io.Writer
	Log      *slog.Logger
}

// benchmark is one of them by name.
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
		{"wire", "the emulated link against what was asked of it", wire},
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

// Run runs the benchmarks named, or all. One that fails does not keep the
// others from running.
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
		all = append(all, found...)
		if err != nil {
			errs = append(errs, fmt.Errorf("bench %s: %w", b.name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(append(errs, write(all, o))...)
}

func write(all []Measurement, o Options) error {
	if len(all) == 0 {
		return nil
	}
	data, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	if err := os.WriteFile(filepath.Join(o.Out, "result.json"), append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return table(o.Stdout, all)
}

func table(w io.Writer, all []Measurement) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FIGURE\tVALUE\tSPREAD\tBASELINE\tRATIO\tTARGET\tMET\tREPETITIONS")
	for _, m := range all {
		met := "-"
		if m.Met != nil {
			met = map[bool]string{true: "yes", false: "NO"}[*m.Met]
		}
		fmt.Fprintf(t, "%s\t%s %s\t%s\t%s\t%s\t%s\t%s\t%d\n", m.Name, number(&m.Value), m.Unit, number(&m.Spread),
			number(m.Baseline), number(m.Ratio), m.Target, met, m.Repetitions)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	for _, m := range all {
		if m.Note != "" {
			fmt.Fprintf(w, "%s: %s\n", m.Name, m.Note)
		}
	}
	return nil
}

func number(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.4g", *v)
}

// of makes a measurement of repeated values.
func of(name, unit string, values []float64) Measurement {
	s := stats.Summarize(values)
	return Measurement{Name: name, Unit: unit, Value: s.Median, Spread: s.Q3 - s.Q1, Repetitions: s.N}
}

// once makes a measurement of a value that was measured once.
func once(name, unit string, value float64) Measurement {
	return of(name, unit, []float64{value})
}

// percentile makes a measurement of a quantile of repeated values; their spread
// is that of the values.
func percentile(name, unit string, values []float64, q float64) Measurement {
	m := of(name, unit, values)
	m.Value = stats.Quantile(values, q)
	return m
}

// against adds what it is compared with.
func (m Measurement) against(baseline float64) Measurement {
	ratio := m.Value / baseline
	m.Baseline, m.Ratio = &baseline, &ratio
	return m
}

// target adds whether it is good enough.
func (m Measurement) target(text string, met bool) Measurement {
	m.Target, m.Met = text, &met
	return m
}
