package datacentre

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/detour-collective/dcol/internal/paths/known"
)

// Placement chooses the paths of subflows.
type Placement int

// The placements. Those of CFLB are by the scheduler of dcol's path server.
const (
	ByChance    Placement = iota // ECMP: each of a connection's subflows takes a path by lot
	ByScheduler                  // CFLB: all connections are placed together
	InTurn                       // CFLB: each connection is placed when those before it live
	Renewed                      // CFLB: InTurn, and then each host has asked again three times, in any order
)

// renewals is the number of times that a host asks again in Renewed, renewAfter the time between them, and leaseTime the time for
// which flows are counted, as agents and the path server do.
const (
	renewals   = 3
	renewAfter = 30 * time.Second
	leaseTime  = 10 * time.Minute
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

// Place returns the paths of each connection's subflows. A scheduler gives fewer paths than subflows if there are no more.
func (t *Topology) Place(pairs []Pair, subflows int, p Placement, random *rand.Rand) [][][]int {
	placed := make([][][]int, len(pairs))
	all := make([]known.Asked, len(pairs))
	for i, pair := range pairs {
		all[i] = known.Asked{Key: strconv.Itoa(i), Ways: t.Paths(pair.From, pair.To, mostPaths), Wanted: subflows, Moves: true}
		if p == ByChance {
			for range subflows {
				placed[i] = append(placed[i], all[i].Ways[random.IntN(len(all[i].Ways))])
			}
		}
	}
	if p == ByChance {
		return placed
	}
	s := known.NewScheduler()
	place := func(now time.Time, size int) {
		for some := range slices.Chunk(random.Perm(len(pairs)), size) {
			var asked []known.Asked
			for _, i := range some {
				asked = append(asked, all[i])
			}
			for k, chosen := range s.PlaceAll(asked, now, now.Add(leaseTime)) {
				placed[some[k]] = nil
				for _, way := range chosen {
					placed[some[k]] = append(placed[some[k]], all[some[k]].Ways[way])
				}
			}
		}
	}
	now := time.Time{}
	if p == ByScheduler {
		place(now, len(pairs))
		return placed
	}
	place(now, 1)
	for range renewals {
		if p == Renewed {
			now = now.Add(renewAfter)
			place(now, 1)
		}
	}
	return placed
}
