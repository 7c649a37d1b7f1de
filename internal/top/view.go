package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/ui"
)

// Look describes the capabilities of the terminal.
type Look struct {
	// ASCII restricts the picture to ASCII characters.
	ASCII bool
}

// The bounds of the picture, and the size that is used if the terminal does not report one.
const (
	leastColumns, leastRows = 20, 5
	mostColumns, mostRows   = 500, 300
	usualColumns, usualRows = 80, 24
)

// Bound returns the size to draw for the size that a terminal claims.
func Bound(columns, rows int) (int, int) {
	if columns <= 0 {
		columns = usualColumns
	}
	if rows <= 0 {
		rows = usualRows
	}
	return min(columns, mostColumns), min(rows, mostRows)
}

// airyColumns is the least width with spaces between numbers and units in each number, wideColumns the least one with
// reasons.
const (
	airyColumns = 100
	wideColumns = 130
)

// screen makes the lines of one picture.
type screen struct {
	m       *Model
	now     time.Time
	columns int
	rows    int
	look    Look
	cut     string
	bars    []rune
	lines   []Line
}

// View returns the lines of the screen, from the top. There are as many as the screen has rows, and none is wider than
// the screen.
func View(m *Model, now time.Time, columns, rows int, look Look) []Line {
	columns, rows = Bound(columns, rows)
	s := &screen{m: m, now: now, columns: columns, rows: rows, look: look, cut: "…", bars: []rune("▁▂▃▄▅▆▇█")}
	if look.ASCII {
		s.cut, s.bars = "~", []rune(".:-=+*%#")
	}
	switch {
	case columns < leastColumns || rows < leastRows:
		s.add(Line{{fmt.Sprintf("too small: needs %dx%d", leastColumns, leastRows), Warn}})
	case m.panel != nil && m.asking == nil:
		return m.panel.view(columns, rows, s.cut)
	default:
		s.draw()
	}
	for len(s.lines) < rows {
		s.add(nil)
	}
	return s.lines[:rows]
}

func (s *screen) add(l Line) { s.lines = append(s.lines, l.cutTo(s.columns, s.cut)) }

// draw divides the rows among the parts of the screen. It depends only on the numbers of waypoints and problems, so
// that the parts seldom move. Only if there are too many waypoints for their part, they also get the rows that the
// connections do not need.
func (s *screen) draw() {
	if !s.m.frozen.IsZero() {
		s.now = s.m.frozen
	}
	s.header()
	s.serves()
	s.problems(max(s.rows/12, 1))
	left := s.rows - len(s.lines) - 2 // for the line about the cursor's row and the keys
	events := 0
	if s.rows >= 16 {
		events = 1 + min(s.rows/8, 8)
	}
	left -= events
	if n := len(s.m.waypoints()); n > 0 && left >= 6 {
		shown := min(n, max(left/3, 2, left-2-s.connectionRows())) // 2: the titles of both tables
		s.waypoints(shown)
		left -= shown + 1
	} else if st := &s.m.feed.status; n == 0 && st.Client != nil && left >= 6 {
		lines := ui.Wrap(ui.NoWaypoints(st.Client, st.Collective != nil), s.columns)
		for _, l := range lines[:min(len(lines), left-2)] {
			s.add(Line{{l, Dim}})
			left--
		}
	}
	if st := &s.m.feed.status; st.Client == nil && st.Serving != nil && left >= 2 {
		s.members(left)
	} else {
		s.connections(left)
	}
	s.events(events)
	s.add(s.detail())
	s.add(s.keys())
}

// header shows the member, the time, and the total rates.
func (s *screen) header() {
	m := s.m
	st := &m.feed.status
	if m.feed.heard.IsZero() {
		s.add(Line{{"dcol top", Strong}, {"  waiting for the agent", Dim}})
		s.add(nil)
		return
	}
	state, style := "", Dim
	switch {
	case !m.frozen.IsZero():
		state, style = "frozen ", Accent
	case !m.feed.since.IsZero():
		state, style = "no answer for "+ui.Age(s.now, m.feed.since)+" ", Bad
	case s.now.Sub(m.feed.heard) > m.every+3*time.Second:
		state, style = "no answer for "+ui.Age(s.now, m.feed.heard)+" ", Bad
	case m.every > time.Second && s.columns >= 60:
		state = fmt.Sprintf("updated every %.0f s ", m.every.Seconds())
	}
	clock := s.now.Format("15:04:05")
	name := clean(st.Member)
	about := " " + strings.Join(st.Roles, ", ") + ", agent running for " + ui.Age(s.now, st.Since)
	if s.columns < 60 {
		about = " " + strings.Join(st.Roles, ", ") + ", up " + ui.Age(s.now, st.Since)
	}
	room := s.columns - width(state) - width(clock) - 1
	left := Line{{name, Strong}, {clean(about), Dim}}.cutTo(room, s.cut)
	pad := strings.Repeat(" ", max(s.columns-left.width()-width(state)-width(clock), 0))
	s.add(append(left, Span{pad, Plain}, Span{state, style}, Span{clock, Plain}))
	switch {
	case st.Client != nil:
		s.sums()
	case st.Serving != nil:
		s.forwards()
	}
}

// sums shows the rates of all connections together.
func (s *screen) sums() {
	f := &s.m.feed
	u := using(&f.status)
	detours := 0
	for i := range u.Connections {
		for j := range u.Connections[i].Subflows {
			if u.Connections[i].Subflows[j].Waypoint != "" {
				detours++
			}
		}
	}
	chart := 0
	if s.columns >= 70 {
		chart = min((s.columns-60)/4, 24)
	}
	digits := 13
	number := ui.Rate
	if s.columns < 60 {
		number, digits = short, 6
	}
	line := Line{{"in ", Dim}, {fit(number(f.in.last(0)), digits, true, ""), Plain}}
	if chart > 0 {
		line = append(line, Span{" " + f.in.spark(chart, s.bars), Accent})
	}
	line = append(line, Span{"  out ", Dim}, Span{fit(number(f.out.last(0)), digits, true, ""), Plain})
	if chart > 0 {
		line = append(line, Span{" " + f.out.spark(chart, s.bars), Accent})
	}
	words := "  " + ui.Number(len(u.Connections), "connection", "connections")
	if s.columns >= 60 {
		words += ", " + ui.Number(detours, "detour", "detours")
	}
	if n := len(u.Plain); n > 0 {
		words += fmt.Sprintf(", %d plain TCP", n)
	}
	s.add(append(line, Span{words, Plain}))
}

// problems shows the first problems.
func (s *screen) problems(most int) {
	list := s.m.feed.status.Problems
	if silent := s.m.feed.silent; silent != "" {
		list = append([]string{"the agent does not answer: " + silent}, list...)
	}
	for i, p := range list {
		if i == most-1 && len(list) > most {
			s.add(Line{{fmt.Sprintf("PROBLEM (and %d more: p): ", len(list)-most), Bad}, {p, Plain}})
			return
		}
		s.add(Line{{"PROBLEM: ", Bad}, {p, Plain}})
	}
}

// short returns a rate with only the first letter of its unit, such as 18.7M.
func short(bps float64) string {
	number, unit, _ := strings.Cut(ui.Rate(bps), " ")
	if strings.HasPrefix(unit, "bit") {
		return number
	}
	return number + unit[:1]
}

// rate returns a rate, shortened if the screen is narrow.
func (s *screen) rate(bps float64) cell {
	text := short(bps)
	if s.columns >= airyColumns {
		text = ui.Rate(bps)
	}
	if bps < 1 {
		return cell{text, Dim}
	}
	return cell{text, Plain}
}

// bytes returns a number of bytes, shortened if the screen is narrow.
func (s *screen) bytes(n uint64) cell {
	text := ui.Bytes(n)
	if s.columns < airyColumns {
		number, unit, _ := strings.Cut(text, " ")
		text = number + strings.TrimSuffix(unit, "B")
	}
	if n == 0 {
		return cell{text, Dim}
	}
	return cell{text, Plain}
}

// rateColumn returns a column for rates.
func (s *screen) rateColumn(name string) column {
	if s.columns >= airyColumns {
		return column{title: name, width: 12, right: true}
	}
	title := name + " bit/s"
	return column{title: title, width: len(title), right: true}
}

func (s *screen) gap() int {
	if s.columns >= airyColumns {
		return 2
	}
	return 1
}

// mark returns the sign that shows whether a connection's subflows are folded.
func (s *screen) mark(folded bool) string {
	switch {
	case s.look.ASCII && folded:
		return "+ "
	case s.look.ASCII:
		return "- "
	case folded:
		return "▸ "
	}
	return "▾ "
}

// events shows the last events, the latest at the bottom.
func (s *screen) events(rows int) {
	if rows == 0 {
		return
	}
	s.add(Line{{fit("EVENTS", s.columns, false, s.cut), Title}})
	list := s.m.feed.events
	shown := list[max(len(list)-rows+1, 0):]
	for _, e := range shown {
		s.add(Line{{e.At.Format("15:04:05") + " ", Dim}, {e.Text, e.Style}})
	}
	if len(shown) == 0 && !s.m.feed.heard.IsZero() {
		s.add(Line{{"No events since dcol top was started.", Dim}})
		rows--
	}
	for range rows - 1 - len(shown) {
		s.add(nil)
	}
}

// detail returns a line with more about the row under the cursor.
func (s *screen) detail() Line {
	m := s.m
	switch {
	case m.cursor.onWaypoints:
		for i := range m.waypoints() {
			if w := &m.waypoints()[i]; idOf(w) == m.cursor.waypoint {
				return Line{{waypointDetail(w), Dim}}
			}
		}
	case m.cursor.row(m.rows) != nil:
		return Line{{rowDetail(m.cursor.row(m.rows)), Dim}}
	}
	return nil
}

func waypointDetail(w *api.Waypoint) string {
	text := fmt.Sprintf("%s at %v: ready: %s; %s", w.Name, w.Addr, ui.Ready(*w), ui.Number(w.Mappings, "mapping", "mappings"))
	if w.Why != "" {
		text = w.Name + ": " + w.Why
	}
	return text
}

func rowDetail(r *row) string {
	if r.sub == nil {
		switch {
		case r.conn.Note != "":
			return r.conn.Note
		case r.conn.Server.IsValid():
			return fmt.Sprintf("%v to the converter of %s (%v)", r.conn.Local, r.conn.Converter, r.conn.Remote)
		case !r.conn.Local.IsValid():
			return "to " + r.conn.Remote.String()
		}
		return fmt.Sprintf("%v to %v", r.conn.Local, r.conn.Remote)
	}
	text := fmt.Sprintf("%s to %v, %d of %d segments sent again", ui.PathName(*r.sub), r.sub.Remote, r.sub.Retransmitted, r.sub.Segments)
	if r.sub.Why != "" {
		text = r.sub.Why
	}
	return text
}

// keys returns the last line: a question to the user, the filter being typed, a notice, or the keys.
func (s *screen) keys() Line {
	m := s.m
	caret := "_"
	switch {
	case m.asking != nil:
		return Line{{m.asking.text, Warn}}
	case m.typing:
		return Line{{"filter: ", Strong}, {m.list.filter + caret, Plain}, {"  enter: keep, esc: none", Dim}}
	case m.notice != "":
		return Line{{m.notice, Accent}}
	}
	line := Line{}
	for _, k := range []struct{ key, word string }{
		{"?", "help"}, {"q", "quit"}, {"/", "filter"}, {"s", "sort"}, {"space", "freeze"}, {"tab", "waypoints"}, {"w", "why"}, {"u", "use"}, {"a", "avoid"}, {"enter", "fold"},
	} {
		gap := "  "
		if len(line) == 0 {
			gap = ""
		}
		if line.width()+len(gap)+len(k.key)+1+len(k.word) > s.columns {
			break
		}
		line = append(line, Span{gap, Plain}, Span{k.key, Strong}, Span{" " + k.word, Dim})
	}
	return line
}
