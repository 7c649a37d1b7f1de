package battery

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/detour-collective/dcol/lab/jsonfile"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/stats"
)

// Schema is the version of a Result's JSON.
const Schema = "dcol.battery/1"

// The files of a result.
const (
	JSONFile = "result.json"
	HTMLFile = "battery.html"
)

// Result has what the battery found.
type Result struct {
	Schema      string             `json:"schema"`
	Started     time.Time          `json:"started"`
	Seconds     float64            `json:"seconds"` // all sessions together
	Full        bool               `json:"full"`    // else everything was shortened
	Repetitions int                `json:"repetitions"`
	Runs        int                `json:"runs"` // that count
	Wanted      int                `json:"runs_wanted"`
	Environment report.Environment `json:"environment"`
	Tests       []TestResult       `json:"tests"`
}

// TestResult is a test with its answers.
type TestResult struct {
	Name      string       `json:"name"`
	Number    string       `json:"number"` // the publication, and its number there
	Title     string       `json:"title"`
	Question  string       `json:"question"`
	Published string       `json:"published"`
	Columns   []Column     `json:"columns"`
	Cases     []CaseResult `json:"cases"`
}

// Column is a value that the test is about.
type Column struct {
	Key   string `json:"key"`
	Title string `json:"title"`
	Unit  string `json:"unit"`
}

// CaseResult has the rows of a case, one for each implementation.
type CaseResult struct {
	Name  string `json:"name"`
	About string `json:"about"`
	Rows  []Row  `json:"rows"`
	// Published has what the publication has of the columns, in their units.
	Published map[string]string `json:"published,omitempty"`
}

// Lines returns the number of lines of a case in the page's table.
func (c CaseResult) Lines() int {
	if len(c.Published) > 0 {
		return len(c.Rows) + 1
	}
	return len(c.Rows)
}

// Row is the answer of an implementation.
type Row struct {
	Implementation string           `json:"implementation"`
	N              int              `json:"n"`
	Discarded      int              `json:"discarded"`       // the machine was too busy
	Doubt          string           `json:"doubt,omitempty"` // why the last of those was discarded
	Failed         int              `json:"failed"`
	Failure        string           `json:"failure,omitempty"` // the last
	Values         map[string]Value `json:"values"`
}

// Value is the spread of a value over the repetitions.
type Value struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// result sums the runs up.
func (b *battery) result(e report.Environment) *Result {
	r := &Result{
		Schema: Schema, Started: b.ledger.Head.Started, Seconds: b.ledger.Head.Seconds, Full: b.options.Full,
		Repetitions: b.mostRepetitions(), Runs: b.made(), Wanted: b.wanted, Environment: e, Tests: []TestResult{},
	}
	for _, t := range b.tests {
		one := TestResult{Name: t.name, Number: t.number, Title: t.title, Question: t.question, Published: t.published}
		for _, c := range t.shown {
			one.Columns = append(one.Columns, Column{c.key, c.title, c.unit})
		}
		for _, c := range t.cases {
			found := CaseResult{Name: c.name, About: c.about, Published: c.published}
			for _, impl := range t.impls {
				if inapplicable(t, c, impl) {
					continue
				}
				from, elsewhere := b.source(t, c, impl)
				if elsewhere {
					found.Rows = append(found.Rows, b.row(from, c.of, impl))
				} else {
					found.Rows = append(found.Rows, b.row(t.name, c.name, impl))
				}
			}
			compare(found.Rows)
			one.Cases = append(one.Cases, found)
		}
		r.Tests = append(r.Tests, one)
	}
	return r
}

// row sums up the runs of an implementation in a case.
func (b *battery) row(test, name string, impl implementation) Row {
	row := Row{Implementation: string(impl), Values: map[string]Value{}}
	all := map[string][]float64{}
	for _, r := range b.runs {
		if r.Scenario != test || r.Run.Variant != name || r.Run.Procedure != string(impl) {
			continue
		}
		switch {
		case r.Run.Valid():
			row.N++
			for key, v := range r.Run.Values {
				all[key] = append(all[key], v)
			}
		case r.Run.Cause == report.CauseFailure || r.Run.Cause == report.CauseProduct:
			row.Failed++
			row.Failure = r.Run.Discarded
		default:
			row.Discarded++
			row.Doubt = r.Run.Discarded
		}
	}
	for key, list := range all {
		row.Values[key] = Value{stats.Median(list), slices.Min(list), slices.Max(list)}
	}
	return row
}

// compare adds goodput over TCP's on the best path and on all together.
func compare(rows []Row) {
	i := slices.IndexFunc(rows, func(r Row) bool { return r.Implementation == string(plainTCP) && r.N > 0 })
	if i < 0 {
		return
	}
	best, sum := rows[i].Values["best"].Median, rows[i].Values["sum"].Median
	for _, r := range rows {
		v, ok := r.Values["goodput"]
		if !ok || best == 0 {
			continue
		}
		r.Values["of_best"] = Value{v.Median / best, v.Min / best, v.Max / best}
		r.Values["of_sum"] = Value{v.Median / sum, v.Min / sum, v.Max / sum}
	}
}

// write writes the result and its page.
func (r *Result) write(folder string) error {
	f, err := os.Create(filepath.Join(folder, HTMLFile))
	if err != nil {
		return err
	}
	return errors.Join(jsonfile.Write(filepath.Join(folder, JSONFile), r), pageTemplate.Execute(f, r), f.Close())
}

// Met reports whether all runs were made.
func (r *Result) Met() bool { return r.Runs == r.Wanted }

// WriteJSON writes the result in its versioned form.
func (r *Result) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteText writes the result for people.
func (r *Result) WriteText(w io.Writer) error {
	out := &strings.Builder{}
	fmt.Fprintf(out, "%d of %d runs, %s\n", r.Runs, r.Wanted, r.Length())
	for _, t := range r.Tests {
		fmt.Fprintf(out, "\n%s\n%s\npublished (%s): %s\n", t.Title, t.Question, t.Number, t.Published)
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		head := "case\tby\tn"
		for _, c := range t.Columns {
			head += "\t" + strings.TrimSuffix(c.Title+", "+c.Unit, ", ")
		}
		fmt.Fprintln(table, head)
		for _, c := range t.Cases {
			for _, row := range c.Rows {
				line := fmt.Sprintf("%s\t%s\t%s", c.Name, row.Implementation, row.Runs())
				for _, column := range t.Columns {
					line += "\t" + row.Show(column.Key)
				}
				fmt.Fprintln(table, line)
			}
			if len(c.Published) > 0 {
				line := c.Name + "\tpublished\t"
				for _, column := range t.Columns {
					line += "\t" + cmp.Or(c.Published[column.Key], "–")
				}
				fmt.Fprintln(table, line)
			}
		}
		if err := table.Flush(); err != nil {
			return err
		}
		for _, c := range t.Cases {
			for _, row := range c.Rows {
				if row.Failed > 0 {
					fmt.Fprintf(out, "%s by %s %s\n", c.Name, row.Implementation, row.Failures())
				}
			}
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// Length describes how long the tests were.
func (r *Result) Length() string {
	if r.Full {
		return "as long as published"
	}
	return "shortened: transfers of 8 s in place of 60 s, changes after 5 or 6 s in place of 10 to 30 s"
}

// Minutes returns the duration of the whole battery, in minutes.
func (r *Result) Minutes() string { return fmt.Sprintf("%.0f min", r.Seconds/60) }

// Runs formats the number of runs that count, and of those that were discarded.
func (r Row) Runs() string {
	if r.Discarded == 0 {
		return strconv.Itoa(r.N)
	}
	return fmt.Sprintf("%d (−%d)", r.N, r.Discarded)
}

// Failures describes the attempts that failed.
func (r Row) Failures() string {
	if r.Failed == 1 {
		return "failed once: " + r.Failure
	}
	return fmt.Sprintf("failed %d times, the last: %s", r.Failed, r.Failure)
}

// Show formats a value, with its spread.
func (r Row) Show(key string) string {
	v, ok := r.Values[key]
	if !ok {
		return "–"
	}
	if v.Min == v.Max {
		return round(v.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", round(v.Median), round(v.Min), round(v.Max))
}

// round formats with three significant digits.
func round(v float64) string {
	switch {
	case v == float64(int(v)):
		return strconv.Itoa(int(v))
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"describe": func(name string) string { return implementation(name).describe() },
	"time":     func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") },
}).Parse(pageText))

// Implementations lists those that have runs.
func (r *Result) Implementations() (names []string) {
	for _, impl := range all {
		has := func(t TestResult) bool {
			return slices.ContainsFunc(t.Cases, func(c CaseResult) bool {
				return slices.ContainsFunc(c.Rows, func(row Row) bool { return row.Implementation == string(impl) })
			})
		}
		if slices.ContainsFunc(r.Tests, has) {
			names = append(names, string(impl))
		}
	}
	return names
}
