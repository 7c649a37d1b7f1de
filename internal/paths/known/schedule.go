package known

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Scheduler places large flows on the links that have the fewest of them. Its zero value is not usable; use NewScheduler.
type Scheduler struct {
	load   map[int]int // flows of each link
	leases map[string]*lease
	random *rand.Rand // decides between ways that are alike
}

type lease struct {
	until  time.Time
	placed time.Time // the last time that one of the ways was chosen
	ways   [][]int   // links of each
	fresh  bool      // others have not been moved for it
	movable
}

// NewScheduler returns a scheduler that knows of no flows.
func NewScheduler() *Scheduler {
	return &Scheduler{load: map[int]int{}, leases: map[string]*lease{}, random: rand.New(rand.NewPCG(1, 2))}
}

// Asked is a request to place flows on Wanted of the Ways, each given by its links, under a key.
type Asked struct {
	Host   string // who asks, see Relieve
	Key    string
	Ways   [][]int
	Wanted int
	// Moves is set if the host moves living flows when it gets another way.
	Moves bool
}

// stays is the time for which a key keeps its ways, even if the load changes. It is shorter than the time
// after which agents ask again.
const stays = 20 * time.Second

// PlaceAll is Place for requests that came together. None of their flows has begun. So it moves flows of new keys among
// each other while that evens the load out: if flows are placed one after the other, some links get more than others.
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
	// mostRounds bounds the rounds of even.
	mostRounds = 400
	// mostLooks bounds the links that even looks at. They take some tens of milliseconds.
	mostLooks = 20_000_000
)

// even moves flows to ways that cost less or as much. Moves that cost as much are needed where only
// a chain of moves improves.
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

// cost returns the cost of one more flow on a way. A full link costs more than several that are less full.
func (s *Scheduler) cost(links []int) (sum float64) {
	const doublings = 2 // for each flow
	for _, l := range links {
		sum += math.Ldexp(1, doublings*s.load[l])
	}
	return sum
}

// Place chooses wanted of the ways, each given by its links, for a host's flows, and counts these flows until a time. A
// host that asks again under its key keeps its ways while they exist. Place returns the indexes of the ways: fewer than
// wanted if there are no more.
func (s *Scheduler) Place(key string, ways [][]int, wanted int, now, until time.Time) (chosen []int) {
	s.expire(now)
	if old := s.leases[key]; old != nil {
		s.count(old.ways, -1)
		for _, links := range old.ways {
			for i := range ways { // several may have the same links
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

// best returns the way whose fullest link has the fewest flows. If several are equal in that, their next fullest links
// decide, and so on, so that links shared by all ways do not matter. If all are equal, it is the first.
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
