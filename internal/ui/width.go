package ui

import (
	"io"
	"os"
	"strings"

	"github.com/clipperhouse/displaywidth"
	"golang.org/x/term"
)

// leastWrap is the least width of a wrapped column. In a narrower one, a sentence would take too many lines.
const leastWrap = 40

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

// gap separates the columns of a table, and the words of a help text from their explanations.
const gap = "  "

// Fold breaks a line that is wider than columns. The text after the last gap goes below the rest if it is a sentence.
// A table's columns are not broken.
func Fold(line string, columns int) []string {
	if displaywidth.String(line) <= columns {
		return []string{line}
	}
	text := strings.TrimLeft(line, " ")
	indent := len(line) - len(text)
	at := strings.LastIndex(text, gap) + len(gap)
	if at < len(gap) {
		if indent > 0 {
			indent += 2
		}
		return hang(line[:len(line)-len(text)], text, min(indent, columns/2), columns)
	}
	head, last := line[:indent+at], text[at:]
	if len(strings.Fields(last)) < 3 {
		return []string{line}
	}
	if w := displaywidth.String(head); w <= 3*columns/5 {
		return hang(head, last, w, columns)
	}
	under := min(indent+4, columns/2)
	return append([]string{strings.TrimRight(head, " ")}, hang(strings.Repeat(" ", under), last, under, columns)...)
}

// hang wraps a text behind a head, and indents the lines after the first.
func hang(head, text string, indent, columns int) []string {
	lines := Wrap(text, columns-max(displaywidth.String(head), indent))
	for i := range lines {
		if i > 0 {
			head = strings.Repeat(" ", indent)
		}
		lines[i] = head + lines[i]
	}
	return lines
}

// Wrap breaks a text into lines of at most the given number of columns, between words if possible. It returns at least
// one line.
func Wrap(s string, columns int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		for displaywidth.String(word) > columns {
			if line != "" {
				lines, line = append(lines, line), ""
			}
			head := displaywidth.TruncateString(word, columns, "")
			if head == "" {
				break
			}
			lines, word = append(lines, head), strings.TrimPrefix(word, head)
		}
		switch {
		case line == "":
			line = word
		case displaywidth.String(line)+1+displaywidth.String(word) <= columns:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	return append(lines, line)
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
		for i, line := range Wrap(r[last], room) {
			next := make([]string, len(r))
			if i == 0 {
				copy(next, r)
			}
			next[last] = line
			out = append(out, next)
		}
	}
	return out
}
