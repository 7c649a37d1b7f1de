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
	Told                         // CFLB: InTurn, and hosts are told at once of flows that the server moves for new ones
	Renewed                      // CFLB: Told, and then each host has asked again three times, in any order
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

// Place returns the paths of each connection's subflows, and how many were moved after they had begun. A scheduler gives fewer paths
// than subflows if there are no more.
func (t *Topology) Place(pairs []Pair, subflows int, p Placement, random *rand.Rand) (placed [][][]int, moved int) {
	c := controller{s: known.NewScheduler(), placed: make([][][]int, len(pairs)), tells: p == Told || p == Renewed}
	for i, pair := range pairs {
		c.all = append(c.all, known.Asked{
			Key: strconv.Itoa(i), Ways: t.Paths(pair.From, pair.To, mostPaths), Wanted: subflows, Moves: true,
		})
	}
	now := time.Time{}
	switch p {
	case ByChance:
		for i, a := range c.all {
			for range subflows {
				c.placed[i] = append(c.placed[i], a.Ways[random.IntN(len(a.Ways))])
			}
		}
	case ByScheduler:
		c.ask(random.Perm(len(pairs)), now)
	default:
		rounds := 1
		if p == Renewed {
			rounds += renewals
		}
		for range rounds {
			for _, i := range random.Perm(len(pairs)) {
				c.ask([]int{i}, now)
			}
			now = now.Add(renewAfter)
		}
	}
	return c.placed, c.moved
}

// controller is the path server, and the hosts that ask it.
type controller struct {
	s      *known.Scheduler
	all    []known.Asked
	placed [][][]int
	tells  bool // hosts of flows that it moves
	moved  int
}

// ask places some connections, or asks again. Hosts of others that are moved for them ask again, too.
func (c *controller) ask(some []int, now time.Time) {
	var asked []known.Asked
	for _, i := range some {
		asked = append(asked, c.all[i])
	}
	for k, chosen := range c.s.PlaceAll(asked, now, now.Add(leaseTime)) {
		i := some[k]
		before := c.placed[i]
		c.placed[i] = nil
		for n, way := range chosen {
			c.placed[i] = append(c.placed[i], c.all[i].Ways[way])
			if before != nil && !slices.Equal(before[n], c.all[i].Ways[way]) {
				c.moved++
			}
		}
	}
	for _, m := range c.s.Relieve(asked, func(string) bool { return c.tells }, now) {
		i, _ := strconv.Atoi(m.Key) // was made of a number
		c.ask([]int{i}, now)
	}
}
