package path

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file adds up what this host's bulk connections get through each waypoint. A single connection gets only a part
// of what the waypoint gives.

// together holds what bulk connections get now, by trail.
type together struct {
	at    time.Time // when it was last brought up to date
	uses  map[trail]use
	mixed map[string]int // number of networks of servers to which bulk connections go, by waypoint
	moves []move         // recent exchanges whose effect does not show yet, the oldest first
}

// move is an exchange of a detour: a subflow leaves the trail from.
type move struct {
	at   time.Time
	from trail
}

// movesShowIn is the time after which an exchange shows in what the other subflows get.
const movesShowIn = 6 * time.Second

// use describes the bulk connections on one trail.
type use struct {
	goodput float64 // of all together, in bits a second
	flows   int
	pressed bool          // the network limits at least one of them
	queue   time.Duration // the longest that their packets wait there
}

// together returns what the host's bulk connections get now. It is brought up to date once a second.
func (w weighing) together() *together {
	g, now := &w.detours.together, w.now
	if age := now.Sub(g.at); g.uses != nil && age >= 0 && age < time.Second {
		return g
	}
	if g.uses == nil {
		g.uses, g.mixed = make(map[trail]use), make(map[string]int)
	}
	clear(g.uses)
	clear(g.mixed)
	g.at = now
	g.moves = slices.DeleteFunc(g.moves, func(x move) bool { age := now.Sub(x.at); return age < 0 || age > movesShowIn })
	for _, c := range w.conns.watched {
		if c.kind == measure.Bulk && w.conns.byToken[c.token] == c {
			g.add(turn{c, now, w.host, w.out})
		}
	}
	return g
}

func (g *together) add(t turn) {
	for _, s := range t.subflows {
		rate := t.gets(s)
		if rate == 0 {
			continue
		}
		key := trailOf(s.waypoint(), t.server)
		u, known := g.uses[key]
		if !known {
			g.mixed[key.waypoint]++
		}
		g.uses[key] = use{u.goodput + rate, u.flows + 1, u.pressed || s.pressed(t.now), max(u.queue, s.queue())}
	}
}

// of returns what bulk connections get on a trail.
func (g *together) of(waypoint string, server netip.AddrPort) use {
	return g.uses[trailOf(waypoint, server)]
}

// shows reports whether u is all that the network gives there: the network limits the connections, and no bulk
// connection uses the same waypoint towards another network.
func (g *together) shows(waypoint string, u use) bool { return u.pressed && g.mixed[waypoint] < 2 }

// left returns what one more connection would get on a trail that gives goodput: what the others leave, or an equal
// share.
func (g *together) left(waypoint string, server netip.AddrPort, goodput float64, now time.Time) float64 {
	if age := now.Sub(g.at); age < 0 || age > closeGap+time.Second {
		return goodput // no bulk connection is left
	}
	u := g.of(waypoint, server)
	coming := g.moved(func(from trail) bool { return from.network == prefixOf(server.Addr()) && from.waypoint != waypoint })
	if coming > 0 { // those that move may come here
		return goodput / float64(u.flows+coming+1)
	}
	return max(goodput-u.goodput, goodput/float64(u.flows+1))
}

// queue returns how long packets on a trail wait now because of this host's bulk connections.
func (g *together) queue(waypoint string, server netip.AddrPort, now time.Time) time.Duration {
	if age := now.Sub(g.at); age < 0 || age > closeGap+time.Second {
		return 0 // no bulk connection is left
	}
	return g.of(waypoint, server).queue
}

// moved counts the recent moves from the trails for which is returns true.
func (g *together) moved(is func(from trail) bool) (n int) {
	for _, x := range g.moves {
		if is(x.from) {
			n++
		}
	}
	return n
}

// leaves records that a subflow is about to be exchanged for one through another waypoint.
func (g *together) leaves(waypoint string, server netip.AddrPort, now time.Time) {
	g.moves = append(g.moves, move{now, trailOf(waypoint, server)})
}

// share returns what a subflow that gets this rate will get: more, if others have just left its waypoint.
func (g *together) share(gets float64, waypoint string, server netip.AddrPort) float64 {
	key := trailOf(waypoint, server)
	u := g.uses[key]
	leaving := g.moved(func(from trail) bool { return from == key })
	return max(gets, u.goodput/float64(max(u.flows-leaving, 1)))
}

// gets returns the rate of a bulk subflow in bits a second. It is zero if the subflow does not carry or its rate is
// not known yet.
func (t turn) gets(s *subflow) float64 {
	if s.backup || s.habits == nil || !t.ours(s) || t.now.Sub(s.at) > closeGap || t.now.Sub(s.habits.since) < goodputAfter {
		return 0
	}
	return max(s.habits.goodput.Rates(t.now))
}

// pressed reports whether the network limits what the subflow carries.
func (s *subflow) pressed(now time.Time) bool {
	if s.habits == nil || s.habits.bound > 0 {
		return false
	}
	p, _ := s.loses(now)
	return s.habits.press.Limits(now, max(s.habits.goodput.Rates(now)), p, s.habits.step.trip)
}
