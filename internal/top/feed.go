package top

import (
	"math"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// mostEvents bounds the events that are remembered.
const mostEvents = 500

// feed holds the agent's last state, the history of rates, and the events.
type feed struct {
	status api.Status
	heard  time.Time // when the state arrived; zero: none has yet
	since  time.Time // when the agent stopped answering; zero: it answers
	silent string    // why it does not answer

	in, out   history
	conns     map[connKey]*connHistory
	waypoints map[waypointID]*history
	forwarded history             // for all members together, if this host is a waypoint
	served    map[string]*history // for each member
	events    []Event             // the oldest first
}

// connHistory remembers the rates of a connection and of its subflows, in both directions together.
type connHistory struct {
	all  history
	subs map[subKey]*subHistory
	// level is the order of magnitude of the recent rate, in steps of a factor of about three. Connections are sorted
	// by it, because their order would change all the time if they were sorted by the rate itself.
	level float64
}

// subHistory remembers the rates of a subflow, and how many segments were sent.
type subHistory struct {
	rates history
	sent  sentHistory
}

// lately is the number of rates whose mean decides the order of rows.
const lately = 10

// rank updates the level. The level changes only if the rate is clearly outside it.
func (h *connHistory) rank() {
	const beyond = 0.25
	exact := 0.0
	if mean := h.all.mean(lately); mean >= quiet {
		exact = 2 * math.Log10(mean)
	}
	if exact < h.level-beyond || exact >= h.level+1+beyond {
		h.level = math.Floor(exact)
	}
}

// take accepts a new state.
func (f *feed) take(s api.Status, now time.Time) {
	switch {
	case f.heard.IsZero():
	case !f.since.IsZero():
		f.event(now, Good, "the agent answers again")
		fallthrough
	default:
		f.events = append(f.events, Differences(&f.status, &s, now)...)
	}
	f.events = f.events[max(len(f.events)-mostEvents, 0):]
	if !f.heard.IsZero() {
		f.serve(ServedRates(&f.status, &s, now.Sub(f.heard)))
	}
	f.status, f.heard, f.since, f.silent = s, now, time.Time{}, ""
	f.measure()
}

// serve adds the rates of members to their histories, and forgets those of members that are gone.
func (f *feed) serve(list []ServedRate) {
	old, sum := f.served, 0.0
	f.served = make(map[string]*history, len(list))
	for _, r := range list {
		h := old[r.Member]
		if h == nil {
			h = &history{}
		}
		h.add(r.Rate)
		f.served[r.Member] = h
		sum += r.Rate
	}
	f.forwarded.add(sum)
}

// fail records that the agent does not answer.
func (f *feed) fail(err error, now time.Time) {
	if f.since.IsZero() {
		f.since = now
		f.event(now, Bad, "the agent does not answer: "+err.Error())
	}
	f.silent = clean(err.Error())
}

func (f *feed) event(at time.Time, style Style, text string) {
	f.events = append(f.events, Event{at, clean(text), style})
}

// measure adds the rates of the state to the histories, and forgets those of connections and subflows that ended.
func (f *feed) measure() {
	u := using(&f.status)
	old, oldWaypoints := f.conns, f.waypoints
	f.conns = make(map[connKey]*connHistory, len(u.Connections))
	f.waypoints = make(map[waypointID]*history, len(u.Waypoints))
	var in, out float64
	for i := range u.Connections {
		c := &u.Connections[i]
		k := keyOf(c)
		h := old[k]
		if h == nil {
			h = &connHistory{}
		}
		subs := make(map[subKey]*subHistory, len(c.Subflows))
		sum := 0.0
		for j := range c.Subflows {
			s := &c.Subflows[j]
			sk := subKey{s.Local, s.Remote}
			sh := h.subs[sk]
			if sh == nil {
				sh = &subHistory{}
			}
			both := s.ReceiveRate + s.SendRate
			sh.rates.add(both)
			sh.sent.add(s)
			subs[sk] = sh
			sum += both
			in, out = in+s.ReceiveRate, out+s.SendRate
		}
		h.all.add(sum)
		h.rank()
		h.subs = subs
		f.conns[k] = h
	}
	through := f.load()
	for i := range u.Waypoints {
		id := idOf(&u.Waypoints[i])
		h := oldWaypoints[id]
		if h == nil {
			h = &history{}
		}
		h.add(through[id].in + through[id].out)
		f.waypoints[id] = h
	}
	f.in.add(in)
	f.out.add(out)
}

// load returns the present rates through each address of a waypoint, to this host and from it.
func (f *feed) load() map[waypointID]rates { return loads(using(&f.status)) }

// passes returns the waypoint's address that a subflow uses: the one to which it leads, or for a tunnel an address at
// which tunnels of its kind are ready.
func passes(s *api.Subflow, list []api.Waypoint) (id waypointID) {
	for i := range list {
		w := &list[i]
		switch {
		case w.Name != s.Waypoint:
		case w.Addr.Addr() == s.Remote.Addr():
			return idOf(w)
		case id == waypointID{}, slices.ContainsFunc(w.Kinds, func(k api.WaypointKind) bool { return k.Kind == s.Kind && k.State == api.KindReady }):
			id = idOf(w)
		}
	}
	return id
}

// rates are bits per second in both directions.
type rates struct{ in, out float64 }
