// Package papers has the reference for a repetition of DCol's evaluation of 2017: the published numbers, the
// targets, and the reasons for differences. All of it is data, in published.toml and notes.html.
// lab/experiment passes it to the report.
package papers

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"slices"

	"github.com/pelletier/go-toml/v2"

	"github.com/detour-collective/dcol/lab/report"
)

//go:embed published.toml
var published []byte

//go:embed notes.html
var notes string

// Tables has the published numbers and the targets of a repetition. It implements report.Reference.
type Tables struct {
	Throughputs []throughput  `toml:"throughput"` // Table 1
	Splits      []split       `toml:"split"`      // Table 2
	Targets     []report.Goal `toml:"target"`
	Differences []difference  `toml:"difference"`
}

type throughput struct {
	report.Setting
	Procedure string `toml:"procedure"`
	report.Throughput
}

type split struct {
	report.Setting
	Procedure string `toml:"procedure"`
	report.Split
	DetourPct float64 `toml:"detour_pct"` // as printed
}

// difference is the reason why cells differ. Empty lists are all networks, losses, delays and procedures.
type difference struct {
	Networks   []string  `toml:"networks"`
	LossPcts   []float64 `toml:"loss_pcts"`
	DelaysMS   []float64 `toml:"delays_ms"`
	Procedures []string  `toml:"procedures"`
	More       bool      `toml:"more"` // a repetition carries more, not less
	Why        string    `toml:"why"`
}

// Load reads the tables.
func Load() (*Tables, error) { return parse(published) }

func parse(data []byte) (*Tables, error) {
	t := &Tables{}
	if err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(t); err != nil {
		return nil, fmt.Errorf("read what was published: %w", err)
	}
	return t, nil
}

// Throughput returns a cell of Table 1 by the procedure's name in the lab's scenarios. It
// reports false for what was not measured in 2017.
func (t *Tables) Throughput(s report.Setting, procedure string) (report.Throughput, bool) {
	for _, cell := range t.Throughputs {
		if cell.Setting == s && cell.Procedure == procedure {
			return cell.Throughput, true
		}
	}
	return report.Throughput{}, false
}

// Split returns a row of Table 2.
func (t *Tables) Split(s report.Setting, procedure string) (report.Split, bool) {
	for _, row := range t.Splits {
		if row.Setting == s && row.Procedure == procedure {
			return row.Split, true
		}
	}
	return report.Split{}, false
}

// Why returns the first reason that is about a cell.
func (t *Tables) Why(s report.Setting, procedure string, more bool) string {
	for _, d := range t.Differences {
		if d.More == more && allows(d.Networks, s.Network) && allows(d.LossPcts, s.LossPct) && allows(d.DelaysMS, s.DelayMS) && allows(d.Procedures, procedure) {
			return d.Why
		}
	}
	return ""
}

func allows[T comparable](list []T, value T) bool {
	return len(list) == 0 || slices.Contains(list, value)
}

// Goals returns the targets.
func (t *Tables) Goals() []report.Goal { return t.Targets }

// Notes returns the known reasons for differences between a repetition and the published figures.
func (t *Tables) Notes() template.HTML { return template.HTML(notes) }
