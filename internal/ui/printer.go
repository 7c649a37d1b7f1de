package ui

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/clipperhouse/displaywidth"

	"github.com/detour-collective/dcol/internal/printable"
)

// printer writes text and keeps the first error of its writer. It removes control characters, because some text comes
// from others.
type printer struct {
	w       io.Writer
	err     error
	details bool
	columns int // lines are folded to this width; 0 is for no limit
}

func (p *printer) linef(format string, args ...any) {
	lines := []string{printable.Text(fmt.Sprintf(format, args...))}
	if p.columns > 0 {
		lines = Fold(lines[0], p.columns)
	}
	for _, line := range lines {
		if p.err == nil {
			_, p.err = fmt.Fprintln(p.w, line)
		}
	}
}

// wrappedTable writes rows in columns. The last column is wrapped if the printer's width is limited.
func (p *printer) wrappedTable(header string, rows [][]string) {
	if p.columns > 0 {
		rows = wrapLast(strings.Split(header, "|"), rows, p.columns)
	}
	p.table(header, rows)
}

// table writes rows in columns. A column without any text is left out, and no line ends with spaces. Rows that are too
// wide become paragraphs.
func (p *printer) table(header string, rows [][]string) {
	if p.err != nil || len(rows) == 0 {
		return
	}
	var aligned strings.Builder
	t := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
	titles := strings.Split(header, "|")
	for _, r := range append([][]string{titles}, rows...) {
		fmt.Fprint(t, "  ")
		for i, cell := range r {
			if slices.ContainsFunc(rows, func(r []string) bool { return r[i] != "" }) {
				fmt.Fprint(t, printable.Text(cell)+"\t")
			}
		}
		fmt.Fprintln(t)
	}
	if p.err = t.Flush(); p.err != nil {
		return
	}
	text := aligned.String()
	for line := range strings.Lines(text) {
		if p.columns > 0 && displaywidth.String(strings.TrimRight(line, " \n")) > p.columns {
			p.paragraphs(titles, rows)
			return
		}
	}
	for line := range strings.Lines(text) {
		if _, p.err = fmt.Fprintln(p.w, strings.TrimRight(line, " \n")); p.err != nil {
			return
		}
	}
}

// paragraphs writes each row below its first cell, with the title before each cell. Cells without a value are left out.
func (p *printer) paragraphs(titles []string, rows [][]string) {
	for _, r := range rows {
		p.linef("  %s", r[0])
		indent := strings.Repeat(" ", len(r[0])-len(strings.TrimLeft(r[0], " "))+len("    "))
		line := ""
		for i, cell := range r[1:] {
			if cell == "" || cell == "-" {
				continue
			}
			cell = titles[i+1] + " " + cell
			switch {
			case line == "":
				line = indent + cell
			case displaywidth.String(line+", "+cell+",") <= p.columns:
				line += ", " + cell
			default:
				p.linef("%s,", line)
				line = indent + cell
			}
		}
		if line != "" {
			p.linef("%s", line)
		}
	}
}
