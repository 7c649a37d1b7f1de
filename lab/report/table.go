package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// WriteText writes the result for people: a table for each variant, then the expectations.
func (r *Result) WriteText(w io.Writer) error {
	var b strings.Builder
	b.WriteString(r.Scenario)
	if r.Description != "" {
		b.WriteString(": " + r.Description)
	}
	b.WriteByte('\n')
	fmt.Fprintf(&b, "Linux %s, %d CPUs, links by %s, %s\n",
		r.Environment.Kernel, r.Environment.CPUs, r.Environment.Backend, r.Environment.Congestion)
	var rows []Row
	for i, row := range r.Rows {
		rows = append(rows, row)
		if i+1 == len(r.Rows) || r.Rows[i+1].Variant != row.Variant || r.Rows[i+1].Congestion != row.Congestion {
			fmt.Fprintf(&b, "\n%s, goodput in Mbit/s\n", r.under(row.Variant, row.Congestion))
			r.writeRows(&b, rows)
			rows = nil
		}
	}
	if len(r.Expectations) > 0 {
		b.WriteString("\nexpected\n")
		r.writeExpectations(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// under names a variant, with the congestion control if there are several.
func (r *Result) under(variant, congestion string) string {
	if len(r.Congestions()) > 1 {
		return variant + ", " + congestion
	}
	return variant
}

func (r *Result) writeRows(b *strings.Builder, rows []Row) {
	header := []string{"procedure", "n", "median", "mean", "sd", "q1", "q3"}
	for _, path := range r.Paths {
		header = append(header, "MB "+path)
	}
	header = append(header, "retr.", "stall ms")
	discarded := slices.ContainsFunc(rows, func(row Row) bool { return row.Discarded > 0 })
	if discarded {
		header = append(header, "discarded")
	}
	failed := slices.ContainsFunc(rows, func(row Row) bool { return row.Failed > 0 })
	if failed {
		header = append(header, "failed")
	}
	hasLatency := anyLatency(rows)
	if hasLatency {
		header = append(header, "p50 ms", "p90 ms", "p95 ms", "p99 ms", "max ms")
	}
	t := table{header}
	for _, row := range rows {
		cells := []string{row.Procedure, fmt.Sprint(row.N)}
		if row.N == 0 {
			cells = append(cells, noRun(row))
		} else {
			g := row.GoodputMbps
			cells = append(cells, formatMbps(g.Median), formatMbps(g.Mean), formatMbps(g.SD), formatMbps(g.Q1), formatMbps(g.Q3))
			for _, path := range r.Paths {
				cells = append(cells, formatMB(row.PathBytes[path]))
			}
			cells = append(cells, fmt.Sprintf("%.0f", row.Retransmitted), fmt.Sprintf("%.0f", row.LongestStallMS))
			if discarded {
				cells = append(cells, fmt.Sprint(row.Discarded))
			}
			if failed {
				cells = append(cells, fmt.Sprint(row.Failed))
			}
			if hasLatency {
				cells = append(cells, latencyCells(row.Latency)...)
			}
		}
		t = append(t, cells)
	}
	t.write(b)
}

func noRun(row Row) string {
	if row.Failed > 0 {
		return fmt.Sprintf("no valid run, %d failed", row.Failed)
	}
	return "no valid run"
}

// anyLatency reports whether some row has latencies worth a column: of one file alone
// there is only its completion.
func anyLatency(rows []Row) bool {
	return slices.ContainsFunc(rows, func(row Row) bool { return row.Latency != nil && row.Latency.Count > 1 })
}

func latencyCells(l *Latency) []string {
	if l == nil {
		return slices.Repeat([]string{"-"}, 5)
	}
	return []string{formatLatency(l.P50MS), formatLatency(l.P90MS), formatLatency(l.P95MS), formatLatency(l.P99MS), formatLatency(l.MaxMS)}
}

func (r *Result) writeExpectations(b *strings.Builder) {
	for _, e := range r.Expectations {
		verdict := "NOT MET"
		switch {
		case e.Met:
			verdict = "met    "
		case e.Error != "":
			verdict = "open   " // undecided without a run
		}
		fmt.Fprintf(b, "  %s  %s", verdict, e.Description)
		if e.Variant != "" {
			fmt.Fprintf(b, " (%s)", r.under(e.Variant, e.Congestion))
		}
		b.WriteByte('\n')
		switch {
		case e.Error != "":
			fmt.Fprintf(b, "           %s\n", e.Error)
		case e.Left != nil && e.Right != nil:
			fmt.Fprintf(b, "           %s: %.3f against %.3f\n", e.Expression, *e.Left, *e.Right)
		default:
			fmt.Fprintf(b, "           %s\n", e.Expression)
		}
	}
}

func formatMbps(v float64) string { return fmt.Sprintf("%.2f", v) }

func formatMB(bytes float64) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", bytes/1e6)
}

// table is cells in rows; the first row is the header, the first column words, the others numbers.
type table [][]string

func (t table) write(b *strings.Builder) {
	widths := map[int]int{}
	for _, row := range t {
		if len(row) < len(t[0]) {
			row = row[:len(row)-1] // a remark in place of numbers
		}
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range t {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", max(widths[i]-utf8.RuneCountInString(cell), 0))
			switch {
			case i == 0:
				line.WriteString("  " + cell + pad)
			case len(row) < len(t[0]) && i == len(row)-1:
				line.WriteString("  " + cell)
			default:
				line.WriteString("  " + pad + cell)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

// formatLatency writes a time in ms with three figures or more.
func formatLatency(ms float64) string {
	switch {
	case ms >= 100:
		return fmt.Sprintf("%.0f", ms)
	case ms >= 10:
		return fmt.Sprintf("%.1f", ms)
	default:
		return fmt.Sprintf("%.2f", ms)
	}
}
