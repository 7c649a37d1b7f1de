package known

import (
	"slices"
	"time"
)

// Scheduler places large flows on the links that have the fewest of them. Its zero value is not usable; use NewScheduler.
type Scheduler struct {
	load   map[int]int // flows of each link
	leases map[string]*lease
}

type lease struct {
	until time.Time
	ways  [][]int // links of each
}

// NewScheduler returns a scheduler that knows of no flows.
func NewScheduler() *Scheduler { return &Scheduler{load: map[int]int{}, leases: map[string]*lease{}} }

// Place chooses so many of the ways, given by their links, for a host's flows, and counts these until a time. A host that
// asks again under its key keeps its ways as long as they exist. It returns the indexes of the ways, fewer than wanted if
// there are no more.
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
	for len(chosen) < min(wanted, len(ways)) {
		i := s.best(ways, chosen)
		chosen = append(chosen, i)
		s.count(ways[i:i+1], 1)
	}
	l := &lease{until: until}
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

// best returns the way whose fullest link has the fewest flows; of several, that whose next fullest link has the fewest,
// and so on. Links that all ways share do not matter then. If all are equal, it is the first.
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
