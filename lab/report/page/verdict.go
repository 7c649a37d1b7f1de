package page

import (
	"fmt"
	"math"
	"slices"
)

// verdict says first what came of it: what dcol brings, then the targets, and which of
// the scenarios' own expectations are not met. Those that are come later, see held.
func (b *book) verdict() ([]section, error) {
	s := section{ID: "verdict", Title: "What it shows"}
	s.Text = b.gains()
	f := b.suite.Fidelity
	s.Text = append(s.Text, fmt.Sprintf("%s, %s. %s.",
		counted(f.Runs, "run counts", "runs count"),
		counted(f.Discarded, "more was repeated or given up", "more were repeated or given up"), b.progress()))
	if f.Failed > 0 {
		s.Text = append(s.Text, fmt.Sprintf("dcol failed in %s: it crashed, hung or broke what it carried. Those are not repeated; "+
			"the expectations below say by which procedure.", counted(f.Failed, "run", "runs")))
	}
	if targets := b.targets(); len(targets) > 0 {
		s.Text = append(s.Text, targetsLine(targets))
		s.Tables = append(s.Tables, targetTable(targets))
	}
	if expectations := b.expectations(); len(expectations) > 0 {
		s.Text = append(s.Text, expectationsLine(expectations))
		if t := b.unmetTable(expectations); len(t.Rows) > 0 {
			s.Tables = append(s.Tables, t)
		}
	}
	return []section{s}, nil
}

// progress says whether everything that was asked for has been measured.
func (b *book) progress() string {
	missing, all := 0, 0
	for _, n := range b.networks {
		for _, r := range n.rows {
			all++
			if r.N == 0 {
				missing++
			}
		}
	}
	if missing == 0 {
		return fmt.Sprintf("All %d combinations of network, procedure and congestion control have runs", all)
	}
	return fmt.Sprintf("%d of %d combinations of network, procedure and congestion control have no run yet", missing, all)
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func targetsLine(targets []Target) string {
	met, missed, open := 0, 0, 0
	least, most := math.Inf(1), 0.0 // misses, in points
	for _, t := range targets {
		switch {
		case t.Measured == nil:
			open++
		case t.Met:
			met++
		default:
			missed++
			by := math.Abs(*t.Measured - t.LimitPct)
			least, most = min(least, by), max(most, by)
		}
	}
	line := fmt.Sprintf("%d of %d targets are met", met, len(targets))
	switch {
	case missed == 1:
		line += fmt.Sprintf(", 1 is not, by %.2f percentage points", most)
	case missed > 1:
		line += fmt.Sprintf(", %d are not, by %.2f to %.2f percentage points", missed, least, most)
	}
	if open > 0 {
		line += fmt.Sprintf(", %d wait for runs", open)
	}
	return line + "."
}

// unsure is how much a target's value differs between evaluations of three repetitions
// that were made on one day: seven, the last two within one hour.
const unsure = "Evaluations of three repetitions differ by half a per cent from one to the next, and by one, or several, where there is loss or a long delay."

// terms are the words of the targets' table that a reader meets here first.
const terms = "Steady is the same without the first three seconds that count, in which connections still grow. A place is a network, " +
	"as its scenario declares it or with something in it varied, and a congestion control."

func targetTable(targets []Target) table {
	t := table{Title: "Targets", Words: 1, Note: "Computed from medians. " + unsure + " " + terms, Head: []string{"in per cent", "wanted", "measured", "steady"}}
	published := slices.ContainsFunc(targets, func(target Target) bool { return target.Published != nil })
	if published {
		t.Note = "Ours are computed from medians, the published from means. " + unsure + " " + terms + " Link 2 is the direct path's."
		t.Head = append(t.Head, "2017")
	}
	for _, target := range targets {
		verdict := entry{Text: "met", Mark: good}
		if target.Measured == nil {
			verdict = entry{Text: "no run", Mark: empty}
		} else if !target.Met {
			verdict = entry{Text: "NOT MET", Mark: bad}
		}
		sign := "≤"
		if target.AtLeast {
			sign = "≥"
		}
		verdict.Below = []string{target.Procedure + ": " + target.What, target.Where}
		if target.Remark != "" {
			verdict.Below = append(verdict.Below, target.Remark)
		}
		line := []entry{verdict, {Text: fmt.Sprintf("%s %.1f", sign, target.LimitPct)}, twoDecimals(target.Measured), twoDecimals(target.Steady)}
		if published {
			line = append(line, twoDecimals(target.Published))
		}
		t.Rows = append(t.Rows, line)
	}
	return t
}

func twoDecimals(v *float64) entry {
	if v == nil {
		return none()
	}
	return entry{Text: fmt.Sprintf("%.2f", *v)}
}

// duration is a time in the unit that suits it.
func duration(ms float64) string {
	switch {
	case ms >= 9995:
		return fmt.Sprintf("%.1f s", ms/1000)
	case ms >= 999.5:
		return fmt.Sprintf("%.2f s", ms/1000)
	case ms >= 99.95:
		return fmt.Sprintf("%.0f ms", ms)
	default:
		return fmt.Sprintf("%.1f ms", ms)
	}
}

// digits has as many decimals as a reader needs.
func digits(v float64) string {
	switch {
	case v >= 1000 || v <= -1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
