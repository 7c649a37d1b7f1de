package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/top"
	"github.com/detour-collective/dcol/internal/ui"
)

const (
	// lookEvery and lookSeldom are the shortest and the longest time between two states. usualShare is the part of that
	// time that a state may take. So it bounds the use of a processor for the page.
	lookEvery  = time.Second
	lookSeldom = 10 * time.Second
	usualShare = 0.003
	// mostStreams bounds the browsers that are served at a time.
	mostStreams = 8
	// mostShown bounds the connections that a state contains. Those with the highest rates are kept.
	mostShown  = 200
	mostEvents = 300
	// usualPatience is the time that a browser has to read one state.
	usualPatience = 10 * time.Second
)

// hub requests the agent's state while there are readers, and sends it to all of them. It queues nothing: a slow reader
// gets the newest state after it has read the one before.
type hub struct {
	agent    Agent
	every    time.Duration // the shortest time between two states
	share    float64       // the part of the time that the agent may take to answer
	patience time.Duration // the time that a browser has to read one state

	mu      sync.Mutex
	message []byte        // the newest state, and a newline
	changed chan struct{} // closed when there is a newer state
	streams int
	begun   chan struct{} // receives a value when the first stream begins

	last   *api.Status
	lastAt time.Time // when it was the agent's state
	events []event
}

// event is a top.Event as JSON.
type event struct {
	At    time.Time `json:"at"`
	Text  string    `json:"text"`
	Style string    `json:"style"`
}

// message is one state, as a stream delivers it.
type message struct {
	At     time.Time   `json:"at"`
	Status *api.Status `json:"status,omitempty"`
	// Connections is the number of all connections, and Loads is computed from all. Status has only the busiest.
	Connections int        `json:"connections"`
	Loads       []top.Load `json:"loads"`
	// NoWaypoints says what to do about a client without waypoints. It is empty for others.
	NoWaypoints string `json:"no_waypoints,omitempty"`
	// Choices and Terms are lines about the client's waypoints, and about what this waypoint offers.
	Choices []string `json:"choices"`
	Terms   []string `json:"terms"`
	// Served has the rate of each member that this waypoint serves. It is null in the first state, and empty without them.
	Served []top.ServedRate `json:"served"`
	Events []event          `json:"events"` // newest first
	Error  string           `json:"error,omitempty"`
}

func newHub(agent Agent) *hub {
	return &hub{agent: agent, every: lookEvery, share: usualShare, patience: usualPatience, changed: make(chan struct{}), begun: make(chan struct{}, 1)}
}

// run requests states until ctx ends.
func (h *hub) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.begun:
		case <-timer.C:
		}
		wait := lookSeldom
		if h.watched() {
			began := time.Now()
			h.look(ctx)
			wait = min(max(time.Duration(float64(time.Since(began))/h.share), h.every), lookSeldom)
		} else {
			h.last = nil // no events are made from what happens while nobody reads
		}
		timer.Reset(wait)
	}
}

func (h *hub) watched() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.streams > 0
}

// look requests a state and publishes it.
func (h *hub) look(ctx context.Context) {
	now := time.Now()
	m := message{At: now}
	s, err := h.agent.Status(ctx)
	if err != nil {
		m.Error = err.Error()
	} else {
		if h.last != nil {
			h.note(top.Differences(h.last, &s, now))
			m.Served = top.ServedRates(h.last, &s, now.Sub(h.lastAt))
		}
		whole := s
		h.last, h.lastAt = &whole, now
		if s.Client != nil {
			m.Connections, m.Loads = len(s.Client.Connections), top.Loads(s.Client)
			if len(s.Client.Waypoints) == 0 {
				m.NoWaypoints = ui.NoWaypoints(s.Client, s.Collective != nil)
			}
			m.Choices = ui.Choices(s.Client, now)
			shown := *s.Client
			shown.Connections = busiest(shown.Connections)
			s.Client = &shown
		}
		if s.Serving != nil {
			m.Terms = ui.Terms(s.Serving.Given)
		}
		m.Status = &s
	}
	m.Events = h.events
	data, err := json.Marshal(m)
	if err != nil {
		return // cannot happen with these types
	}
	data = append(data, '\n')
	h.mu.Lock()
	defer h.mu.Unlock()
	h.message = data
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *hub) note(list []top.Event) {
	styles := map[top.Style]string{top.Good: "good", top.Warn: "warn", top.Bad: "bad", top.Accent: "accent"}
	for _, e := range list {
		h.events = slices.Insert(h.events, 0, event{At: e.At, Text: e.Text, Style: styles[e.Style]})
	}
	h.events = h.events[:min(len(h.events), mostEvents)]
}

// busiest returns the connections with the highest rates, in their order.
func busiest(all []api.Connection) []api.Connection {
	if len(all) <= mostShown {
		return all
	}
	rate := func(c *api.Connection) (sum float64) {
		for i := range c.Subflows {
			sum += c.Subflows[i].ReceiveRate + c.Subflows[i].SendRate
		}
		return sum
	}
	order := make([]int, len(all))
	rates := make([]float64, len(all))
	for i := range all {
		order[i], rates[i] = i, rate(&all[i])
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case rates[a] > rates[b]:
			return -1
		case rates[a] < rates[b]:
			return 1
		}
		return 0
	})
	order = order[:mostShown]
	slices.Sort(order)
	out := make([]api.Connection, len(order))
	for i, n := range order {
		out[i] = all[n]
	}
	return out
}

// stream sends states, one a line, until the browser disconnects or reads too slowly.
func (h *hub) stream(w http.ResponseWriter, r *http.Request) {
	if !h.enter() {
		http.Error(w, fmt.Sprintf("%d pages are open already: close one", mostStreams), http.StatusServiceUnavailable)
		return
	}
	defer h.leave()
	w.Header().Set("Content-Type", "application/x-ndjson")
	control := http.NewResponseController(w)
	for sent := []byte(nil); ; {
		h.mu.Lock()
		data, changed := h.message, h.changed
		h.mu.Unlock()
		if len(data) > 0 && (len(sent) == 0 || &data[0] != &sent[0]) {
			sent = data
			if err := control.SetWriteDeadline(time.Now().Add(h.patience)); err != nil {
				return
			}
			if _, err := w.Write(data); err != nil || control.Flush() != nil {
				return
			}
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func (h *hub) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.streams >= mostStreams {
		return false
	}
	if h.streams++; h.streams == 1 {
		h.message = nil // it is old: nobody has read since
		select {
		case h.begun <- struct{}{}:
		default:
		}
	}
	return true
}

func (h *hub) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.streams--
}
