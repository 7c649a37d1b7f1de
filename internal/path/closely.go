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
//   - Connections with a slot are in every round, so they are measured. Most slots go to connections that carry
//     messages, whose kind is not known yet, or that suspect a detour. A connection keeps its slot for slotLasts if
//     others wait for one.
//   - Each of the others is in one round out of several. That is often enough to find a detour that fell silent, but
//     too rare to measure anything.

const (
	// slotLasts is long enough to weigh the paths of a connection and to exchange some of them.
	slotLasts = 30 * time.Second
	// rareRounds is the number of rounds of which one includes a connection without a slot. It is higher if those
	// connections would take over half of each round.
	rareRounds = 12
	// bulkSlots is the share of the slots that bulk traffic gets however much other traffic there is: one in 4.
	bulkSlots = 4
)

// closeSampling knows the connections that qualify for close samples.
type closeSampling struct {
	watched []*conn
	// slots has the connections with a slot, and since when they have it. It is nil if every round includes all.
	slots map[*conn]time.Time
	round uint32
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
				c.forgetDoubts()
			}
			return !c.watched
		})
		rounds := x.deal(now, room)
		x.round++
		var ends []Ends
		for _, c := range x.watched {
			if c.slotless && (uint32(c.token)+x.round)%rounds != 0 {
				continue
			}
			ends = ends[:0]
			for _, s := range c.subflows {
				if s.up {
					ends = append(ends, Ends{s.local, s.remote})
				}
			}
			if !yield(c.token, ends) {
				return
			}
		}
	}
}

// deal decides which connections have a slot. It returns the number of rounds of which one includes a connection
// without a slot.
func (x *closeSampling) deal(now time.Time, room int) (rounds uint32) {
	over := len(x.watched) - room
	if over <= 0 {
		for _, c := range x.watched {
			c.slotless = false
		}
		x.slots = nil
		return 1
	}
	rare := min(over/(rareRounds-1)+1, max(room/2, 1))
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
		}
		c.slotless = !has
	}
	return uint32((len(x.watched) - len(x.slots) + rare - 1) / rare)
}

// endSlots takes the slots from connections that had them for slotLasts, and puts these behind those that wait.
func (x *closeSampling) endSlots(now time.Time) {
	var over []*conn
	x.watched = slices.DeleteFunc(x.watched, func(c *conn) bool {
		since, has := x.slots[c]
		ends := has && !within(since, now, slotLasts)
		if ends {
			over = append(over, c)
			delete(x.slots, c)
		}
		return ends
	})
	x.watched = append(x.watched, over...)
}

// divide returns the number of slots for each rank.
func (x *closeSampling) divide(slots int) (of [nRanks]int) {
	var wanted [nRanks]int
	for _, c := range x.watched {
		wanted[c.rank()]++
	}
	of[patient] = min(wanted[patient], max(slots/bulkSlots, slots-wanted[urgent]))
	of[urgent] = slots - of[patient]
	return of
}

// The ranks of connections that want a slot.
const (
	urgent = iota
	patient
	nRanks
)

// rank returns patient for bulk traffic with healthy detours and for traffic that the operator wants to be left alone.
// All other connections are urgent.
func (c *conn) rank() int {
	if (c.kind == measure.Bulk || c.kindSaid && c.kind == measure.Short) && !c.has((*subflow).suspected) {
		return patient
	}
	return urgent
}
