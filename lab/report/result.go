// Package report defines the results of experiments (result.go) and suites (suite.go), with their versioned JSON. It
// summarizes runs and decides expectations (measured.go), writes tables (table.go), and declares the published numbers to
// compare with (reference.go). lab/experiment measures, and report/page makes the report of a suite.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/detour-collective/dcol/lab/chart"
	"github.com/detour-collective/dcol/lab/scenario"
)

// Schema is the version of the JSON form of a Result. Fields are only ever added under the same version.
const Schema = "dcol.lab/1"

// Result has the results of an experiment.
type Result struct {
	Schema       string        `json:"schema"`
	Scenario     string        `json:"scenario"`
	Description  string        `json:"description"`
	Started      time.Time     `json:"started"`
	Seconds      float64       `json:"seconds"`
	Environment  Environment   `json:"environment"`
	Paths        []string      `json:"paths"`
	Variants     []Variant     `json:"variants"`   // that were selected
	Procedures   []Procedure   `json:"procedures"` // that were selected
	Links        []Link        `json:"links"`      // of the network as declared, by direction
	Marks        []Mark        `json:"marks"`      // the events of each run
	Rows         []Row         `json:"rows"`
	Expectations []Expectation `json:"expectations"`
	Runs         []Run         `json:"runs"`
}

// Environment describes the machine and programs on which the results depend, in addition to the scenario.
type Environment struct {
	Kernel     string            `json:"kernel"`
	CPUs       int               `json:"cpus"`
	Backend    string            `json:"backend"`
	Congestion string            `json:"congestion_control"` // all that were used, with commas
	Seed       int64             `json:"seed"`
	Programs   map[string]string `json:"programs"` // name to version
}

// Link is one direction of a link as declared; variants change it.
type Link struct {
	Link       string  `json:"link"`
	From       string  `json:"from"`
	To         string  `json:"to"`
	RateMbps   float64 `json:"rate_mbps"` // 0: unlimited
	DelayMS    float64 `json:"delay_ms"`
	JitterMS   float64 `json:"jitter_ms"`
	LossPct    float64 `json:"loss_pct"`
	QueueBytes int     `json:"queue_bytes"`
}

// Variant is one of the scenario's networks. A sweep's variants have coordinates on a grid.
// Others have none, or those of the scenario's varied link.
type Variant struct {
	Name        string       `json:"name"`
	Description string       `json:"description"`
	Coordinates []Coordinate `json:"coordinates"`
}

// Procedure is a way to carry the traffic, in words.
type Procedure struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

// Coordinate is the position of a variant on one axis.
type Coordinate = scenario.Coordinate

// Row summarizes the valid runs of one procedure in one variant with one congestion control.
type Row struct {
	Variant    string `json:"variant"`
	Procedure  string `json:"procedure"`
	Congestion string `json:"congestion_control"`
	N          int    `json:"n"`
	// Discarded counts runs that were repeated because the emulation was inaccurate, or something else failed.
	Discarded int `json:"discarded"`
	// Failed counts runs in which dcol crashed, hung or corrupted data. They are neither repeated nor part of the
	// numbers below.
	Failed      int                `json:"failed"`
	GoodputMbps Distribution       `json:"goodput_mbps"`
	SteadyMbps  float64            `json:"steady_mbps,omitempty"` // median
	PathBytes   map[string]float64 `json:"path_bytes"`            // median over the runs
	// Medians over the runs, except LongestStallMS, which is the maximum.
	Retransmitted     float64 `json:"retransmitted_segments"`
	CompletionSeconds float64 `json:"completion_seconds"`
	LongestStallMS    float64 `json:"longest_stall_ms"`
	CPUShare          float64 `json:"cpu_share"`
	// Latency has the medians of the runs' percentiles, if they have any. Its Count is
	// the number of latencies in a run.
	Latency *Latency `json:"latency,omitempty"`
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

// Expectation is the verdict on an expectation of the scenario, in one variant with one congestion control. Left and
// Right are the sides of its comparison, if it is a comparison.
type Expectation struct {
	Description string   `json:"description"`
	Expression  string   `json:"expression"`
	Variant     string   `json:"variant"`
	Congestion  string   `json:"congestion_control"`
	Met         bool     `json:"met"`
	Left        *float64 `json:"left,omitempty"`
	Right       *float64 `json:"right,omitempty"`
	Error       string   `json:"error,omitempty"`
}

// Run is one execution of the workload.
type Run struct {
	Variant    string    `json:"variant"`
	Procedure  string    `json:"procedure"`
	Congestion string    `json:"congestion_control"` // of client and server
	Repetition int       `json:"repetition"`         // from 1
	Attempt    int       `json:"attempt"`            // from 1; more when earlier ones were discarded
	Started    time.Time `json:"started"`
	// Discarded is the reason why the run does not count; empty if it does.
	Discarded string `json:"discarded,omitempty"`
	// Cause is the same reason as one of a few words, for counts.
	Cause Cause `json:"discarded_for,omitempty"`

	// GoodputMbps is the program's bytes over time, both after the skip.
	GoodputMbps float64 `json:"goodput_mbps"`
	// SteadyMbps is the same without the first three seconds that count, in which programs also get
	// data that was held up before. It is 0 if iperf3 did not measure, or measured for less time.
	SteadyMbps float64 `json:"steady_mbps,omitempty"`
	// ReceivedMbps is the goodput of each second that counts, as the receiving iperf3 measured it.
	ReceivedMbps      []float64 `json:"received_mbps,omitempty"`
	Bytes             int64     `json:"bytes"`
	MeasuredSeconds   float64   `json:"measured_seconds"`
	CompletionSeconds float64   `json:"completion_seconds"` // the whole run
	LongestStallMS    float64   `json:"longest_stall_ms"`
	// SHA256OK reports whether the received file is identical to the one that was sent, if the workload has a file.
	SHA256OK *bool `json:"sha256_ok,omitempty"`
	// Latency is set if the workload consists of messages, requests or files.
	Latency *Latency `json:"latency,omitempty"`

	Paths    []PathUse `json:"paths"`
	Series   Series    `json:"series"`
	Links    []LinkUse `json:"links"`
	CPUShare float64   `json:"cpu_share"` // busy part of the machine's CPUs, 0..1
	// Networks is the average number of networks at a time.
	Networks float64 `json:"networks"`
	// ReferenceP99MS is the 99th percentile of the lateness of the reference flow's echoes: the delay of
	// ordinary programs by a busy machine.
	ReferenceP99MS float64 `json:"reference_lateness_p99_ms"`
	// Values are further measurements of a run of the battery, by name.
	Values map[string]float64 `json:"values,omitempty"`
	Log    string             `json:"log"` // folder with the programs' output
}

// Series is goodput over time, path by path: Mbit/s, averaged over each step.
type Series struct {
	StepSeconds float64      `json:"step_seconds"`
	Paths       []PathSeries `json:"paths"`
}

// PathSeries is one path's goodput over time.
type PathSeries = chart.Path

// Chart returns the plot of the series among all paths of the network.
func (s Series) Chart(among []string, marks []Mark) chart.Goodput {
	return chart.Goodput{StepSeconds: s.StepSeconds, Paths: s.Paths, Among: among, Marks: marks}
}

// Drawable reports whether the series has at least one step.
func (s Series) Drawable() bool { return len(s.Paths) > 0 && len(s.Paths[0].Mbps) > 0 }

// Mark is a moment to point out, such as the death of a waypoint.
type Mark = chart.Mark

// Cause is the reason why a run was discarded.
type Cause string

// The causes.
const (
	CauseLateLink      Cause = "link-late"      // a link delivered too much too late
	CauseEmulation     Cause = "link-lost"      // a link's emulation lost packets itself
	CauseLateReference Cause = "reference-late" // programs waited for a processor
	CauseFailure       Cause = "failed"         // a program failed, or the run took too long
	CauseProduct       Cause = "dcol-failed"    // the same, because of dcol; such a run is not repeated
)

// PathUse has the bytes that one path carried in a run.
type PathUse struct {
	Path          string `json:"path"` // "direct" or the waypoint's name
	Bytes         int64  `json:"bytes"`
	Retransmitted int64  `json:"retransmitted_segments"`
}

// LinkUse has the counters of one direction of a link in a run.
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
	// RadioJoules is the energy of the link's radio, which both directions use.
	RadioJoules float64 `json:"radio_joules,omitempty"`
}

// Valid reports whether the run counts.
func (r Run) Valid() bool { return r.Discarded == "" }

// Failed reports whether dcol failed in the run.
func (r Run) Failed() bool { return r.Cause == CauseProduct }

// Final reports whether the run is not repeated: it counts, or dcol failed in it.
func (r Run) Final() bool { return r.Valid() || r.Failed() }

// PathBytes returns the bytes that a path carried.
func (r Run) PathBytes(path string) int64 {
	for _, p := range r.Paths {
		if p.Path == path {
			return p.Bytes
		}
	}
	return 0
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
func (r *Result) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

func writeJSON(w io.Writer, what any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(what); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}
