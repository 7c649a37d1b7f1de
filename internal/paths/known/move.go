package known

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// mostMovable bounds the keys whose other ways are remembered. The ways of a host in a FatTree take about 30 KB.
const mostMovable = 4096

// movable holds the ways to which the scheduler can move a key's flows before the host asks again. The zero value
// allows no moves.
type movable struct {
	host   string
	moves  bool
	all    [][]int   // the ways to choose from; nil: not remembered
	chosen []int     // indexes of the ways in use
	last   time.Time // when Relieve last moved one of the flows
}

// Moved is a key whose flows were moved. Its host gets the new ways when it asks again.
type Moved struct{ Host, Key string }

// keep stores what Relieve needs, if the host that asked can move its open flows.
func (s *Scheduler) keep(a *Asked, chosen []int) {
	l := s.leases[a.Key]
	l.host, l.moves, l.all, l.chosen = a.Host, a.Moves, nil, nil
	if a.Moves && len(s.leases) <= mostMovable {
		l.all, l.chosen = a.Ways, slices.Clone(chosen)
	}
}

// mostMoves bounds the moves that follow from one new flow. A moved flow may crowd another link, so that another flow
// must move.
const mostMoves = 3

// Relieve moves flows of other keys off links that new flows, among those in asked, have crowded. It moves only flows
// of hosts for which hears returns true. Such a host gets the new way when it next asks about its key.
func (s *Scheduler) Relieve(asked []Asked, hears func(host string) bool, now time.Time) (moved []Moved) {
	requested := map[string]bool{} // their answers are on the way, so they are not moved
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

// relieve moves one flow whose key has flows on links of way: the one whose move helps most. others are the keys whose
// flows may move. It returns the index of the flow's key in others, or -1.
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

// Changed handles a change of the network. has reports whether a link still exists. Changed returns the keys with flows
// on links that do not exist any more, if their hosts can move open flows.
func (s *Scheduler) Changed(has func(link int) bool) (lost []Moved) {
	for _, key := range slices.Sorted(maps.Keys(s.leases)) {
		l := s.leases[key]
		if l.moves && slices.ContainsFunc(slices.Concat(l.ways...), func(link int) bool { return !has(link) }) {
			lost = append(lost, Moved{l.host, key})
		}
		l.all, l.chosen = nil, nil // their links may not exist any more
	}
	return lost
}

// exchange is the move of a flow from one of the chosen ways to another way.
type exchange struct {
	place, to     int   // place: index in the chosen ways of the one to leave; to: index of the one to take
	before, after []int // numbers of flows on their crowded links
}

// compare returns a positive number if e helps more than another exchange: it leaves a more crowded way or, if these
// are equal, takes a less crowded one.
func (e *exchange) compare(than *exchange) int {
	return cmp.Or(slices.Compare(e.before, than.before), slices.Compare(than.after, e.after))
}

// bestExchange returns the best exchange of one of the chosen ways that has become crowded, or nil. Only one way is
// exchanged, so that the others carry the connection meanwhile. If no way is less crowded, it takes an equally crowded
// one, from where another flow may find an emptier way.
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

// apply carries out an exchange.
func (s *Scheduler) apply(e *exchange, l *lease, ways [][]int, chosen []int) {
	s.count(l.ways[e.place:e.place+1], -1)
	chosen[e.place], l.ways[e.place] = e.to, ways[e.to]
	s.count(l.ways[e.place:e.place+1], 1)
}

// limit returns the number of flows that a link may have before it counts as crowded. It is the number on the fullest
// link that all ways share, because a flow is no faster elsewhere, or the average number on the other links, if that is
// larger.
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

// crowd returns the numbers of flows, including one more, on those links of a way that would exceed the limit with it.
// The largest is first.
func (s *Scheduler) crowd(links []int, limit int) (flows []int) {
	for _, link := range links {
		if n := s.load[link] + 1; n > limit {
			flows = append(flows, n)
		}
	}
	slices.SortFunc(flows, func(a, b int) int { return b - a })
	return flows
}
