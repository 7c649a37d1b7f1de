package top

import (
	"cmp"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/ui"
)

// order is a sort order of connections.
type order int

// The orders. Within each, the oldest connection is first.
const (
	byTraffic order = iota // by recent traffic
	byAge
	byServer
	byRTT
	byRetransmissions
	orders // the number of orders
)

func (o order) String() string {
	return [...]string{"traffic", "age", "server", "RTT", "retransmissions"}[o]
}

// rowID identifies a row: a connection, or a subflow of it if sub is set.
type rowID struct {
	conn connKey
	sub  subKey
}

// row is a connection, or one of its subflows, on the screen.
type row struct {
	id   rowID
	conn *api.Connection
	sub  *api.Subflow // nil: the connection itself
}

// listing says how connections are sorted, filtered and folded.
type listing struct {
	by     order
	filter string
	folded bool             // subflows are not shown
	other  map[connKey]bool // connections folded otherwise
}

// rows returns the rows of all connections that fit the filter.
func (l *listing) rows(f *feed) []row {
	u := using(&f.status)
	list := make([]*api.Connection, 0, len(u.Connections))
	for i := range u.Connections {
		if c := &u.Connections[i]; l.shows(c) {
			list = append(list, c)
		}
	}
	l.sort(list, f)
	rows := make([]row, 0, 3*len(list))
	for _, c := range list {
		k := keyOf(c)
		rows = append(rows, row{rowID{conn: k}, c, nil})
		if l.folded != l.other[k] {
			continue
		}
		for i := range c.Subflows {
			s := &c.Subflows[i]
			rows = append(rows, row{rowID{k, subKey{s.Local, s.Remote}}, c, s})
		}
	}
	return rows
}

// shows reports whether a connection fits the filter. Each word of the filter must occur in the server's address, the converter, the
// note, or a subflow's path or state.
func (l *listing) shows(c *api.Connection) bool {
	if l.filter == "" {
		return true
	}
	var b strings.Builder
	b.WriteString(c.Destination().String() + " " + c.Converter + " " + c.Note)
	for _, s := range c.Subflows {
		b.WriteString(" " + ui.PathName(s) + " " + string(s.State))
	}
	text := strings.ToLower(b.String())
	for _, word := range strings.Fields(strings.ToLower(l.filter)) {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

func (l *listing) sort(list []*api.Connection, f *feed) {
	// Each key is computed only once, because the list may be long.
	type keyed struct {
		c   *api.Connection
		key float64
	}
	keys := make([]keyed, len(list))
	for i, c := range list {
		keys[i] = keyed{c, l.key(c, f)}
	}
	slices.SortFunc(keys, func(a, b keyed) int {
		if l.by == byServer {
			if n := a.c.Destination().Compare(b.c.Destination()); n != 0 {
				return n
			}
		}
		return cmp.Or(cmp.Compare(b.key, a.key), a.c.Since.Compare(b.c.Since), cmp.Compare(a.c.Token, b.c.Token))
	})
	for i := range keys {
		list[i] = keys[i].c
	}
}

// key returns the number by which connections are sorted, the highest first.
func (l *listing) key(c *api.Connection, f *feed) float64 {
	switch l.by {
	case byTraffic:
		return f.conns[keyOf(c)].level
	case byRTT:
		return roundTrip(c)
	case byRetransmissions:
		sum := uint64(0)
		for _, s := range c.Subflows {
			sum += s.Retransmitted
		}
		return float64(sum)
	}
	return 0
}

// roundTrip returns the shortest round trip of a connection's subflows, or 0 if none is known.
func roundTrip(c *api.Connection) float64 {
	least := 0.0
	for _, s := range c.Subflows {
		if s.RTT > 0 && (least == 0 || s.RTT < least) {
			least = s.RTT
		}
	}
	return least
}
