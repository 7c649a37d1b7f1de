package top

import (
	"math"
	"net/netip"
	"strings"

	"github.com/detour-collective/dcol/internal/ui"
)

// panel is a text that covers the screen.
type panel struct {
	title string
	text  func(columns int) string // for a width
	top   int
	left  int
	waits netip.AddrPort // the server that the agent was asked to explain
	token string         // of the connection that the user asked about
}

// newPanel returns a panel with the same text for every width.
func newPanel(title, text string) *panel {
	return &panel{title: title, text: func(int) string { return text }}
}

// lines returns the panel's text in lines that are folded to a width.
func (p *panel) lines(columns int) (lines []string) {
	for line := range strings.SplitSeq(strings.TrimRight(p.text(columns), "\n"), "\n") {
		lines = append(lines, ui.Fold(clean(line), columns)...)
	}
	return lines
}

// sideways is the number of columns by which the left and right keys move a panel.
const sideways = 8

// pressed handles a key, and reports whether the panel is to be closed.
func (p *panel) pressed(k Key) bool {
	switch k {
	case "esc", "q", "enter", "w", "?", "h", "p":
		return true
	case "up", "k":
		p.top--
	case "down", "j":
		p.top++
	case "pgup":
		p.top -= page
	case "pgdn", " ":
		p.top += page
	case "home", "g":
		p.top, p.left = 0, 0
	case "end", "G":
		p.top = math.MaxInt / 2
	case "left":
		p.left -= sideways
	case "right":
		p.left += sideways
	}
	return false
}

// view returns the panel's lines for a screen. It also bounds how far the keys have moved the text, because only here
// it is known how much of the text fits.
func (p *panel) view(columns, rows int, cut string) []Line {
	lines := make([]Line, 0, rows)
	lines = append(lines, Line{{fit(p.title, columns, false, cut), Title}})
	shown := p.lines(columns)
	widest := 0
	for _, l := range shown {
		widest = max(widest, width(l))
	}
	space := max(rows-2, 0)
	p.top = max(min(p.top, len(shown)-space), 0)
	p.left = max(min(p.left, widest-columns+sideways-1), 0) / sideways * sideways
	for _, l := range shown[p.top:min(p.top+space, len(shown))] {
		lines = append(lines, Line{{afterColumns(l, p.left), Plain}}.cutTo(columns, cut))
	}
	for len(lines) < rows-1 {
		lines = append(lines, nil)
	}
	return append(lines, Line{{"esc", Strong}, {" back  ", Dim}, {"arrows", Strong}, {" scroll", Dim}}.cutTo(columns, cut))
}

// afterColumns returns the text without its first columns.
func afterColumns(s string, columns int) string {
	for columns > 0 && s != "" {
		r := []rune(s)[0]
		columns -= width(string(r))
		s = s[len(string(r)):]
	}
	return s
}

const help = `Keys

  up, down, k, j      move the cursor; pgup, pgdn, home, end
  tab                 move between connections and waypoints
  enter, left, right  show or hide a connection's subflows
  e                   show or hide the subflows of all connections
  s, S                sort by traffic, age, server, RTT, retransmissions
  /                   filter: words of servers, paths, states; esc clears it
  space               freeze the picture, or continue
  w                   why this connection has these paths
  u                   use the waypoint under the cursor first, or no other
  a                   avoid the waypoint under the cursor
  r                   use waypoints as the configuration says
  p                   show all problems in full
  ctrl-l              draw the screen again
  q                   quit

What is shown

  direct         the path without a waypoint: the Internet's own route
  via bob (...)  a detour: a path through the waypoint bob, and its kind

  IN, OUT    payload received and sent, bits per second
  TREND      the last rates, in and out together; the tallest bar is the highest of them
  RTT        the latest round-trip time that is known, including queues; a connection's is that of its quickest path
  QUEUED     bytes that this host has given to a path, and the other end has not confirmed
  LOSS       of a path: segments sent again of those that this host sent in the last ten updates; "-": too few. Of a waypoint: lost packets of the session with it
  RETRANS    segments sent again since the subflow began
  FOR        the time since a connection or a subflow began
  READY      the kinds of detours that the waypoint can be used for now

  up         the path carries data, or the session with the waypoint works
  backup     the path stands by
  joining    the path is being opened
  silent     nothing arrives over the direct path, though others are busy
  closed     the waypoint accepts no detours for now
  moving     this host's address has changed, and the session follows
  down       the waypoint does not answer

Sorted by traffic, connections change places only when their rates differ by about a factor of three.`
