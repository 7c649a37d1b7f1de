package known

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// mostMovable bounds the keys whose other ways are remembered. The ways of a FatTree's host take some 30 KB.
const mostMovable = 4096

// movable has the ways to which the scheduler can move a key's flows before the host asks again. The
// zero value allows no moves.
type movable struct {
	host   string
	moves  bool
	all    [][]int   // the ways to choose from; nil: not remembered
	chosen []int     // indexes of the ways in use
	last   time.Time // the last time that Relieve moved one
}

// Moved is a key whose host gets another way for one of its flows when it asks again.
type Moved struct{ Host, Key string }

// keep remembers what Relieve needs, if the host that asked moves living flows.
func (s *Scheduler) keep(a *Asked, chosen []int) {
	l := s.leases[a.Key]
	l.host, l.moves, l.all, l.chosen = a.Host, a.Moves, nil, nil
	if a.Moves && len(s.leases) <= mostMovable {
		l.all, l.chosen = a.Ways, slices.Clone(chosen)
	}
}

// mostMoves bounds the moves that one new flow causes: a moved flow may crowd another link, so
// that a further flow is moved.
const mostMoves = 3

// Relieve moves flows of other keys off links that new flows among those in asked have crowded. It moves only flows of
// hosts for which hears is true. When such a host asks about its key the next time, it gets the new way.
func (s *Scheduler) Relieve(asked []Asked, hears func(host string) bool, now time.Time) (moved []Moved) {
	requested := map[string]bool{} // their answers are under way, so they stay
	for _, a := range asked {
		requested[a.Key] = true
	}
	var others []string
	for key, l := range s.leases {
		if len(l.all) > 0 && !requested[key] && hears(l.host) && (l.last.IsZero() || now.Sub(l.last) >= stays) {
			others = append(others, key)
		}
	}
	slices.Sort(others)
	for _, key := range slices.Sorted(maps.Keys(requested)) {
		l := s.leases[key]
		if !l.fresh {
			continue
		}
		l.fresh = false
		for _, way := range l.ways {
			for range mostMoves {
				i := s.relieve(way, others, now)
				if i < 0 {
					break
				}
				other := s.leases[others[i]]
				moved = append(moved, Moved{other.host, others[i]})
				way = slices.Concat(other.ways...)
				others = slices.Delete(others, i, i+1)
			}
		}
	}
	return moved
}

// relieve moves one flow, the one whose move helps most, among the keys in others with flows on links of a way. It
// returns the key's index, or -1.
func (s *Scheduler) relieve(way []int, others []string, now time.Time) (index int) {
	shares := func(other []int) bool {
		return slices.ContainsFunc(other, func(link int) bool { return slices.Contains(way, link) })
	}
	index = -1
	var best *exchange
	for i, key := range others {
		l := s.leases[key]
		if !slices.ContainsFunc(l.ways, shares) {
			continue
		}
		if e := s.bestExchange(l.all, l.chosen, s.limit(l.all)); e != nil && (best == nil || e.compare(best) > 0) {
			best, index = e, i
		}
	}
	if best != nil {
		l := s.leases[others[index]]
		s.apply(best, l, l.all, l.chosen)
		l.last = now
	}
	return index
}

// Changed handles a change of the network. It returns the keys with flows on links that the network no longer has.
func (s *Scheduler) Changed(has func(link int) bool) (lost []Moved) {
	for _, key := range slices.Sorted(maps.Keys(s.leases)) {
		l := s.leases[key]
		if l.moves && slices.ContainsFunc(slices.Concat(l.ways...), func(link int) bool { return !has(link) }) {
			lost = append(lost, Moved{l.host, key})
		}
		l.all, l.chosen = nil, nil // their links may be gone
	}
	return lost
}

// exchange is a flow's move from one of the chosen ways to another one.
type exchange struct {
	place, to     int   // index of the way that is left among those chosen, and of the one that is taken
	before, after []int // flows of their crowded links
}

// compare returns more than 0 if e helps more than another exchange: it leaves a more crowded way, or
// takes a less crowded one.
func (e *exchange) compare(than *exchange) int {
	return cmp.Or(slices.Compare(e.before, than.before), slices.Compare(than.after, e.after))
}

// bestExchange returns the exchange of a crowded way. A way becomes crowded by flows that are placed later. Only one is
// exchanged, so that the others carry the connection meanwhile. If no way is less crowded, it takes one that is as
// crowded: there, another flow may find an emptier way.
func (s *Scheduler) bestExchange(ways [][]int, chosen []int, limit int) (best *exchange) {
	for k, old := range chosen {
		s.count(ways[old:old+1], -1)
		before := s.crowd(ways[old], limit)
		for _, w := range s.random.Perm(len(ways)) {
			if len(before) == 0 || slices.Contains(chosen, w) || slices.Equal(ways[w], ways[old]) {
				continue
			}
			e := &exchange{k, w, before, s.crowd(ways[w], limit)}
			if slices.Compare(e.after, e.before) <= 0 && (best == nil || e.compare(best) > 0) {
				best = e
			}
		}
		s.count(ways[old:old+1], 1)
	}
	return best
}

// apply carries an exchange out.
func (s *Scheduler) apply(e *exchange, l *lease, ways [][]int, chosen []int) {
	s.count(l.ways[e.place:e.place+1], -1)
	chosen[e.place], l.ways[e.place] = e.to, ways[e.to]
	s.count(l.ways[e.place:e.place+1], 1)
}

// limit returns the number of flows that a link may have without being crowded: as many as the fullest link that all
// ways share, because a flow is no faster there, and as many as the other links have on average.
func (s *Scheduler) limit(ways [][]int) (most int) {
	on := map[int]int{} // ways of each link
	for _, links := range ways {
		for _, link := range links {
			on[link]++
		}
	}
	sum, others := 0, 0
	for link, n := range on {
		if n == len(ways) {
			most = max(most, s.load[link])
		} else {
			sum, others = sum+s.load[link], others+1
		}
	}
	if others > 0 {
		most = max(most, (sum+others-1)/others)
	}
	return most
}

// crowd returns the numbers of flows on the links of a way that would exceed the limit with one
// more flow, the largest first.
func (s *Scheduler) crowd(links []int, limit int) (flows []int) {
	for _, link := range links {
		if n := s.load[link] + 1; n > limit {
			flows = append(flows, n)
		}
	}
	slices.SortFunc(flows, func(a, b int) int { return b - a })
	return flows
}
