package doctor

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Schema is the version of Report's JSON.
const Schema = "dcol.doctor/1"

// Report is the output of `dcol doctor`.
type Report struct {
	Schema   string    `json:"schema"`
	Findings []Finding `json:"checks"`
}

// NewReport returns a Report of the findings.
func NewReport(findings []Finding) Report { return Report{Schema: Schema, Findings: findings} }

// Count returns the number of findings with the state.
func (r Report) Count(s State) int {
	n := 0
	for _, f := range r.Findings {
		if f.State == s {
			n++
		}
	}
	return n
}

// Healthy reports whether nothing has failed.
func (r Report) Healthy() bool { return r.Count(Failed) == 0 }

// Text writes the report for users. It needs no colours; what requires action is in capitals and
// followed by its fix.
func (r Report) Text(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range r.Findings {
		fmt.Fprintf(table, "%s\t%s\t%s\n", label(f.State), f.Title, f.Detail)
		if f.Fix != "" {
			fmt.Fprintf(table, "\t\tfix: %s\n", f.Fix)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	warnings := "warnings"
	if r.Count(Warning) == 1 {
		warnings = "warning"
	}
	_, err := fmt.Fprintf(w, "\n%d failed, %d %s, %d ok, %d skipped\n",
		r.Count(Failed), r.Count(Warning), warnings, r.Count(OK), r.Count(Skipped))
	return err
}

func label(s State) string {
	if s == Failed || s == Warning {
		return strings.ToUpper(string(s))
	}
	return string(s)
}
