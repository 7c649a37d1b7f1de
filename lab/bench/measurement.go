package bench

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"text/tabwriter"

	"github.com/detour-collective/dcol/lab/jsonfile"
	"github.com/detour-collective/dcol/lab/stats"
)

// Measurement is one figure, an element of out/bench/result.json.
type Measurement struct {
	Benchmark string  `json:"benchmark"`
	Name      string  `json:"name"`
	Value     float64 `json:"value"` // median over the repetitions
	Unit      string  `json:"unit"`
	// Baseline is a value from the same run to compare with, or nil if there is none.
	Baseline *float64 `json:"baseline"`
	Ratio    *float64 `json:"ratio"` // value over baseline
	// Interval, if not nil, is the 95 % confidence interval of the ratio.
	Interval *stats.Interval `json:"ratio_interval,omitempty"`
	Target   string          `json:"target"`
	Met      *bool           `json:"met"` // nil: reported without a target
	// Repetitions and Spread (interquartile range, in Unit) show how reliable the value is.
	Repetitions int     `json:"repetitions"`
	Spread      float64 `json:"spread"`
	Note        string  `json:"note,omitempty"`
}

// resultFile has the figures of all benchmarks that were run in a folder.
const resultFile = "result.json"

// record writes the figures into the file. They replace earlier figures of the same benchmarks. Figures of other
// benchmarks stay.
func record(path string, found []Measurement) error {
	before, err := read(path)
	if err != nil {
		return err
	}
	anew := map[string]bool{}
	for _, m := range found {
		anew[m.Benchmark] = true
	}
	all := append(slices.DeleteFunc(before, func(m Measurement) bool { return anew[m.Benchmark] }), found...)
	order := Names()
	slices.SortStableFunc(all, func(a, b Measurement) int {
		return slices.Index(order, a.Benchmark) - slices.Index(order, b.Benchmark)
	})
	if err := jsonfile.Write(path, all); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// read returns the figures in the file, or none if there is no file.
func read(path string) (all []Measurement, err error) {
	err = jsonfile.Read(path, &all)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the earlier result cannot be read; move it away: %w", err)
	}
	return slices.DeleteFunc(all, func(m Measurement) bool { return !slices.Contains(Names(), m.Benchmark) }), nil
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
			number(m.Baseline), m.ratio(), m.Target, met, m.Repetitions)
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

// ratio returns the ratio as text, with its interval.
func (m Measurement) ratio() string {
	if m.Interval == nil {
		return number(m.Ratio)
	}
	return fmt.Sprintf("%s [%.4g, %.4g]", number(m.Ratio), m.Interval.Low, m.Interval.High)
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

// percentile returns a measurement of a quantile of repeated times in milliseconds, with their spread.
func percentile(name string, values []float64, q float64) Measurement {
	m := of(name, "ms", values)
	m.Value = stats.Quantile(values, q)
	return m
}

// inTurns measures each of n things in each repetition. The order changes from one repetition to the next, so that
// temporary disturbances and effects of the order affect all alike.
func inTurns(repetitions, n int, measure func(repetition, i int) error) error {
	for r := range repetitions {
		for i := range n {
			if err := measure(r, (r+i)%n); err != nil {
				return err
			}
		}
	}
	return nil
}

// against adds a baseline, and the ratio to it.
func (m Measurement) against(baseline float64) Measurement {
	ratio := m.Value / baseline
	m.Baseline, m.Ratio = &baseline, &ratio
	return m
}

// target adds a target, and whether it was met.
func (m Measurement) target(text string, met bool) Measurement {
	m.Target, m.Met = text, &met
	return m
}
