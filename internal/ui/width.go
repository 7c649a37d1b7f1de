package ui

import (
	"io"
	"os"
	"strings"

	"github.com/clipperhouse/displaywidth"
	"golang.org/x/term"
)

// leastWrap is the least width of a wrapped column. In a narrower one, most lines would have a single word.
const leastWrap = 20

// columnsOf returns the width of the terminal that w writes to. It returns 0 if w is no terminal.
func columnsOf(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return columns
}

// wrap divides a text between words into lines of at most width columns. A longer word has a line of its own.
func wrap(s string, width int) (lines []string) {
	for _, word := range strings.Fields(s) {
		last := len(lines) - 1
		if last >= 0 && displaywidth.String(lines[last])+1+displaywidth.String(word) <= width {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

// wrapLast divides the last cell of each row, so that a table of these rows is at most columns wide. What follows goes on
// in rows whose other cells are empty. If too little room is left for the last column, the rows stay as they are.
func wrapLast(titles []string, rows [][]string, columns int) [][]string {
	last := len(titles) - 1
	room := columns
	for i := range last {
		widest, used := displaywidth.String(titles[i]), false
		for _, r := range rows {
			widest, used = max(widest, displaywidth.String(r[i])), used || r[i] != ""
		}
		if used {
			room -= widest + 2
		}
	}
	room -= 2 // the table is indented
	if room < leastWrap {
		return rows
	}
	var out [][]string
	for _, r := range rows {
		for i, line := range wrap(r[last], room) {
			next := make([]string, len(r))
			if i == 0 {
				copy(next, r)
			}
			next[last] = line
			out = append(out, next)
		}
		if strings.TrimSpace(r[last]) == "" {
			out = append(out, r)
		}
	}
	return out
}
