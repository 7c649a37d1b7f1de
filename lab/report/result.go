// Package report is what comes out of an experiment: the Result with its
// versioned JSON, the table a person reads, and the plots. It computes and
// draws; lab/experiment measures. The demo and the benchmarks use the plots.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/detour-collective/dcol/lab/report/stats"
	"github.com/detour-collective/dcol/lab/scenario"
)

// Schema is the version of the JSON form of a Result. Fields are only ever
// added under the same version.
const Schema = "dcol.lab/1"

// Result is everything an experiment found.
type Result struct {
	Schema       string        `json:"schema"`
	Scenario     string        `json:"scenario"`
	Description  string        `json:"description"`
	Started      time.Time     `json:"started"`
	Seconds      float64       `json:"seconds"`
	Environment  Environment   `json:"environment"`
	Paths        []string      `json:"paths"`
	Rows         []Row         `json:"rows"`
	Expectations []Expectation `json:"expectations"`
	Runs         []Run         `json:"runs"`
}

// Environment is what the numbers depend on besides the scenario.
type Environment struct {
	Kernel     string            `json:"kernel"`
	CPUs       int               `json:"cpus"`
	Backend    string            `json:"backend"`
	Congestion string            `json:"congestion_control"`
	Seed       int64             `json:"seed"`
	Programs   map[string]string `json:"programs"` // name to version
}

// Row sums up the valid runs of one procedure in one variant.
type Row struct {
	Variant   string `json:"variant"`
	Procedure string `json:"procedure"`
	N         int    `json:"n"`
	// Discarded counts runs that were repeated because the emulation was not
	// true to its parameters, or something else went wrong.
	Discarded   int                `json:"discarded"`
	GoodputMbps Distribution       `json:"goodput_mbps"`
	PathBytes   map[string]float64 `json:"path_bytes"` // median over the runs
	// Medians over the runs, but of the stall the longest.
	Retransmitted     float64 `json:"retransmitted_segments"`
	CompletionSeconds float64 `json:"completion_seconds"`
	LongestStallMS    float64 `json:"longest_stall_ms"`
	CPUShare          float64 `json:"cpu_share"`
}

// Distribution describes a sample.
type Distribution struct {
	Mean   float64 `json:"mean"`
	SD     float64 `json:"sd"`
	Min    float64 `json:"min"`
	Q1     float64 `json:"q1"`
	Median float64 `json:"median"`
	Q3     float64 `json:"q3"`
	Max    float64 `json:"max"`
}

// Expectation is what became of one of the scenario's, in one variant. Left
// and Right are the sides of its comparison, where it is one.
type Expectation struct {
	Description string   `json:"description"`
	Expression  string   `json:"expression"`
	Variant     string   `json:"variant"`
	Met         bool     `json:"met"`
	Left        *float64 `json:"left,omitempty"`
	Right       *float64 `json:"right,omitempty"`
	Error       string   `json:"error,omitempty"`
}

// Run is one execution of the workload.
type Run struct {
	Variant    string    `json:"variant"`
	Procedure  string    `json:"procedure"`
	Repetition int       `json:"repetition"` // from 1
	Attempt    int       `json:"attempt"`    // from 1; more when earlier ones were discarded
	Started    time.Time `json:"started"`
	// Discarded is why the run does not count; empty when it does.
	Discarded string `json:"discarded,omitempty"`

	// GoodputMbps is the program's bytes over time, both after the skip.
	GoodputMbps       float64 `json:"goodput_mbps"`
	Bytes             int64   `json:"bytes"`
	MeasuredSeconds   float64 `json:"measured_seconds"`
	CompletionSeconds float64 `json:"completion_seconds"` // the whole run
	LongestStallMS    float64 `json:"longest_stall_ms"`
	// SHA256OK tells whether what arrived is what was sent, where a workload
	// has a file to compare.
	SHA256OK *bool `json:"sha256_ok,omitempty"`

	Paths    []PathUse `json:"paths"`
	Series   Series    `json:"series"`
	Links    []LinkUse `json:"links"`
	CPUShare float64   `json:"cpu_share"` // busy part of the machine's CPUs, 0..1
	// Networks is how many there were at a time, on average.
	Networks float64 `json:"networks"`
	// ReferenceP99MS is how late the 99th percentile of the reference flow's echoes
	// was: what the machine's business cost ordinary programs.
	ReferenceP99MS float64 `json:"reference_lateness_p99_ms"`
	Log            string  `json:"log"` // folder with the programs' output
}

// PathUse is what one path carried in a run.
type PathUse struct {
	Path          string `json:"path"` // "direct" or the waypoint's name
	Bytes         int64  `json:"bytes"`
	Retransmitted int64  `json:"retransmitted_segments"`
}

// LinkUse is what one direction of a link did in a run.
type LinkUse struct {
	Link           string  `json:"link"`
	From           string  `json:"from"`
	To             string  `json:"to"`
	Packets        uint64  `json:"packets"`
	Bytes          uint64  `json:"bytes"`
	QueueDrops     uint64  `json:"queue_drops"`
	LossDrops      uint64  `json:"loss_drops"`
	DownDrops      uint64  `json:"down_drops"`
	LatenessP99MS  float64 `json:"lateness_p99_ms"`
	LatenessMaxMS  float64 `json:"lateness_max_ms"`
	EmulationDrops uint64  `json:"emulation_drops"` // lost by the emulation itself
}

// Valid reports whether the run counts.
func (r Run) Valid() bool { return r.Discarded == "" }

// PathBytes is what the path carried.
func (r Run) PathBytes(path string) int64 {
	for _, p := range r.Paths {
		if p.Path == path {
			return p.Bytes
		}
	}
	return 0
}

// valid are the runs of a procedure in a variant that count.
func (r *Result) valid(variant, procedure string) []Run {
	var runs []Run
	for _, run := range r.Runs {
		if run.Valid() && run.Variant == variant && run.Procedure == procedure {
			runs = append(runs, run)
		}
	}
	return runs
}

func (r *Result) each(variant, procedure string, value func(Run) float64) []float64 {
	var values []float64
	for _, run := range r.valid(variant, procedure) {
		values = append(values, value(run))
	}
	return values
}

// Goodput implements scenario.Measurements.
func (r *Result) Goodput(variant, procedure string) []float64 {
	return r.each(variant, procedure, func(run Run) float64 { return run.GoodputMbps })
}

// Share implements scenario.Measurements.
func (r *Result) Share(variant, procedure, path string) []float64 {
	return r.each(variant, procedure, func(run Run) float64 {
		total := int64(0)
		for _, p := range run.Paths {
			total += p.Bytes
		}
		return float64(run.PathBytes(path)) / float64(max(total, 1))
	})
}

// Stall implements scenario.Measurements.
func (r *Result) Stall(variant, procedure string) []float64 {
	return r.each(variant, procedure, func(run Run) float64 { return run.LongestStallMS })
}

// Retransmitted implements scenario.Measurements.
func (r *Result) Retransmitted(variant, procedure string) []float64 {
	return r.each(variant, procedure, func(run Run) float64 {
		total := int64(0)
		for _, p := range run.Paths {
			total += p.Retransmitted
		}
		return float64(total)
	})
}

// Completion implements scenario.Measurements.
func (r *Result) Completion(variant, procedure string) []float64 {
	return r.each(variant, procedure, func(run Run) float64 { return run.CompletionSeconds })
}

// Summarize fills in the rows and decides the expectations from the runs, for
// the variants and procedures given. What is expected of other procedures too is
// left out.
func (r *Result) Summarize(variants, procedures []string, expects []scenario.Expectation) {
	r.Rows, r.Expectations = []Row{}, []Expectation{}
	for _, v := range variants {
		for _, p := range procedures {
			r.Rows = append(r.Rows, r.row(v, p))
		}
	}
	for _, v := range variants {
		for _, e := range expects {
			if e.About(v, procedures) {
				r.Expectations = append(r.Expectations, decide(e, r, v))
			}
		}
	}
}

func decide(e scenario.Expectation, m scenario.Measurements, variant string) Expectation {
	verdict := e.Evaluate(m, variant)
	decided := Expectation{
		Description: e.Description, Expression: e.That, Variant: variant,
		Met: verdict.Met, Left: verdict.Left, Right: verdict.Right,
	}
	if verdict.Err != nil {
		decided.Error = verdict.Err.Error()
	}
	return decided
}

func (r *Result) row(variant, procedure string) Row {
	row := Row{Variant: variant, Procedure: procedure, PathBytes: map[string]float64{}}
	runs := r.valid(variant, procedure)
	for _, run := range r.Runs {
		if run.Variant == variant && run.Procedure == procedure && !run.Valid() {
			row.Discarded++
		}
	}
	row.N = len(runs)
	if row.N == 0 {
		return row
	}
	s := stats.Summarize(r.Goodput(variant, procedure))
	row.GoodputMbps = Distribution{Mean: s.Mean, SD: s.SD, Min: s.Min, Q1: s.Q1, Median: s.Median, Q3: s.Q3, Max: s.Max}
	for _, path := range r.Paths {
		bytes := stats.Median(r.each(variant, procedure, func(run Run) float64 { return float64(run.PathBytes(path)) }))
		if bytes > 0 {
			row.PathBytes[path] = bytes
		}
	}
	row.Retransmitted = stats.Median(r.Retransmitted(variant, procedure))
	row.CompletionSeconds = stats.Median(r.Completion(variant, procedure))
	row.LongestStallMS = stats.Summarize(r.Stall(variant, procedure)).Max
	row.CPUShare = stats.Median(r.each(variant, procedure, func(run Run) float64 { return run.CPUShare }))
	return row
}

// Row returns the row of a procedure in a variant.
func (r *Result) Row(variant, procedure string) (Row, bool) {
	for _, row := range r.Rows {
		if row.Variant == variant && row.Procedure == procedure {
			return row, true
		}
	}
	return Row{}, false
}

// Met reports whether every expectation is met.
func (r *Result) Met() bool {
	for _, e := range r.Expectations {
		if !e.Met {
			return false
		}
	}
	return true
}

// WriteJSON writes the result in its versioned form.
func (r *Result) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}
