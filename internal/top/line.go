package top

import (
	"strings"

	"github.com/clipperhouse/displaywidth"

	"github.com/detour-collective/dcol/internal/printable"
)

// Style is the look of a text. The words alone give the whole meaning, because some terminals and some people cannot
// tell styles apart.
type Style uint8

// The styles.
const (
	Plain Style = iota
	Dim
	Strong
	Good
	Warn
	Bad
	Accent
	Chosen // the row under the cursor
	Title  // a table's header
)

// Span is a text in one style.
type Span struct {
	Text  string
	Style Style
}

// Line is a row of the screen, from the left.
type Line []Span

// String returns the line's text.
func (l Line) String() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.Text)
	}
	return b.String()
}

// width returns the number of terminal columns that a text takes.
func width(s string) int { return displaywidth.String(s) }

// clean removes control characters from others' text. Most text is plain ASCII and is returned unchanged.
func clean(s string) string {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return printable.Text(s)
		}
	}
	return s
}

// fit returns a text cut or padded to the given number of columns. The text cut marks where it was cut.
func fit(s string, columns int, right bool, cut string) string {
	if columns <= 0 {
		return ""
	}
	s = clean(s)
	w := width(s)
	if w > columns {
		s = displaywidth.TruncateString(s, columns, cut)
		w = width(s)
	}
	pad := strings.Repeat(" ", max(columns-w, 0))
	if right {
		return pad + s
	}
	return s + pad
}

// cutTo shortens a line to the given number of columns, and marks where it was cut.
func (l Line) cutTo(columns int, mark string) Line {
	var out Line
	for _, s := range l {
		if columns <= 0 {
			break
		}
		text := clean(s.Text)
		w := width(text)
		if w > columns {
			return append(out, Span{displaywidth.TruncateString(text, columns, mark), s.Style})
		}
		out = append(out, Span{text, s.Style})
		columns -= w
	}
	return out
}

func (l Line) width() (sum int) {
	for _, s := range l {
		sum += width(s.Text)
	}
	return sum
}

// chosen returns the line as the row under the cursor, as wide as the screen.
func (l Line) chosen(columns int) Line {
	return Line{{fit(l.String(), columns, false, ""), Chosen}}
}
