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
//   - Connections with a slot are in every round, so they are measured. Those that carry messages get slots first, then
//     those that suspect a subflow, or whose kind of traffic is not known because they had no slot yet. A connection
//     keeps its slot for slotLasts if others wait for one.
//   - Each of the others is in one round out of several: they queue up, and each round has the first of them. That is
//     often enough to find a detour that fell silent, but too rare to measure anything. tendSlotless does what cannot
//     wait until they have a slot.

const (
	// slotLasts is long enough to weigh the paths of a connection and to exchange some of them.
	slotLasts = 30 * time.Second
	// finishesIn is the time for which a connection may keep its slot longer, to finish a tryout.
	finishesIn = challengeMost
	// rareRounds is the number of rounds of which about one includes a connection without a slot. It is higher if those
	// connections would take over half of each round.
	rareRounds = 12
	// lowerSlots is the share of the slots that each lower rank gets however many of the higher ranks want one: one in
	// 4. Without it, connections of unknown kind would never be found to carry messages beside many that do.
	lowerSlots = 4
)

// closeSampling knows the connections that qualify for close samples.
type closeSampling struct {
	watched []*conn
	// slots has the connections with a slot, and since when they have it. It is nil if every round includes all.
	slots map[*conn]time.Time
	// queue has the connections without a slot, the one that was not sampled for longest first.
	queue []*conn
}

// Sampling is the number of active connections, which qualify for close samples, and how many of them are measured,
// because every round includes them.
type Sampling struct{ Active, Measured int }

func (x *closeSampling) state() Sampling {
	if x.slots != nil {
		return Sampling{len(x.watched), len(x.slots)}
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

// next returns an iterator over the connections of the next round, with their subflows. room is the number of
// connections that the round has time for. exists reports whether a connection has not ended.
func (x *closeSampling) next(now time.Time, room int, exists func(*conn) bool) iter.Seq2[Token, []Ends] {
	return func(yield func(Token, []Ends) bool) {
		x.watched = slices.DeleteFunc(x.watched, func(c *conn) bool {
			if c.watched = exists(c) && c.toWatch(now); !c.watched {
				c.attention, c.slotless = nil, false
				x.endSlot(c)
			}
			return !c.watched
		})
		rare := x.deal(now, room)
		var ends []Ends
		include := func(c *conn) bool {
			ends = c.ends(ends[:0])
			return yield(c.token, ends)
		}
		for _, c := range x.watched {
			if !c.slotless && !include(c) {
				return
			}
		}
		for range rare {
			c := x.queue[0]
			x.queue = append(x.queue[1:], c)
			if !include(c) {
				return
			}
		}
	}
}

// deal decides which connections have a slot. It returns the number of connections without one that the next round
// includes.
func (x *closeSampling) deal(now time.Time, room int) (rare int) {
	over := len(x.watched) - room
	if over <= 0 {
		for _, c := range x.watched {
			c.slotless = false
		}
		x.slots, x.queue = nil, nil
		return 0
	}
	rare = min(over/(rareRounds-1)+1, max(room/2, 1))
	slots := max(room-rare, 1)
	x.endSlots(now)
	had, left := x.slots, x.divide(slots)
	x.slots = make(map[*conn]time.Time, slots)
	give := func(c *conn, since time.Time) {
		if _, has := x.slots[c]; !has && left[c.rank()] > 0 {
			left[c.rank()]--
			x.slots[c] = since
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
		_, has := x.slots[c]
		if !has && !c.slotless {
			c.attention = nil
			x.queue = append(x.queue, c)
		}
		c.slotless = !has
	}
	x.queue = slices.DeleteFunc(x.queue, func(c *conn) bool { return !c.slotless })
	return min(rare, len(x.queue))
}

// tendSlotless does for connections without a slot what cannot wait until they have one. It is called after each complete
// sample.
func (m *Manager) tendSlotless(now time.Time) {
	for _, c := range m.conns.watched {
		if c.slotless && m.conns.byToken[c.token] == c && c.open() && !c.closing() {
			t := m.turn(c, now)
			t.stopTrying()
			t.callUpSlotless()
		}
	}
}

// endSlots takes the slots from connections that had them for slotLasts, and puts these behind those that wait.
func (x *closeSampling) endSlots(now time.Time) {
	var over []*conn
	x.watched = slices.DeleteFunc(x.watched, func(c *conn) bool {
		since, has := x.slots[c]
		ends := has && !within(since, now, slotLasts) && (!c.isTrying() || !within(since, now, slotLasts+finishesIn))
		if ends {
			over = append(over, c)
			x.endSlot(c)
		}
		return ends
	})
	x.watched = append(x.watched, over...)
}

// endSlot takes a connection's slot, if it has one.
func (x *closeSampling) endSlot(c *conn) {
	if _, has := x.slots[c]; has {
		c.hadSlot = true
		delete(x.slots, c)
	}
}

// divide returns the number of slots for each rank.
func (x *closeSampling) divide(slots int) (of [nRanks]int) {
	var wanted [nRanks]int
	for _, c := range x.watched {
		wanted[c.rank()]++
	}
	least := slots / lowerSlots
	of[patient] = min(wanted[patient], max(least, slots-wanted[urgent]-wanted[uncertain]))
	of[uncertain] = min(wanted[uncertain], max(least, slots-wanted[urgent]-of[patient]))
	of[urgent] = slots - of[uncertain] - of[patient]
	return of
}

// The ranks of connections that want a slot, the highest first.
const (
	// urgent connections carry messages.
	urgent = iota
	// uncertain connections suspect a subflow, as hundreds do at the same time if they pause together, or were not
	// measured for long enough to know what they carry.
	uncertain
	// patient connections carry bulk traffic, have still not shown what they carry after they had a slot, or are left alone by
	// the operator.
	patient
	nRanks
)

// rank returns the rank of the connection.
func (c *conn) rank() int {
	switch {
	case c.kind == measure.Messages:
		return urgent
	case c.kind == measure.Short && !c.kindSaid && !c.hadSlot || c.has((*subflow).suspected):
		return uncertain
	}
	return patient
}
