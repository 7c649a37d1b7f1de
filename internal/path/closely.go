package path

import (
	"iter"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file decides which connections each round of close samples includes. If there is no time for all that qualify,
// a round has two parts:
//
//   - Connections that have a place are in every round, so they are measured. Those that carry messages come first, then
//     those that suspect a subflow or whose kind of traffic is not known because they had no place yet. The others take
//     turns: a connection keeps its place for turnLasts if others wait for one.
//   - Each of the others is in one round out of several: they queue up, and each round has the first of them. That is
//     often enough to find a detour that fell silent, but too rare to measure anything. tendRare does what cannot
//     wait for their turn.

const (
	// turnLasts is long enough to weigh the paths of a connection and to exchange some of them.
	turnLasts = 30 * time.Second
	// finishesIn is the time by which a turn may last longer, so that the connection can finish a tryout.
	finishesIn = challengeMost
	// rareRounds is the number of rounds of which about one includes a connection without a place. There are more if
	// those connections would take over half of each round.
	rareRounds = 12
	// lowerPlaces is the share of the places that each lower rank gets however many of the higher ranks want one: one in
	// 4. Without it, connections of unknown kind would never be found to carry messages beside many that do.
	lowerPlaces = 4
)

// closeSampling knows the connections that qualify for close samples.
type closeSampling struct {
	watched []*conn
	// turns has the connections with a place, and since when they have it. It is nil if every round includes all.
	turns map[*conn]time.Time
	// rare has the connections without a place, the one that was not sampled for longest first.
	rare []*conn
}

// Sampling is the number of connections that qualify for close samples, and how many of them are in every round.
type Sampling struct{ Wanted, Closely int }

func (x *closeSampling) state() Sampling {
	if x.turns != nil {
		return Sampling{len(x.watched), len(x.turns)}
	}
	return Sampling{len(x.watched), len(x.watched)}
}

// watch adds a connection if it qualifies.
func (x *closeSampling) watch(c *conn, now time.Time) {
	if !c.watched && c.toWatch(now) {
		c.watched = true
		x.watched = append(x.watched, c)
	}
}

// next returns an iterator over the connections of the next round, with their subflows. A round has time for this many
// connections. exists reports whether a connection has not ended.
func (x *closeSampling) next(now time.Time, room int, exists func(*conn) bool) iter.Seq2[Token, []Ends] {
	return func(yield func(Token, []Ends) bool) {
		x.watched = slices.DeleteFunc(x.watched, func(c *conn) bool {
			if c.watched = exists(c) && c.toWatch(now); !c.watched {
				c.attention, c.rarely = nil, false
				c.forgetDoubts()
				x.endTurn(c)
			}
			return !c.watched
		})
		rare := x.deal(now, room)
		var ends []Ends
		include := func(c *conn) bool {
			ends = ends[:0]
			for _, s := range c.subflows {
				if s.up {
					ends = append(ends, Ends{s.local, s.remote})
				}
			}
			return yield(c.token, ends)
		}
		for _, c := range x.watched {
			if !c.rarely && !include(c) {
				return
			}
		}
		for range rare {
			c := x.rare[0]
			x.rare = append(x.rare[1:], c)
			if !include(c) {
				return
			}
		}
	}
}

// deal decides which connections have a place. It returns the number of connections without one that the next round
// includes.
func (x *closeSampling) deal(now time.Time, room int) (rare int) {
	over := len(x.watched) - room
	if over <= 0 {
		for _, c := range x.watched {
			c.rarely = false
		}
		x.turns, x.rare = nil, nil
		return 0
	}
	rare = min(over/(rareRounds-1)+1, max(room/2, 1))
	places := max(room-rare, 1)
	x.endTurns(now)
	had, left := x.turns, x.divide(places)
	x.turns = make(map[*conn]time.Time, places)
	give := func(c *conn, since time.Time) {
		if _, has := x.turns[c]; !has && left[c.rank()] > 0 {
			left[c.rank()]--
			x.turns[c] = since
		}
	}
	for _, c := range x.watched {
		if since, has := had[c]; has {
			give(c, since)
		}
	}
	for _, c := range x.watched {
		give(c, now)
	}
	for _, c := range x.watched {
		_, has := x.turns[c]
		if !has && !c.rarely {
			c.attention = nil
			x.rare = append(x.rare, c)
		}
		c.rarely = !has
	}
	x.rare = slices.DeleteFunc(x.rare, func(c *conn) bool { return !c.rarely })
	return min(rare, len(x.rare))
}

// tendRare does what cannot wait for the turns of the connections without a place. It is called after each complete sample.
func (m *Manager) tendRare(now time.Time) {
	for _, c := range m.conns.watched {
		if c.rarely && m.conns.byToken[c.token] == c && c.open() && !c.closing() {
			t := m.turn(c, now)
			t.stopTrying()
			t.callUpRare()
		}
	}
}

// endTurns lets the connections whose turn is over queue up behind those that wait.
func (x *closeSampling) endTurns(now time.Time) {
	var over []*conn
	x.watched = slices.DeleteFunc(x.watched, func(c *conn) bool {
		since, has := x.turns[c]
		ends := has && !within(since, now, turnLasts) && (!c.isTrying() || !within(since, now, turnLasts+finishesIn))
		if ends {
			over = append(over, c)
			x.endTurn(c)
		}
		return ends
	})
	x.watched = append(x.watched, over...)
}

// endTurn takes a connection's place, if it has one.
func (x *closeSampling) endTurn(c *conn) {
	if _, has := x.turns[c]; has {
		c.hadTurn = true
		delete(x.turns, c)
	}
}

// divide returns the number of places for each rank.
func (x *closeSampling) divide(places int) (of [nRanks]int) {
	var wanted [nRanks]int
	for _, c := range x.watched {
		wanted[c.rank()]++
	}
	least := places / lowerPlaces
	of[patient] = min(wanted[patient], max(least, places-wanted[urgent]-wanted[uncertain]))
	of[uncertain] = min(wanted[uncertain], max(least, places-wanted[urgent]-of[patient]))
	of[urgent] = places - of[uncertain] - of[patient]
	return of
}

// The ranks of connections that want a place, the highest first.
const (
	// urgent connections carry messages.
	urgent = iota
	// uncertain connections suspect a subflow, as hundreds do at the same time if they pause together, or were not
	// measured for long enough to know what they carry.
	uncertain
	// patient connections carry bulk traffic, have still not shown what they carry after a turn, or are left alone by
	// the operator.
	patient
	nRanks
)

// rank returns the rank of the connection.
func (c *conn) rank() int {
	switch {
	case c.kind == measure.Messages:
		return urgent
	case c.kind == measure.Short && !c.kindSaid && !c.hadTurn || c.has((*subflow).suspected):
		return uncertain
	}
	return patient
}
