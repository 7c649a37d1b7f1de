package page

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/detour-collective/dcol/lab/report"
)

// Schema is the version of result.json. Fields are only ever added under the same
// version.
const Schema = "dcol.table/1"

// Table is result.json.
type Table struct {
	Schema       string             `json:"schema"`
	Name         string             `json:"name"`
	Description  string             `json:"description"`
	Started      time.Time          `json:"started"`
	Seconds      float64            `json:"seconds"`
	Environment  report.Environment `json:"environment"`
	Fidelity     report.Fidelity    `json:"fidelity"`
	Targets      []Target           `json:"targets"`
	Expectations []Expectation      `json:"expectations"`
	Rows         []Row              `json:"rows"`
}

// Expectation is what became of one of a scenario's expectations.
type Expectation struct {
	Network string `json:"network"`
	report.Expectation
}

func (b *book) expectations() []Expectation {
	expectations := []Expectation{}
	for _, part := range b.suite.Parts {
		for _, e := range part.Expectations {
			expectations = append(expectations, Expectation{part.Scenario, e})
		}
	}
	return expectations
}

func (b *book) rows() []Row {
	rows := []Row{}
	for _, n := range b.networks {
		rows = append(rows, n.rows...)
	}
	return rows
}

func (b *book) writeJSON(out *bytes.Buffer) error {
	s := b.suite
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(Table{
		Schema: Schema, Name: s.Name, Description: s.Description, Started: s.Started, Seconds: s.Seconds,
		Environment: s.Environment, Fidelity: s.Fidelity,
		Targets: b.targets(), Expectations: b.expectations(), Rows: b.rows(),
	})
}

// writeCSV writes the rows, with a column of bytes for each path that any of the
// networks has, and one for each axis of a sweep. What a row lacks is empty.
func (b *book) writeCSV(out *bytes.Buffer) error {
	var paths, axes []string
	for _, n := range b.networks {
		for _, path := range n.paths {
			paths = appendNew(paths, path)
		}
		for _, v := range n.variants {
			for _, c := range v.Coordinates {
				if c.Axis != lossAxis && c.Axis != delayAxis {
					axes = appendNew(axes, c.Axis)
				}
			}
		}
	}
	header := []string{
		"network", "variant", "loss_pct", "delay_ms", "procedure", "congestion_control", "n", "discarded", "failed",
		"mean", "sd", "median", "q1", "q3", "min", "max", "steady",
		"published_mean", "published_sd", "published_n", "published_congestion_control", "ratio",
		"completion_seconds", "longest_stall_ms", "retransmitted_segments",
		"latency_p50_ms", "latency_p90_ms", "latency_p95_ms", "latency_p99_ms", "latency_max_ms",
	}
	for _, path := range paths {
		header = append(header, "bytes_"+path)
	}
	header = append(header, axes...)
	w := csv.NewWriter(out)
	lines := [][]string{header}
	for _, r := range b.rows() {
		lines = append(lines, r.record(paths, axes))
	}
	return w.WriteAll(lines)
}

func (r Row) record(paths, axes []string) []string {
	line := []string{
		r.Network, r.Variant, number(r.LossPct), number(r.DelayMS), r.Procedure, r.Congestion,
		strconv.Itoa(r.N), strconv.Itoa(r.Discarded), strconv.Itoa(r.Failed),
	}
	for _, v := range []*float64{r.Mean, r.SD, r.Median, r.Q1, r.Q3, r.Min, r.Max, r.Steady, r.PublishedMean, r.PublishedSD} {
		line = append(line, number(v))
	}
	n, congestion := "", ""
	if r.PublishedMean != nil {
		n, congestion = strconv.Itoa(*r.PublishedN), *r.PublishedCongestion
	}
	line = append(line, n, congestion, number(r.Ratio))
	for _, v := range []float64{r.CompletionSeconds, r.LongestStallMS, r.Retransmitted} {
		if r.N == 0 {
			line = append(line, "")
			continue
		}
		line = append(line, number(&v))
	}
	latency := make([]*float64, 5)
	if l := r.Latency; l != nil {
		latency = []*float64{&l.P50MS, &l.P90MS, &l.P95MS, &l.P99MS, &l.MaxMS}
	}
	for _, v := range latency {
		line = append(line, number(v))
	}
	for _, path := range paths {
		if bytes, ok := r.BytesPerPath[path]; ok {
			line = append(line, number(&bytes))
			continue
		}
		line = append(line, "")
	}
	for _, axis := range axes {
		at := slices.IndexFunc(r.Coordinates, func(c report.Coordinate) bool { return c.Axis == axis })
		if at < 0 {
			line = append(line, "")
			continue
		}
		line = append(line, number(&r.Coordinates[at].Value))
	}
	return line
}

// number has six decimals at most.
func number(v *float64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(math.Round(*v*1e6)/1e6, 'f', -1, 64)
}
