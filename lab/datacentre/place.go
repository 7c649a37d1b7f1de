package datacentre

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Placement chooses the paths of subflows.
type Placement int

// The placements.
const (
	ByChance    Placement = iota // ECMP: each of a connection's subflows takes a path by lot
	ByScheduler                  // CFLB: each takes the path whose links have the fewest flows
)

// mostPaths bounds the paths between two hosts.
const mostPaths = 256

// Pair is a connection's source and destination.
type Pair struct{ From, To int }

// Permutation returns pairs in which each host sends to one other, and receives from one other.
func Permutation(hosts int, random *rand.Rand) []Pair {
	for {
		to := random.Perm(hosts)
		pairs, fit := make([]Pair, hosts), true
		for from := range hosts {
			pairs[from] = Pair{from, to[from]}
			fit = fit && from != to[from]
		}
		if fit {
			return pairs
		}
	}
}

// Place returns a path for each subflow of each connection. The scheduler goes round the connections, so that each gets
// its first path before any gets its second, and then moves subflows as long as that evens the load out.
func (t *Topology) Place(pairs []Pair, subflows int, p Placement, random *rand.Rand) [][][]int {
	s := &scheduler{load: make([]int, len(t.Links)), random: random}
	placed := make([][][]int, len(pairs))
	ways := make([][][]int, len(pairs))
	for i, pair := range pairs {
		ways[i] = t.Paths(pair.From, pair.To, mostPaths)
	}
	for range subflows {
		for _, i := range random.Perm(len(pairs)) {
			way := ways[i][random.IntN(len(ways[i]))]
			if p == ByScheduler {
				way = s.best(ways[i])
			}
			s.count(way, 1)
			placed[i] = append(placed[i], way)
		}
	}
	if p == ByScheduler {
		s.even(ways, placed)
	}
	return placed
}

// scheduler knows how many flows each link has.
type scheduler struct {
	load   []int
	random *rand.Rand
}

func (s *scheduler) count(way []int, n int) {
	for _, l := range way {
		s.load[l] += n
	}
}

// cost is that of one more flow on a path. A full link costs more than several that are less full.
func (s *scheduler) cost(way []int) (sum float64) {
	const doublings = 2 // for each flow
	for _, l := range way {
		sum += math.Ldexp(1, doublings*s.load[l])
	}
	return sum
}

// best returns the cheapest path; of several, one by lot.
func (s *scheduler) best(ways [][]int) []int {
	var best []int
	least := math.Inf(1)
	for _, i := range s.random.Perm(len(ways)) {
		if c := s.cost(ways[i]); c < least {
			best, least = ways[i], c
		}
	}
	return best
}

// mostRounds bounds the rounds in which subflows are moved.
const mostRounds = 400

// even moves subflows to paths that are cheaper, or as cheap: without the latter it would end where only a chain of moves
// leads on.
func (s *scheduler) even(ways, placed [][][]int) {
	for range mostRounds {
		moved := false
		for i := range placed {
			for k, old := range placed[i] {
				s.count(old, -1)
				if way := s.best(ways[i]); s.cost(way) <= s.cost(old) {
					placed[i][k], moved = way, moved || !slices.Equal(way, old)
				}
				s.count(placed[i][k], 1)
			}
		}
		if !moved {
			return
		}
	}
}
