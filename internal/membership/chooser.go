package membership

import (
	"iter"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/collective/directory"
)

const (
	// patience is the time without a session after which another waypoint takes the place of a chosen one.
	patience = time.Minute
	// firstRest is the time for which a waypoint that was replaced is not chosen again. It doubles each time.
	firstRest   = 10 * time.Minute
	longestRest = 6 * time.Hour
)

// chooser decides which waypoints this host uses. It keeps waypoints with a session. A waypoint that does not answer is
// replaced, if there is another. Waypoints that did not answer, or that others cannot reach, are chosen last. They are not
// excluded, because the verdict may be wrong.
type chooser struct {
	client      directory.Client
	skip        map[string]bool // not chosen, because the agent uses them anyway
	chosen      []seat
	rests       map[string]rest
	unreachable map[string]bool // as announced by the coordinators
}

// seat is a chosen waypoint.
type seat struct {
	name   string
	silent time.Time // when its session ended; zero: it has one
}

type rest struct {
	until time.Time
	times int // in a row
}

func newChooser(client directory.Client, skip []string) *chooser {
	c := &chooser{client: client, skip: map[string]bool{}, rests: map[string]rest{}, unreachable: map[string]bool{}}
	for _, name := range skip {
		c.skip[name] = true
	}
	return c
}

// heard records whether there is a session with a waypoint.
func (c *chooser) heard(name string, up bool, now time.Time) {
	i := slices.IndexFunc(c.chosen, func(s seat) bool { return s.name == name })
	if i < 0 {
		return
	}
	switch s := &c.chosen[i]; {
	case up:
		s.silent = time.Time{}
		delete(c.rests, name)
	case s.silent.IsZero():
		s.silent = now
	}
}

// choose returns the waypoints to use, and the time to choose again if nothing happens until then; zero: never.
func (c *chooser) choose(members iter.Seq[*directory.Verified], now time.Time) (list []*directory.Verified, next time.Time) {
	if c.client.Want == 0 {
		return nil, next
	}
	all := c.candidates(members)
	c.forget(now)
	avoid := c.avoid(now)
	c.restSilent(all, avoid, now)

	list = directory.Choose(c.client, slices.Values(all), c.names(), avoid)
	if len(list) < c.client.Want {
		// Choose waypoints that may not answer, too, if there are no others.
		first := make([]string, len(list), len(list)+len(c.chosen))
		for i, v := range list {
			first[i] = v.Record.Name
		}
		list = directory.Choose(c.client, slices.Values(all), append(first, without(c.names(), first)...), nil)
	}
	c.seat(list, now)
	return list, c.next(now)
}

// candidates returns all waypoints that are not used anyway.
func (c *chooser) candidates(members iter.Seq[*directory.Verified]) (all []*directory.Verified) {
	for v := range members {
		if !c.skip[v.Record.Name] && v.Record.IsWaypoint() {
			all = append(all, v)
		}
	}
	return all
}

// avoid returns the waypoints to choose last. An own session counts for more than the coordinators' announcement.
func (c *chooser) avoid(now time.Time) map[string]bool {
	avoid := map[string]bool{}
	for name := range c.unreachable {
		avoid[name] = true
	}
	for _, s := range c.chosen {
		if s.silent.IsZero() {
			delete(avoid, s.name)
		}
	}
	for name, r := range c.rests {
		if now.Before(r.until) {
			avoid[name] = true
		}
	}
	return avoid
}

// restSilent removes waypoints that do not answer, as far as there are others to replace them. It begins with the one
// that has been silent for longest.
func (c *chooser) restSilent(all []*directory.Verified, avoid map[string]bool, now time.Time) {
	var silent []seat
	for _, s := range c.chosen {
		if !s.silent.IsZero() && now.Sub(s.silent) >= patience && !avoid[s.name] {
			silent = append(silent, s)
		}
	}
	if len(silent) == 0 {
		return
	}
	slices.SortStableFunc(silent, func(a, b seat) int { return a.silent.Compare(b.silent) })
	more := c.client
	more.Want += len(silent)
	stay := c.staying(all, avoid)
	others := len(directory.Choose(more, slices.Values(all), c.names(), avoid)) - stay
	spare := others - (c.client.Want - stay) // the rest takes places that are empty
	for _, s := range silent[:max(0, min(spare, len(silent)))] {
		r := c.rests[s.name]
		r.until = now.Add(min(firstRest<<min(r.times, 10), longestRest))
		r.times++
		c.rests[s.name] = r
		avoid[s.name] = true
	}
}

// staying returns the number of chosen waypoints that Choose would keep.
func (c *chooser) staying(all []*directory.Verified, avoid map[string]bool) (n int) {
	names := c.names()
	for _, v := range all {
		if slices.Contains(names, v.Record.Name) && !avoid[v.Record.Name] {
			n++
		}
	}
	return n
}

// seat makes the list the chosen waypoints.
func (c *chooser) seat(list []*directory.Verified, now time.Time) {
	before := c.chosen
	c.chosen = nil
	for _, v := range list {
		s := seat{name: v.Record.Name, silent: now}
		if i := slices.IndexFunc(before, func(b seat) bool { return b.name == s.name }); i >= 0 {
			s = before[i]
		}
		c.chosen = append(c.chosen, s)
	}
}

// forget drops rests that were over long ago.
func (c *chooser) forget(now time.Time) {
	for name, r := range c.rests {
		if now.Sub(r.until) > longestRest {
			delete(c.rests, name)
		}
	}
}

// next returns when another choice may be due because a waypoint is silent, or has rested.
func (c *chooser) next(now time.Time) (next time.Time) {
	at := func(t time.Time) {
		if t.After(now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for _, s := range c.chosen {
		if !s.silent.IsZero() {
			at(s.silent.Add(patience))
		}
	}
	for _, r := range c.rests {
		at(r.until)
	}
	return next
}

func (c *chooser) names() []string {
	names := make([]string, len(c.chosen))
	for i, s := range c.chosen {
		names[i] = s.name
	}
	return names
}

func without(names, not []string) []string {
	return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(not, n) })
}
