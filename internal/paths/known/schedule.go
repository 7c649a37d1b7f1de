package known

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Scheduler places large flows on the links that have the fewest of them. Use NewScheduler to make one.
type Scheduler struct {
	load   map[int]int // number of flows by link
	leases map[string]*lease
	random *rand.Rand // decides between equally good ways
}

type lease struct {
	until  time.Time
	placed time.Time // when one of the ways was last chosen
	ways   [][]int   // each given by its links
	fresh  bool      // Relieve has not moved other flows for it yet
	movable
}

// NewScheduler returns a scheduler without flows.
func NewScheduler() *Scheduler {
	return &Scheduler{load: map[int]int{}, leases: map[string]*lease{}, random: rand.New(rand.NewPCG(1, 2))}
}

// Asked is a request to place flows on Wanted of the Ways. Each way is given by its links.
type Asked struct {
	Host   string // the host that asks; see Relieve
	Key    string
	Ways   [][]int
	Wanted int
	// Moves is set if the host moves its open flows when it gets another way.
	Moves bool
}

// stays is the time for which a key keeps its ways, even if the load changes. It is shorter than the time
// after which agents ask again.
const stays = 20 * time.Second

// PlaceAll is like Place, for requests that arrived together. Placing flows one after the other loads links unevenly.
// So PlaceAll then moves flows of new keys, which have not begun, while that makes the load more even.
func (s *Scheduler) PlaceAll(all []Asked, now, until time.Time) [][]int {
	s.expire(now)
	chosen := make([][]int, len(all))
	asked := map[string]int{}
	for _, a := range all {
		asked[a.Key]++
	}
	var movable []int
	for i, a := range all {
		if !s.Holds(a.Key) && asked[a.Key] == 1 {
			movable = append(movable, i)
		}
		chosen[i] = s.Place(a.Key, a.Ways, a.Wanted, now, until)
		if l := s.leases[a.Key]; a.Moves && len(chosen[i]) > 0 && now.Sub(l.placed) >= stays {
			if e := s.bestExchange(a.Ways, chosen[i], s.limit(a.Ways)); e != nil {
				s.apply(e, l, a.Ways, chosen[i])
				l.placed = now
			}
		}
	}
	if len(movable) > 1 {
		s.even(all, chosen, movable)
	}
	for _, i := range movable {
		for k, way := range chosen[i] {
			s.leases[all[i].Key].ways[k] = all[i].Ways[way]
		}
	}
	for i := range all {
		s.keep(&all[i], chosen[i])
	}
	return chosen
}

const (
	// mostRounds bounds the rounds of Scheduler.even.
	mostRounds = 400
	// mostLooks bounds the links that Scheduler.even examines. That many take some tens of milliseconds.
	mostLooks = 20_000_000
)

// even moves flows to ways of less or equal cost. Moves of equal cost are needed because sometimes only a chain of
// moves reduces the cost.
func (s *Scheduler) even(all []Asked, chosen [][]int, movable []int) {
	looks := 0
	for range mostRounds {
		moved := false
		for _, i := range movable {
			ways := all[i].Ways
			for k, old := range chosen[i] {
				s.count(ways[old:old+1], -1)
				best, least := old, math.Inf(1)
				for _, w := range s.random.Perm(len(ways)) {
					if w != old && slices.Contains(chosen[i], w) {
						continue
					}
					looks += len(ways[w])
					if c := s.cost(ways[w]); c < least {
						best, least = w, c
					}
				}
				if looks > mostLooks {
					best = old
				}
				chosen[i][k], moved = best, moved || best != old
				s.count(ways[best:best+1], 1)
			}
		}
		if !moved || looks > mostLooks {
			return
		}
	}
}

// cost returns the cost of placing one more flow on a way. One full link costs more than several less full ones.
func (s *Scheduler) cost(links []int) (sum float64) {
	const doublings = 2 // how often each flow on a link doubles the link's cost
	for _, l := range links {
		sum += math.Ldexp(1, doublings*s.load[l])
	}
	return sum
}

// Place chooses wanted of the ways for a host's flows, and counts these flows until the time until. Each way is given
// by its links. A host that asks again under the same key keeps its ways while they exist. Place returns the indexes of
// the chosen ways. There are fewer than wanted if there are not enough ways.
func (s *Scheduler) Place(key string, ways [][]int, wanted int, now, until time.Time) (chosen []int) {
	s.expire(now)
	if old := s.leases[key]; old != nil {
		s.count(old.ways, -1)
		for _, links := range old.ways {
			for i := range ways { // several ways may have the same links
				if len(chosen) < wanted && slices.Equal(ways[i], links) && !slices.Contains(chosen, i) {
					chosen = append(chosen, i)
					s.count(ways[i:i+1], 1)
					break
				}
			}
		}
	}
	l := &lease{until: until, placed: now, fresh: true}
	if old := s.leases[key]; old != nil {
		l.fresh, l.last = false, old.last
		if len(chosen) == len(old.ways) {
			l.placed = old.placed
		}
	}
	for len(chosen) < min(wanted, len(ways)) {
		i := s.best(ways, chosen)
		chosen = append(chosen, i)
		s.count(ways[i:i+1], 1)
		l.placed = now
	}
	for _, i := range chosen {
		l.ways = append(l.ways, ways[i])
	}
	s.leases[key] = l
	return chosen
}

// Holds reports whether flows are counted under a key.
func (s *Scheduler) Holds(key string) bool { return s.leases[key] != nil }

// Release forgets the flows of a key.
func (s *Scheduler) Release(key string) {
	if l := s.leases[key]; l != nil {
		s.count(l.ways, -1)
		delete(s.leases, key)
	}
}

// Leases returns the number of keys with flows.
func (s *Scheduler) Leases(now time.Time) int {
	s.expire(now)
	return len(s.leases)
}

func (s *Scheduler) expire(now time.Time) {
	for key, l := range s.leases {
		if !now.Before(l.until) {
			s.Release(key)
		}
	}
}

func (s *Scheduler) count(ways [][]int, n int) {
	for _, links := range ways {
		for _, l := range links {
			if s.load[l] += n; s.load[l] == 0 {
				delete(s.load, l)
			}
		}
	}
}

// best returns the way whose fullest link has the fewest flows. If several ways are equal in that, their next fullest
// links decide, and so on. So links that all ways share do not matter. If all are equal, it returns the first.
func (s *Scheduler) best(ways [][]int, without []int) int {
	best, least := -1, []int(nil)
	for i, links := range ways {
		if slices.Contains(without, i) {
			continue
		}
		loads := make([]int, len(links))
		for k, l := range links {
			loads[k] = s.load[l]
		}
		slices.SortFunc(loads, func(a, b int) int { return b - a })
		if best < 0 || slices.Compare(loads, least) < 0 {
			best, least = i, loads
		}
	}
	return best
}
