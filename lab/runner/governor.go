package runner

import (
	"math"
	"runtime"
	"time"
)

const (
	// growBelow is the busy share of the processors up to which another network may be added. It leaves
	// room for the start and the end of runs.
	growBelow = 0.8
	// shrinkAbove is the busy share above which a network is removed.
	shrinkAbove = 0.9
	// networksPerCPU limits the number of networks. Each has some forty processes and threads, and holds
	// packets in memory.
	networksPerCPU = 4
	// retryAfter is the number of good runs before a level that failed is tried again.
	retryAfter = 12
)

// Governors has one governor for each limit of lateness, because the possible concurrency depends on it: more
// runs fit if they measure goodput than if they measure latencies.
type Governors struct {
	Jobs int // networks at a time, or Automatic
	of   map[time.Duration]*governor
}

// NewGovernors returns governors for jobs networks at a time, or Automatic.
func NewGovernors(jobs int) Governors {
	return Governors{Jobs: jobs, of: map[time.Duration]*governor{}}
}

func (g Governors) under(limit time.Duration) *governor {
	if g.of[limit] == nil {
		g.of[limit] = newGovernor(g.Jobs)
	}
	return g.of[limit]
}

// Level returns the number of networks with that limit of lateness that may run at a time.
func (g Governors) Level(limit time.Duration) int { return g.under(limit).level }

// governor decides how many networks run at once, from the results of earlier runs. It starts low, adds one
// while there is room, and removes one when links were inaccurate.
type governor struct {
	level   int // networks at a time, now
	most    int
	fixed   bool
	good    int // valid runs at this level
	ceiling int // the level that was too high
	since   int // valid runs since then
	lowered int // number of times that the level was lowered
}

// Automatic, as the number of jobs, adapts the number to the results of runs.
const Automatic = -1

// newGovernor returns a governor for jobs networks, or Automatic.
func newGovernor(jobs int) *governor {
	if jobs == Automatic {
		cpus := runtime.NumCPU()
		return &governor{level: max(1, cpus/2), most: networksPerCPU * cpus, ceiling: math.MaxInt}
	}
	return &governor{level: max(1, jobs), fixed: true}
}

// observation describes what a completed run shows about the machine's load.
type observation struct {
	networks float64 // at a time, on average while it ran
	cpu      float64 // busy part of the machine's processors
	lateness float64 // share of the allowed lateness; above 1, the run does not count
	lowered  int     // number of times that the level had been lowered when the run began
}

// observe updates the level after a run. Of several runs that overlapped one disturbance, only the first to end
// lowers the level, because the others ran at the old one.
func (g *governor) observe(o observation) {
	if g.fixed {
		return
	}
	lost, here := o.lateness > 1 || o.cpu > shrinkAbove, o.networks > float64(g.level)-0.5
	switch {
	case lost && o.networks > 1.5 && g.level > 1 && o.lowered == g.lowered:
		g.ceiling, g.since, g.good = g.level, 0, 0
		g.level--
		g.lowered++
	case lost:
		g.good = 0
	case here:
		g.since++
		g.good++
		if g.since > retryAfter {
			g.ceiling = math.MaxInt
		}
		each := o.cpu / o.networks
		if room := o.cpu+each <= growBelow && o.lateness <= 0.5; !room {
			g.good = 0
		}
		if g.good >= g.level && g.level+1 < g.ceiling && g.level < g.most {
			g.level, g.good = g.level+1, 0
		}
	}
}
