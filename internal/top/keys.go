package top

import (
	"time"
	"unicode/utf8"

	"github.com/detour-collective/dcol/internal/api"
)

// page is the number of rows by which the keys for pages move the cursor.
const page = 10

// longestFilter bounds the length of the filter, in bytes.
const longestFilter = 200

// pressed handles a key.
func (m *Model) pressed(k Key, now time.Time) []Request {
	m.notice = ""
	switch {
	case k == "ctrl-c":
		return []Request{Quit{}}
	case m.asking != nil:
		return m.reply(k)
	case m.typing:
		m.typed(k)
		return nil
	case m.panel != nil:
		if m.panel.pressed(k) {
			m.panel = nil
		}
		return nil
	}
	if m.moved(k) {
		return nil
	}
	switch k {
	case "q":
		return []Request{Quit{}}
	case "w":
		return m.why()
	case "u":
		m.steer(api.SteerUse)
	case "a":
		m.steer(api.SteerAvoid)
	case "r":
		m.reset()
	case "p":
		m.problems()
	case "?", "h":
		m.panel = newPanel("Help", help)
	case " ":
		m.freeze(now)
	case "/":
		m.typing = true
	case "esc":
		m.list.filter = ""
		m.cursor = cursor{}
		m.refresh()
	case "s", "S":
		step := order(1)
		if k == "S" {
			step = orders - 1
		}
		m.list.by = (m.list.by + step) % orders
		m.refresh()
	case "enter", "left", "right":
		m.fold(k)
	case "e":
		m.list.folded, m.list.other = !m.list.folded, nil
		m.foldCursor()
		m.refresh()
	}
	return nil
}

// moved moves the cursor, and reports whether the key means that.
func (m *Model) moved(k Key) bool {
	switch k {
	case "up", "k":
		m.cursor.move(-1, m.rows, m.waypoints())
	case "down", "j":
		m.cursor.move(1, m.rows, m.waypoints())
	case "pgup":
		m.cursor.move(-page, m.rows, m.waypoints())
	case "pgdn":
		m.cursor.move(page, m.rows, m.waypoints())
	case "home", "g":
		m.cursor.move(-len(m.rows)-len(m.waypoints()), m.rows, m.waypoints())
	case "end", "G":
		m.cursor.move(0, m.rows, m.waypoints())
		m.cursor.move(len(m.rows)+len(m.waypoints()), m.rows, m.waypoints())
	case "tab":
		m.cursor.turn(m.rows, m.waypoints())
	default:
		return false
	}
	return true
}

// reply handles the answer to the question. Any key that is not one of the answers means no.
func (m *Model) reply(k Key) []Request {
	r, ok := m.asking.answers[k]
	m.asking = nil
	if !ok {
		m.notice = "nothing was changed"
		return nil
	}
	return []Request{AskSteer{r}}
}

// typed changes the filter.
func (m *Model) typed(k Key) {
	switch k {
	case "enter":
		m.typing = false
	case "esc":
		m.typing, m.list.filter = false, ""
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(m.list.filter)
		m.list.filter = m.list.filter[:len(m.list.filter)-n]
	default:
		if utf8.RuneCountInString(string(k)) == 1 && len(m.list.filter) < longestFilter {
			m.list.filter += clean(string(k))
		}
	}
	m.refresh()
}

// fold shows or hides the subflows of the connection under the cursor.
func (m *Model) fold(k Key) {
	r := m.cursor.row(m.rows)
	if m.cursor.onWaypoints || r == nil {
		return
	}
	c := r.id.conn
	hidden := m.list.folded != m.list.other[c]
	if k == "left" && hidden || k == "right" && !hidden {
		return
	}
	if m.list.other == nil {
		m.list.other = make(map[connKey]bool)
	}
	if m.list.other[c] {
		delete(m.list.other, c)
	} else {
		m.list.other[c] = true
	}
	m.foldCursor()
	m.refresh()
}

// foldCursor moves the cursor from a subflow to its connection.
func (m *Model) foldCursor() { m.cursor.id.sub = subKey{} }
