package top

import (
	"fmt"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/ui"
)

// window returns which rows of a list are shown so that row at is among them. If at is negative, the first rows are.
func window(n, space, at int) (from, to int) {
	if at >= space {
		from = at - space + 1
	}
	from = max(min(from, n-space), 0)
	return from, min(from+space, n)
}

// The columns of waypoints.
const (
	wName = iota
	wState
	wRTT
	wLoss
	wIn
	wTrend
	wOut
	wSubflows
	wReady
)

func (s *screen) waypointTable() table {
	columns := []column{
		wName:     {title: "WAYPOINT", width: 14, most: 40},
		wState:    {title: "STATE", width: 14},
		wRTT:      {title: "RTT", width: 9, right: true},
		wLoss:     {title: "LOSS", width: 7, right: true},
		wIn:       s.rateColumn("IN"),
		wTrend:    {title: "TREND", width: 8, most: 16},
		wOut:      s.rateColumn("OUT"),
		wSubflows: {title: "SUBFLOWS", width: 8, right: true},
		wReady:    {title: "READY, OR WHY NOT", width: 20, most: 200},
	}
	order := []int{wName, wState, wRTT, wIn, wSubflows, wLoss, wTrend, wOut, wReady}
	if s.columns < 60 {
		columns[wName].width, columns[wState].width = 10, 13
	}
	return newTable(columns, order, s.columns, s.gap(), s.cut)
}

// waypoints fills the given number of rows with the waypoints' table.
func (s *screen) waypoints(rows int) {
	m := s.m
	list := m.waypoints()
	t := s.waypointTable()
	load := m.feed.load()
	at := -1
	if m.cursor.onWaypoints {
		at = m.cursor.waypointAt
	}
	from, to := window(len(list), rows, at)
	s.add(t.header(len(list) - (to - from)))
	for i := from; i < to; i++ {
		w := &list[i]
		rtt, loss := "-", "-"
		if w.State == api.WaypointUp || w.State == api.WaypointClosed {
			rtt, loss = ui.RoundTrip(w.RTT), ui.SessionLoss(*w)
		}
		lossStyle := Plain
		if w.Loss >= 0.02 && loss != "-" {
			lossStyle = Warn
		}
		cells := []cell{
			wName:     {distinct(list, i), Plain},
			wState:    {s.waypointState(w), waypointStyle(w.State)},
			wRTT:      {rtt, Plain},
			wLoss:     {loss, lossStyle},
			wIn:       s.rate(load[idOf(w)].in),
			wTrend:    {m.feed.waypoints[idOf(w)].spark(t.widths[wTrend], s.bars), Accent},
			wOut:      s.rate(load[idOf(w)].out),
			wSubflows: {fmt.Sprint(w.Subflows), Plain},
			wReady:    {readyOrWhy(w), Dim},
		}
		s.addRow(t.row(cells), i == at)
	}
}

// distinct returns a name that tells a waypoint's address from its others. If the waypoint has another address, it adds
// the family, or the address if another one is of the same family.
func distinct(list []api.Waypoint, i int) string {
	w, several, alike := &list[i], false, false
	for j := range list {
		if j != i && list[j].Name == w.Name {
			several = true
			alike = alike || list[j].Addr.Addr().Is4() == w.Addr.Addr().Is4()
		}
	}
	switch {
	case !several:
		return w.Name
	case alike:
		return w.Name + ", " + w.Addr.String()
	case w.Addr.Addr().Is4():
		return w.Name + ", IPv4"
	}
	return w.Name + ", IPv6"
}

// waypointState returns the state of a waypoint, with the operator's wish or else with its age.
func (s *screen) waypointState(w *api.Waypoint) string {
	steering := using(&s.m.feed.status).Steering
	is := func(x api.Steered) bool { return x.Name == w.Name }
	state := string(w.State)
	switch {
	case slices.ContainsFunc(steering.Avoid, is):
		return "avoided, " + state
	case !slices.ContainsFunc(steering.Use, is):
		return state + " " + ui.Age(s.now, w.Since)
	case steering.Only:
		return "only, " + state
	}
	return "first, " + state
}

func readyOrWhy(w *api.Waypoint) string {
	if w.Why != "" {
		return w.Why
	}
	return ui.Ready(*w)
}

func (s *screen) addRow(l Line, chosen bool) {
	if chosen {
		l = l.chosen(s.columns)
	}
	s.add(l)
}

// The columns of connections.
const (
	cPath = iota
	cState
	cRTT
	cIn
	cTrend
	cOut
	cQueued
	cLoss
	cRetrans
	cReceived
	cSent
	cAge
	cWhy
)

func (s *screen) connectionTable() table {
	title := "CONNECTION by " + s.m.list.by.String()
	if f := s.m.list.filter; f != "" && !s.m.typing {
		title = "FILTER " + f + ", by " + s.m.list.by.String() // otherwise users forget that connections are hidden
	}
	columns := []column{
		cPath:     {title: title, width: 25, most: 44},
		cState:    {title: "STATE", width: 7},
		cRTT:      {title: "RTT", width: 9, right: true},
		cIn:       s.rateColumn("IN"),
		cTrend:    {title: "TREND", width: 8, most: 16},
		cOut:      s.rateColumn("OUT"),
		cQueued:   {title: "QUEUED", width: 9, right: true},
		cLoss:     {title: "LOSS", width: 7, right: true},
		cRetrans:  {title: "RETRANS", width: 7, right: true},
		cReceived: {title: "RECEIVED", width: 9, right: true},
		cSent:     {title: "SENT", width: 9, right: true},
		cAge:      {title: "FOR", width: 6, right: true},
		cWhy:      {title: "WHY", width: 24, most: 200},
	}
	order := []int{cPath, cIn, cState, cRTT, cLoss, cOut, cQueued, cTrend, cRetrans, cAge, cWhy, cReceived, cSent}
	if s.columns < airyColumns { // eight columns fit into 80
		columns[cOut] = column{title: "OUT", width: 6, right: true}
		columns[cQueued].width, columns[cLoss].width, columns[cTrend].width = 6, 6, 6
	}
	if s.columns < 60 {
		columns[cPath].width = 20
	}
	if s.columns < wideColumns {
		order = order[:len(order)-4]
	}
	return newTable(columns, order, s.columns, s.gap(), s.cut)
}

// connectionRows returns the number of rows that the connections' table needs below its titles.
func (s *screen) connectionRows() int {
	if len(s.m.rows) == 0 {
		return len(ui.Wrap(s.nothing(), s.columns))
	}
	return len(s.m.rows)
}

// connections fills the given number of rows with the connections' table.
func (s *screen) connections(rows int) {
	if rows < 2 {
		return
	}
	m := s.m
	t := s.connectionTable()
	rows--
	if len(m.rows) == 0 {
		s.add(t.header(0))
		lines := ui.Wrap(s.nothing(), s.columns)
		lines = lines[:min(len(lines), rows)]
		for _, l := range lines {
			s.add(Line{{l, Dim}})
		}
		for range rows - len(lines) {
			s.add(nil)
		}
		return
	}
	at := -1
	if m.cursor.set {
		at = m.cursor.at
	}
	from, to := window(len(m.rows), rows, at)
	s.add(t.header(len(m.rows) - (to - from)))
	for i := from; i < to; i++ {
		r := &m.rows[i]
		cells := s.connectionCells(r, t)
		if r.sub != nil {
			cells = s.subflowCells(r, t)
		}
		s.addRow(t.row(cells), i == at && !m.cursor.onWaypoints)
	}
	for range rows - (to - from) {
		s.add(nil)
	}
}

// nothing returns the reason why the list of connections is empty.
func (s *screen) nothing() string {
	st := &s.m.feed.status
	switch {
	case s.m.feed.heard.IsZero():
		return ""
	case st.Client == nil:
		return "This member is no client, so it has no connections with detours."
	case len(st.Client.Connections) > 0:
		return "No connection fits the filter. Esc clears it."
	}
	return "No MPTCP connections. `dcol run -- PROGRAM` makes a program's connections MPTCP."
}

func (s *screen) connectionCells(r *row, t table) []cell {
	c := r.conn
	var in, out float64
	var received, sent, again, queued uint64
	for i := range c.Subflows {
		x := &c.Subflows[i]
		in, out, queued = in+x.ReceiveRate, out+x.SendRate, queued+x.Queued
		received, sent, again = received+x.BytesReceived, sent+x.BytesSent, again+x.Retransmitted
	}
	folded := s.m.list.folded != s.m.list.other[r.id.conn]
	return []cell{
		cPath:     {s.mark(folded) + c.Destination().String(), Strong},
		cState:    {ui.Number(len(c.Subflows), "path", "paths"), Plain},
		cRTT:      {ui.RoundTrip(roundTrip(c)), Plain},
		cIn:       s.rate(in),
		cTrend:    {s.m.feed.trend(r).spark(t.widths[cTrend], s.bars), Accent},
		cOut:      s.rate(out),
		cQueued:   s.bytes(queued),
		cLoss:     s.m.feed.sent(r).loss(),
		cRetrans:  number(again),
		cReceived: {ui.Bytes(received), Plain},
		cSent:     {ui.Bytes(sent), Plain},
		cAge:      {ui.Age(s.now, c.Since), Plain},
		cWhy:      {c.Note, Dim},
	}
}

func (s *screen) subflowCells(r *row, t table) []cell {
	x := r.sub
	name := ui.PathName(*x)
	if s.columns < 60 {
		name, _, _ = strings.Cut(name, " (")
	}
	return []cell{
		cPath:     {"    " + name, Plain},
		cState:    {string(x.State), subflowStyle(x.State)},
		cRTT:      {ui.RoundTrip(x.RTT), Plain},
		cIn:       s.rate(x.ReceiveRate),
		cTrend:    {s.m.feed.trend(r).spark(t.widths[cTrend], s.bars), Accent},
		cOut:      s.rate(x.SendRate),
		cQueued:   s.bytes(x.Queued),
		cLoss:     s.m.feed.sent(r).loss(),
		cRetrans:  number(x.Retransmitted),
		cReceived: {ui.Bytes(x.BytesReceived), Plain},
		cSent:     {ui.Bytes(x.BytesSent), Plain},
		cAge:      {ui.Age(s.now, x.Since), Plain},
		cWhy:      {x.Why, Dim},
	}
}

func number(n uint64) cell {
	if n == 0 {
		return cell{"0", Dim}
	}
	return cell{fmt.Sprint(n), Plain}
}

// trend returns the history of a row.
func (f *feed) trend(r *row) *history {
	h := f.conns[r.id.conn]
	switch {
	case h == nil:
		return nil
	case r.sub == nil:
		return &h.all
	}
	if sub := h.subs[r.id.sub]; sub != nil {
		return &sub.rates
	}
	return nil
}
