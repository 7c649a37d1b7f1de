// Package top shows the agent's state live on a whole terminal: connections with their subflows, waypoints, problems
// and events. Package web uses its Differences and Loads.
//
// Model holds all state. Its method Handle accepts a message and the time, and returns requests to the agent. View
// renders a Model as lines. Neither does I/O. Run connects both to a terminal and to the agent.
//
//	program.go terminal.go     Run: asking the agent, drawing on the terminal
//	top.go keys.go cursor.go   Model: messages, keys, the chosen row
//	feed.go history.go loss.go the last state, rates and losses over time
//	difference.go load.go      events between two states, rates by waypoint
//	rows.go                    sorting, filtering and folding connections
//	view.go lists.go panel.go  View: the parts of the screen
//	line.go table.go           styled text, columns
package top

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/ui"
)

// Message is an input of a Model: Answered, Failed, Explained, Steered or Key.
type Message interface{ message() }

// Answered carries the agent's state, and the time until the agent is asked again.
type Answered struct {
	Status api.Status
	Every  time.Duration
}

// Failed carries the error of a request for the agent's state.
type Failed struct{ Err error }

// Explained answers AskWhy.
type Explained struct {
	Server netip.AddrPort // of the request
	Why    api.Why
	Err    error
}

// Steered answers AskSteer.
type Steered struct {
	Steering api.Steering
	Err      error
}

// Key is a key that the user pressed: a character, or a name such as "up", "enter" or "ctrl-c".
type Key string

func (Answered) message()  {}
func (Failed) message()    {}
func (Explained) message() {}
func (Steered) message()   {}
func (Key) message()       {}

// Request is an output of a Model, which the caller carries out: AskWhy, AskSteer or Quit.
type Request interface{ request() }

// AskWhy requests an explanation of the agent's decisions about a server.
type AskWhy struct{ Server netip.AddrPort }

// AskSteer requests a change of which waypoints are used.
type AskSteer struct{ Request api.SteerRequest }

// Quit ends the program.
type Quit struct{}

func (AskWhy) request()   {}
func (AskSteer) request() {}
func (Quit) request()     {}

// Model is the state of the program. The zero value has no answer from the agent yet.
type Model struct {
	feed    feed
	every   time.Duration
	waiting *Answered // the last answer while the picture is frozen
	frozen  time.Time // when the picture was frozen; zero: it is not
	list    listing
	cursor  cursor
	rows    []row // of connections, in order
	typing  bool  // the user types the filter
	asking  *question
	panel   *panel
	notice  string
}

// question asks the user to confirm an action.
type question struct {
	text string
	// answers has the requests of the keys that confirm.
	answers map[Key]api.SteerRequest
}

// Handle accepts a message.
func (m *Model) Handle(msg Message, now time.Time) []Request {
	switch msg := msg.(type) {
	case Answered:
		m.answered(msg, now)
	case Failed:
		m.feed.fail(msg.Err, now)
	case Explained:
		m.explained(msg, now)
	case Steered:
		m.steered(msg, now)
	case Key:
		return m.pressed(msg, now)
	}
	return nil
}

func (m *Model) answered(a Answered, now time.Time) {
	m.every = a.Every
	if !m.frozen.IsZero() {
		m.waiting = &a
		return
	}
	m.feed.take(a.Status, now)
	m.refresh()
}

// refresh makes the rows again and keeps the cursor on its row.
func (m *Model) refresh() {
	m.rows = m.list.rows(&m.feed)
	m.cursor.settle(m.rows, m.waypoints())
}

func (m *Model) waypoints() []api.Waypoint { return using(&m.feed.status).Waypoints }

// freeze stops updating the picture, or continues.
func (m *Model) freeze(now time.Time) {
	if m.frozen.IsZero() {
		m.frozen = now
		return
	}
	m.frozen = time.Time{}
	if m.waiting != nil {
		m.feed.take(m.waiting.Status, now)
		m.waiting = nil
	}
	m.refresh()
}

func (m *Model) explained(e Explained, now time.Time) {
	if m.panel == nil || m.panel.waits != e.Server {
		return // the panel was closed meanwhile, or is about another server
	}
	if e.Err != nil {
		m.panel = newPanel(m.panel.title, "The agent gave no answer: "+e.Err.Error())
		return
	}
	e.Why.KeepOnly(m.panel.token) // of all connections to the server, possibly hundreds
	m.panel = &panel{title: m.panel.title, text: func(columns int) string { return ui.WhyText(e.Why, now, columns) }}
}

func (m *Model) steered(s Steered, now time.Time) {
	if s.Err != nil {
		m.notice = "not done: " + s.Err.Error()
		return
	}
	if m.feed.status.Client != nil {
		client := *m.feed.status.Client
		if a, b := steeringText(client.Steering, now), steeringText(s.Steering, now); a == b {
			m.notice = "done; nothing has changed"
			return
		}
	}
	m.notice = "done: " + orElse(steeringText(s.Steering, now), "waypoints are chosen by measurements")
}

func orElse(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// why requests an explanation for the server of the row under the cursor.
func (m *Model) why() []Request {
	r := m.cursor.row(m.rows)
	if m.cursor.onWaypoints || r == nil {
		m.notice = "choose a connection first: arrow keys"
		return nil
	}
	m.panel = newPanel(fmt.Sprintf("Why: %v", r.conn.Destination()), "Waiting for the agent.")
	m.panel.waits, m.panel.token = r.conn.Destination(), r.conn.Token
	return []Request{AskWhy{r.conn.Destination()}}
}

// waypoint returns the name of the waypoint under the cursor, or of the one through which the subflow under the cursor
// leads.
func (m *Model) waypoint() string {
	if m.cursor.onWaypoints {
		return m.cursor.waypoint.name
	}
	if r := m.cursor.row(m.rows); r != nil && r.sub != nil {
		return r.sub.Waypoint
	}
	return ""
}

// steer asks the user whether a waypoint shall be used first or never.
func (m *Model) steer(word string) {
	name := m.waypoint()
	if name == "" {
		m.notice = "choose a waypoint first: tab and arrow keys, or a subflow through it"
		return
	}
	r := api.SteerRequest{Word: word, Waypoints: []string{name}}
	if word == api.SteerAvoid {
		m.asking = &question{fmt.Sprintf("Avoid %s: take no detour through it? y: yes, n: no", name), map[Key]api.SteerRequest{"y": r}}
		return
	}
	only := r
	only.Only = true
	m.asking = &question{fmt.Sprintf("Use %s first? y: yes, o: use no other, n: no", name), map[Key]api.SteerRequest{"y": r, "o": only}}
}

// reset asks the user whether the configuration shall decide about waypoints again.
func (m *Model) reset() {
	m.asking = &question{"Use waypoints as the configuration says? y: yes, n: no", map[Key]api.SteerRequest{"y": {Word: api.SteerReset}}}
}

// problems shows all problems in full.
func (m *Model) problems() {
	list := slices.Clone(m.feed.status.Problems)
	if m.feed.silent != "" {
		list = append(list, "the agent does not answer: "+m.feed.silent)
	}
	if len(list) == 0 {
		m.notice = "there are no problems"
		return
	}
	for i := range list {
		list[i] = clean(list[i])
	}
	m.panel = newPanel("Problems", strings.Join(list, "\n\n"))
}
