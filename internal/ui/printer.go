package ui

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/detour-collective/dcol/internal/printable"
)

// printer writes text and keeps the first error of its writer. It removes control characters, because some text comes
// from others.
type printer struct {
	w       io.Writer
	err     error
	details bool
}

func (p *printer) linef(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.w, printable.Text(fmt.Sprintf(format, args...)))
	}
}

// wrappedTable writes rows in columns. On a terminal, the last column is wrapped to its width.
func (p *printer) wrappedTable(header string, rows [][]string) {
	if columns := columnsOf(p.w); columns > 0 {
		rows = wrapLast(strings.Split(header, "|"), rows, columns)
	}
	p.table(header, rows)
}

// table writes rows in columns. A column without any text is left out, and no line ends with spaces.
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
	for line := range strings.Lines(aligned.String()) {
		if _, p.err = fmt.Fprintln(p.w, strings.TrimRight(line, " \n")); p.err != nil {
			return
		}
	}
}
