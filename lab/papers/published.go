// Package papers has what is said about the evaluation of DCol in 2017, to be laid beside
// a repetition of it: Tables 1 and 2 of S. Brennan, "Exploring Alternative Routes Using
// Multipath TCP", MSc thesis, Case Western Reserve University, 2017 (appendix "Data"), as
// they stand there, what a repetition is to show, and why it differs. lab/experiment gives
// it to the report.
//
// The kernel was the out-of-tree MPTCP v0.91, whose MPTCP connections used the
// coupled congestion control LIA and whose plain TCP used CUBIC (5.1.3, 5.1.4).
// Throughput is that of iperf3 uploads of 10 s, of which the first second and
// what came after the tenth did not count. "Delay" is the one-way delay of link
// 2, 5 ms where nothing else is said.
package papers

import (
	"bytes"
	_ "embed"
	"encoding/csv"
	"fmt"
	"html/template"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/detour-collective/dcol/lab/report"
)

//go:embed table1.csv
var table1 []byte

//go:embed table2.csv
var table2 []byte

//go:embed targets.toml
var targets []byte

//go:embed notes.html
var notes string

// Tables are both tables, and what a repetition is to show. They are a report.Reference.
type Tables struct {
	throughput map[key]report.Throughput
	splits     map[key]report.Split
	goals      []report.Goal
}

type key struct {
	report.Setting
	procedure string
}

// columns are the names of Table 1's columns by the procedures' names in the
// lab's scenarios.
func columns() map[string]string {
	return map[string]string{
		"mptcp-1":      "subflow1",
		"dcol":         "nat",
		"dcol-openvpn": "vpn",
		"tcp":          "tcp",
		"tcp-detour":   "tcp_nat",
		"tcp-openvpn":  "tcp_vpn",
	}
}

// Load reads the tables.
func Load() (*Tables, error) {
	t := &Tables{throughput: map[key]report.Throughput{}, splits: map[key]report.Split{}}
	if err := each(table1, t.addThroughput); err != nil {
		return nil, fmt.Errorf("read the published Table 1: %w", err)
	}
	if err := each(table2, t.addSplit); err != nil {
		return nil, fmt.Errorf("read the published Table 2: %w", err)
	}
	var file struct {
		Target []report.Goal `toml:"target"`
	}
	if err := toml.NewDecoder(bytes.NewReader(targets)).DisallowUnknownFields().Decode(&file); err != nil {
		return nil, fmt.Errorf("read the targets: %w", err)
	}
	t.goals = file.Target
	return t, nil
}

// Goals returns what a repetition is to show.
func (t *Tables) Goals() []report.Goal { return t.goals }

// Notes returns what is known about where a repetition differs, and why.
func (t *Tables) Notes() template.HTML { return template.HTML(notes) }

// Throughput looks a cell of Table 1 up by the procedure's name in the lab's
// scenarios. It reports false for what was not measured in 2017.
func (t *Tables) Throughput(s report.Setting, procedure string) (report.Throughput, bool) {
	v, ok := t.throughput[key{s, procedure}]
	return v, ok
}

// Split looks a row of Table 2 up.
func (t *Tables) Split(s report.Setting, procedure string) (report.Split, bool) {
	v, ok := t.splits[key{s, procedure}]
	return v, ok
}

func (t *Tables) addThroughput(r record) error {
	setting := report.Setting{Network: r.text("network"), LossPct: r.number("loss_pct"), DelayMS: r.number("link2_delay_ms")}
	for procedure, column := range columns() {
		congestion := "lia"
		if strings.HasPrefix(procedure, "tcp") {
			congestion = "cubic"
		}
		t.throughput[key{setting, procedure}] = report.Throughput{
			MeanMbps: r.number(column + "_mean"), SDMbps: r.number(column + "_sd"),
			Trials: int(r.number("trials")), Congestion: congestion,
		}
	}
	return *r.err
}

// addSplit reads a configuration such as "core-limited lossy nat". Lossy is 1 %
// on link 2, delayed 100 ms there (5.1.3).
func (t *Tables) addSplit(r record) error {
	words := strings.Fields(r.text("configuration"))
	if len(words) < 2 {
		return fmt.Errorf("%q is not a configuration", r.text("configuration"))
	}
	setting := report.Setting{Network: words[0], DelayMS: 5}
	for _, word := range words[1 : len(words)-1] {
		switch word {
		case "lossy":
			setting.LossPct = 1
		case "delayed":
			setting.DelayMS = 100
		default:
			return fmt.Errorf("%q is not a condition of link 2", word)
		}
	}
	procedure := ""
	for name, column := range columns() {
		if column == words[len(words)-1] {
			procedure = name
		}
	}
	if procedure == "" {
		return fmt.Errorf("%q is not a procedure", words[len(words)-1])
	}
	t.splits[key{setting, procedure}] = report.Split{
		DirectBytes: int64(r.number("bytes_default")), DetourBytes: int64(r.number("bytes_detour")),
	}
	return *r.err
}

// record is a line of a table with its column's names. Its error is the first
// of any cell.
type record struct {
	cells map[string]string
	err   *error
}

func (r record) text(column string) string {
	cell, ok := r.cells[column]
	if !ok && *r.err == nil {
		*r.err = fmt.Errorf("there is no column %q", column)
	}
	return cell
}

func (r record) number(column string) float64 {
	v, err := strconv.ParseFloat(r.text(column), 64)
	if err != nil && *r.err == nil {
		*r.err = fmt.Errorf("column %q: %w", column, err)
	}
	return v
}

func each(table []byte, add func(record) error) error {
	lines, err := csv.NewReader(bytes.NewReader(table)).ReadAll()
	if err != nil {
		return err
	}
	for i, line := range lines[1:] {
		r := record{cells: map[string]string{}, err: new(error)}
		for j, cell := range line {
			r.cells[lines[0][j]] = cell
		}
		if err := add(r); err != nil {
			return fmt.Errorf("line %d: %w", i+2, err)
		}
	}
	return nil
}
