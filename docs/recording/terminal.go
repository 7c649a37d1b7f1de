package main

import (
	"fmt"
	"html"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The look of a terminal in a recording, in pixels.
const (
	cellWidth, cellHeight = 8.4, 18
	fontSize              = 14
	margin                = 12
)

// colours are those of a terminal: eight, and their bright versions.
var colours = [16]string{
	"#3b4652", "#ff8a8f", "#6fd596", "#f0b45a", "#6cb4ee", "#c4a3ff", "#5fd6d6", "#d5dde5",
	"#7c8a98", "#ffb0b3", "#9be6b6", "#f7cf8f", "#9bcff7", "#dcc7ff", "#95e8e8", "#ffffff",
}

const (
	paper = "#10161c"
	ink   = "#d5dde5"
)

// pen has the colours and the style in which characters are drawn.
type pen struct {
	fg, bg  string // "": the usual
	bold    bool
	faint   bool
	reverse bool
}

// span is a run of characters that are drawn alike.
type span struct {
	column int
	text   string
	pen    pen
}

// parse splits a line of tmux's capture-pane -e into spans. It knows the sequences that set colours and attributes (ECMA-48,
// SGR), and ignores others.
func parse(line string, p *pen) []span {
	var spans []span
	var text strings.Builder
	column := 0
	flush := func() {
		if text.Len() > 0 {
			spans = append(spans, span{column, text.String(), *p})
			column += utf8.RuneCountInString(text.String())
			text.Reset()
		}
	}
	for len(line) > 0 {
		if parameters, rest, ok := sequence(line); ok {
			flush()
			p.set(parameters)
			line = rest
			continue
		}
		r, size := utf8.DecodeRuneInString(line)
		line = line[size:]
		if r >= ' ' {
			text.WriteRune(r)
		}
	}
	flush()
	return spans
}

// sequence cuts a sequence of the form ESC [ parameters m off.
func sequence(line string) (parameters, rest string, ok bool) {
	body, ok := strings.CutPrefix(line, "\x1b[")
	if !ok {
		return "", line, false
	}
	return strings.Cut(body, "m")
}

func (p *pen) set(parameters string) {
	var codes []int
	for word := range strings.SplitSeq(parameters, ";") {
		code, err := strconv.Atoi(word)
		if err != nil {
			code = 0 // an empty parameter is 0
		}
		codes = append(codes, code)
	}
	for len(codes) > 0 {
		code := codes[0]
		codes = codes[1:]
		switch {
		case code == 0:
			*p = pen{}
		case code == 1:
			p.bold = true
		case code == 2:
			p.faint = true
		case code == 7:
			p.reverse = true
		case code == 22:
			p.bold, p.faint = false, false
		case code == 27:
			p.reverse = false
		case code >= 30 && code <= 37:
			p.fg = colours[code-30]
		case code >= 90 && code <= 97:
			p.fg = colours[8+code-90]
		case code >= 40 && code <= 47:
			p.bg = colours[code-40]
		case code == 39:
			p.fg = ""
		case code == 49:
			p.bg = ""
		case (code == 38 || code == 48) && len(codes) >= 2 && codes[0] == 5:
			if n := codes[1]; code == 38 && n >= 0 && n < len(colours) {
				p.fg = colours[n]
			}
			codes = codes[2:]
		}
	}
}

// draw writes a line's spans as SVG, with its upper left corner at the origin.
func draw(spans []span) string {
	var b strings.Builder
	for _, s := range spans {
		fg, bg := s.pen.fg, s.pen.bg
		if fg == "" {
			fg = ink
		}
		if s.pen.reverse {
			if bg == "" {
				bg = paper
			}
			fg, bg = bg, fg
		}
		width := float64(utf8.RuneCountInString(s.text)) * cellWidth
		x := float64(s.column) * cellWidth
		if bg != "" {
			fmt.Fprintf(&b, `<rect x="%.1f" width="%.1f" height="%d" fill="%s"/>`, x, width, cellHeight, bg)
		}
		if strings.TrimSpace(s.text) == "" {
			continue
		}
		var more string
		if fg != ink {
			more += ` fill="` + fg + `"`
		}
		if s.pen.bold {
			more += ` font-weight="700"`
		}
		if s.pen.faint {
			more += ` opacity=".65"`
		}
		fmt.Fprintf(&b, `<text x="%.1f" y="13" textLength="%.1f"%s>%s</text>`, x, width, more, html.EscapeString(s.text))
	}
	return b.String()
}
