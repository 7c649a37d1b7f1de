package top

import (
	"errors"
	"fmt"
	"os"

	"github.com/gdamore/tcell/v3"
	"github.com/gdamore/tcell/v3/color"
	"golang.org/x/term"
)

// boundedTty bounds the size that a terminal reports, because the library keeps a cell for each place on the screen.
type boundedTty struct{ tcell.Tty }

func (t boundedTty) WindowSize() (size tcell.WindowSize, err error) {
	size, err = t.Tty.WindowSize()
	size.Width, size.Height = Bound(size.Width, size.Height)
	return size, err
}

// openTerminal returns this process's terminal, ready to draw.
func openTerminal() (tcell.Screen, error) {
	if name := os.Getenv("TERM"); name == "" || name == "dumb" {
		return nil, fmt.Errorf("dcol top needs a terminal whose cursor it can move, and TERM is %q: use dcol status, or set TERM", name)
	}
	if !term.IsTerminal(int(os.Stdout.Fd())) {
		return nil, errors.New("dcol top needs a terminal as its output: use dcol status, whose output can go anywhere")
	}
	tty, err := tcell.NewDevTty()
	if err != nil {
		return nil, fmt.Errorf("open the terminal: %w", err)
	}
	// Without negotiation the library asks the terminal nothing. A terminal that does not answer would delay the start,
	// and an answer that comes late over a slow line would be taken for keys.
	screen, err := tcell.NewTerminfoScreenFromTty(boundedTty{tty}, tcell.OptNegotiation(false))
	if err == nil {
		err = screen.Init()
	}
	if err != nil {
		return nil, fmt.Errorf("open the terminal: %w", err)
	}
	return screen, nil
}

// styles returns the colours and attributes of each Style on a terminal with so many colours. Without colours, each style
// that matters has an attribute, or is used for different words.
func styles(colours int) []tcell.Style {
	d := tcell.StyleDefault
	foreground := func(c color.Color) tcell.Style {
		if colours == 0 {
			// The library reverses texts whose colour it cannot show, if that is a dark one. They would look like the row
			// under the cursor.
			return d
		}
		return d.Foreground(c)
	}
	return []tcell.Style{
		Plain:  d,
		Dim:    d.Dim(true),
		Strong: d.Bold(true),
		Good:   foreground(color.Green),
		Warn:   foreground(color.Olive),
		Bad:    foreground(color.Maroon).Bold(true),
		Accent: foreground(color.Teal),
		Chosen: d.Reverse(true),
		Title:  d.Bold(true).Underline(true),
	}
}

// paint draws the lines on the screen. The library sends only what has changed.
func paint(screen tcell.Screen, lines []Line, styles []tcell.Style) {
	screen.Clear()
	for y, line := range lines {
		x := 0
		for _, span := range line {
			screen.PutStrStyled(x, y, span.Text, styles[span.Style])
			x += width(span.Text)
		}
	}
	screen.Show()
}

// names has the keys that Model knows, by the library's number.
var names = map[tcell.Key]Key{
	tcell.KeyUp: "up", tcell.KeyDown: "down", tcell.KeyLeft: "left", tcell.KeyRight: "right",
	tcell.KeyPgUp: "pgup", tcell.KeyPgDn: "pgdn", tcell.KeyHome: "home", tcell.KeyEnd: "end",
	tcell.KeyEnter: "enter", tcell.KeyEsc: "esc", tcell.KeyTab: "tab", tcell.KeyBacktab: "tab",
	tcell.KeyBackspace: "backspace", tcell.KeyCtrlC: "ctrl-c", tcell.KeyCtrlL: "ctrl-l", tcell.KeyCtrlZ: "ctrl-z",
}

// keyOfEvent returns the key of an event, or an empty one if Model does not know it.
func keyOfEvent(e *tcell.EventKey) Key {
	if e.Key() == tcell.KeyRune {
		if e.Modifiers()&(tcell.ModCtrl|tcell.ModAlt|tcell.ModMeta) != 0 {
			return ""
		}
		return Key(e.Str())
	}
	return names[e.Key()]
}
