package page

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math"
	"strconv"
	"time"

	"github.com/detour-collective/dcol/lab/report"
)

// Schema is the version of result.json. Fields are only ever added under the same
// version.
const Schema = "dcol.table/1"

// Table is the content of result.json.
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

// Expectation is the result of one of a scenario's expectations.
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

// writeCSV writes the rows, with a column of bytes for each path of any network, and a column for
// each axis of a sweep. Missing values are empty.
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
	lines := [][]string{header}
	for _, r := range b.rows() {
		line, err := r.record(header)
		if err != nil {
			return err
		}
		lines = append(lines, line)
	}
	return csv.NewWriter(out).WriteAll(lines)
}

// record returns the fields of the row's JSON that the header names.
func (r Row) record(header []string) ([]string, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	fields := map[string]any{}
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	if r.N == 0 {
		for _, name := range []string{"completion_seconds", "longest_stall_ms", "retransmitted_segments"} {
			delete(fields, name)
		}
	}
	for prefix, inner := range map[string]string{"latency_": "latency", "bytes_": "bytes_per_path"} {
		of, _ := fields[inner].(map[string]any)
		for name, value := range of {
			fields[prefix+name] = value
		}
	}
	for _, c := range r.Coordinates {
		if _, ok := fields[c.Axis]; !ok {
			fields[c.Axis] = c.Value
		}
	}
	line := make([]string, len(header))
	for i, name := range header {
		switch value := fields[name].(type) {
		case string:
			line[i] = value
		case float64:
			line[i] = number(&value)
		}
	}
	return line, nil
}

// number formats a number with at most six decimals.
func number(v *float64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(math.Round(*v*1e6)/1e6, 'f', -1, 64)
}
