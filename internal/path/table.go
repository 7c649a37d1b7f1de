package path

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/deadline"
	"github.com/detour-collective/dcol/internal/path/measure"
)

// table holds the connections by token and by server, a queue of those that need a Tick, and the list of those that
// qualify for close samples.
type table struct {
	byToken  map[Token]*conn
	byServer map[netip.AddrPort]map[Token]*conn // by conn.server
	due      *deadline.Queue[*conn]
	again    []Token // connections that need another step
	closeSampling
}

func (t *table) add(c *conn) {
	t.byToken[c.token] = c
	if t.byServer[c.server] == nil {
		t.byServer[c.server] = make(map[Token]*conn)
	}
	t.byServer[c.server][c.token] = c
}

func (t *table) remove(token Token) {
	c := t.byToken[token]
	if c == nil {
		return
	}
	t.due.Set(&c.due, time.Time{})
	delete(t.byToken, token)
	delete(t.byServer[c.server], token)
	if len(t.byServer[c.server]) == 0 {
		delete(t.byServer, c.server)
	}
}

// all returns the connections, the oldest first, so that every run acts on them in the same order.
func (t *table) all() []*conn { return slices.SortedFunc(maps.Values(t.byToken), byAge) }

// to returns the connections to a server, or all if server is zero, the oldest first.
func (t *table) to(server netip.AddrPort) []*conn {
	if !server.IsValid() {
		return t.all()
	}
	return slices.SortedFunc(maps.Values(t.byServer[server]), byAge)
}

// where returns the connections for which is returns true, the oldest first.
func (t *table) where(is func(*conn) bool) (list []*conn) {
	for _, c := range t.byToken {
		if is(c) {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, byAge)
	return list
}

func byAge(a, b *conn) int {
	return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.token, b.token))
}

// closely returns an iterator over the connections of the next round of close samples.
func (t *table) closely(now time.Time, room int) iter.Seq2[Token, []Ends] {
	return t.next(now, room, func(c *conn) bool { return t.byToken[c.token] == c })
}

// len returns the number of connections.
func (t *table) len() int { return len(t.byToken) }

// stepAgain makes the Manager step a connection once more before it has handled the event.
func (t *table) stepAgain(token Token) { t.again = append(t.again, token) }

// carriedTo returns the bytes that the measured bulk connections to the server's network carried, and their number.
func (t *table) carriedTo(server netip.AddrPort) (total uint64, flows int) {
	network := prefixOf(server.Addr())
	for _, c := range t.watched {
		if c.kind == measure.Bulk && !c.slotless && prefixOf(c.server.Addr()) == network && t.byToken[c.token] == c {
			total += c.carried
			flows++
		}
	}
	return total, flows
}

// carriedNow returns the rate of this host's connections, in bits a second.
func (t *table) carriedNow(now time.Time) (sum float64) {
	for _, c := range t.watched {
		for _, s := range c.subflows {
			switch {
			case !s.up:
			case c.slotless:
				sum += float64(max(s.flow.in, s.flow.out))
			case s.habits != nil && within(s.at, now, closeGap):
				sum += max(s.habits.goodput.Rates(now))
			}
		}
	}
	return sum
}

// carryThrough reports whether data just came or went through a waypoint, which could have made a queue there.
func (t *table) carryThrough(waypoint string, now time.Time) bool {
	return slices.ContainsFunc(t.watched, func(c *conn) bool {
		return slices.ContainsFunc(c.subflows, func(s *subflow) bool {
			moves := s.habits != nil && within(s.at, now, closeGap) && s.habits.step.received+s.habits.step.acked > 0
			return s.waypoint() == waypoint && s.up && (moves || c.slotless && s.flow.in+s.flow.out > 0)
		})
	})
}
