package top

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/ui"
)

// Event is something that happened between two states of the agent.
type Event struct {
	At    time.Time
	Text  string
	Style Style
}

// mostAlike limits the connections that are named one by one if the same happened to them at once. Of more connections,
// only the number is shown.
const mostAlike = 3

// connKey identifies a connection. It includes the start, because the kernel reuses tokens.
type connKey struct {
	token string
	since int64
}

func keyOf(c *api.Connection) connKey { return connKey{c.Token, c.Since.UnixNano()} }

// subKey identifies a subflow of a connection.
type subKey struct{ local, remote netip.AddrPort }

// Differences returns the events between two states. Equal states always give the same order.
func Differences(old, now *api.Status, at time.Time) []Event {
	d := difference{at: at, grouped: make(map[string][]happening)}
	if !old.Since.Equal(now.Since) {
		d.add(Warn, "the agent was restarted")
		return d.events
	}
	for _, p := range now.Problems {
		if !slices.Contains(old.Problems, p) {
			d.add(Bad, "PROBLEM: "+p)
		}
	}
	for _, p := range old.Problems {
		if !slices.Contains(now.Problems, p) {
			d.add(Good, "solved: "+p)
		}
	}
	was, is := using(old), using(now)
	d.waypoints(was.Waypoints, is.Waypoints)
	if a, b := steeringText(was.Steering, at), steeringText(is.Steering, at); a != b {
		d.add(Accent, "waypoints: "+cmp.Or(b, "chosen by measurements"))
	}
	switch {
	case is.Direct.IsLost() && !was.Direct.IsLost():
		d.add(Bad, "the direct path is lost: nothing has come over it since "+is.Direct.Since.Local().Format(time.TimeOnly))
	case was.Direct.IsLost() && is.Direct.Works():
		d.add(Good, "the direct path works again")
	}
	d.connections(was.Connections, is.Connections)
	return d.finish()
}

// using returns the client role's part, empty if the member is no client.
func using(s *api.Status) *api.Using {
	if s.Client == nil {
		return &api.Using{}
	}
	return s.Client
}

// difference collects events.
type difference struct {
	at      time.Time
	events  []Event
	grouped map[string][]happening
	order   []string // of the groups
}

// happening is something that happened to one connection, and perhaps to others at once.
type happening struct {
	server netip.AddrPort
	text   string
	style  Style
}

func (d *difference) add(style Style, text string) {
	d.events = append(d.events, Event{d.at, clean(text), style})
}

func (d *difference) group(name string, h happening) {
	if d.grouped[name] == nil {
		d.order = append(d.order, name)
	}
	d.grouped[name] = append(d.grouped[name], h)
}

func (d *difference) finish() []Event {
	for _, name := range d.order {
		list := d.grouped[name]
		if len(list) > mostAlike {
			d.add(list[0].style, fmt.Sprintf("%d connections: %s", len(list), name))
			continue
		}
		for _, h := range list {
			d.add(h.style, fmt.Sprintf("%v: %s", h.server, h.text))
		}
	}
	return d.events
}

func (d *difference) waypoints(was, is []api.Waypoint) {
	type key struct {
		name string
		addr netip.AddrPort
	}
	before := make(map[key]*api.Waypoint, len(was))
	for i := range was {
		before[key{was[i].Name, was[i].Addr}] = &was[i]
	}
	for i := range is {
		w := &is[i]
		k := key{w.Name, w.Addr}
		old := before[k]
		delete(before, k)
		if old != nil && old.State == w.State {
			continue
		}
		text := fmt.Sprintf("waypoint %s: %s", w.Name, w.State)
		if w.Why != "" {
			text += ": " + w.Why
		}
		d.add(waypointStyle(w.State), text)
	}
	for i := range was {
		if before[key{was[i].Name, was[i].Addr}] != nil {
			d.add(Dim, fmt.Sprintf("waypoint %s: no longer known", was[i].Name))
		}
	}
}

func (d *difference) connections(was, is []api.Connection) {
	before := make(map[connKey]*api.Connection, len(was))
	for i := range was {
		before[keyOf(&was[i])] = &was[i]
	}
	for i := range is {
		c := &is[i]
		k := keyOf(c)
		old := before[k]
		delete(before, k)
		if old == nil {
			d.group("opened", happening{c.Destination(), "opened", Accent})
			continue
		}
		d.subflows(c.Destination(), old.Subflows, c.Subflows)
	}
	for i := range was {
		c := &was[i]
		if before[keyOf(c)] == nil {
			continue
		}
		var in, out uint64
		for _, s := range c.Subflows {
			in, out = in+s.BytesReceived, out+s.BytesSent
		}
		d.group("ended", happening{c.Destination(), fmt.Sprintf("ended after %s, %s received, %s sent", ui.Age(d.at, c.Since), ui.Bytes(in), ui.Bytes(out)), Dim})
	}
}

func (d *difference) subflows(server netip.AddrPort, was, is []api.Subflow) {
	find := func(list []api.Subflow, s *api.Subflow) int {
		return slices.IndexFunc(list, func(o api.Subflow) bool { return o.Local == s.Local && o.Remote == s.Remote })
	}
	for i := range is {
		s := &is[i]
		if at := find(was, s); at >= 0 && was[at].State == s.State {
			continue
		}
		text := fmt.Sprintf("%s is %s", pathWords(s), subflowWord(s.State))
		d.group(text, happening{server, text, subflowStyle(s.State)})
	}
	for i := range was {
		if s := &was[i]; find(is, s) < 0 {
			text := pathWords(s) + " has ended"
			d.group(text, happening{server, text, Warn})
		}
	}
}

// pathWords names the path of a subflow in a sentence.
func pathWords(s *api.Subflow) string {
	if name := ui.PathName(*s); name != "direct" {
		return name
	}
	return "the direct path"
}

func subflowWord(s api.SubflowState) string {
	if s == api.SubflowBackup {
		return "a backup"
	}
	return string(s)
}

func subflowStyle(s api.SubflowState) Style {
	switch s {
	case api.SubflowUp:
		return Good
	case api.SubflowJoining:
		return Warn
	case api.SubflowSilent:
		return Bad
	}
	return Dim
}

func waypointStyle(s api.WaypointState) Style {
	switch s {
	case api.WaypointUp:
		return Good
	case api.WaypointDown:
		return Bad
	}
	return Warn
}

// steeringText returns the operator's wishes about waypoints, empty if there are none.
func steeringText(s api.Steering, now time.Time) string {
	if len(s.Use)+len(s.Avoid) == 0 {
		return ""
	}
	var b strings.Builder
	if err := ui.Steering(&b, s, now); err != nil {
		return ""
	}
	words := strings.Split(strings.TrimSpace(b.String()), "\n")
	for i, w := range words {
		words[i] = strings.ToLower(w[:1]) + w[1:]
	}
	return strings.Join(words, "; ")
}
