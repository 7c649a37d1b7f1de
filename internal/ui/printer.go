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

// copyablef writes a line that is not folded, because a reader may copy it.
func (p *printer) copyablef(format string, args ...any) {
	unfolded := printer{w: p.w, err: p.err}
	unfolded.linef(format, args...)
	p.err = unfolded.err
}

// note writes the lines of a text below a table. On a terminal, they are one line, which is folded at its width.
func (p *printer) note(lines ...string) {
	if p.columns > 0 {
		lines = []string{strings.Join(lines, " ")}
	}
	for _, line := range lines {
		p.linef("  %s", line)
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

// paragraphs writes each row below its first cell, with the title before each other cell. If the first title has a unit in
// parentheses, such as UTC, it follows the first cell. Cells without a value are left out.
func (p *printer) paragraphs(titles []string, rows [][]string) {
	_, unit, _ := strings.Cut(strings.TrimSuffix(titles[0], ")"), " (")
	for _, r := range rows {
		p.linef("%s", strings.TrimRight("  "+r[0]+" "+unit, " "))
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
