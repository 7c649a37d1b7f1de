package chaos

import (
	"time"

	"github.com/detour-collective/dcol/lab/chaos/twin"
)

// Observations holds everything about a sequence that the judge needs.
type Observations struct {
	Streams int // of the world
	Strikes []Strike
	Pairs   []PairRecord
	// Lacking lists the connections that still had fewer than two paths when recoverLimit was over.
	// If there are none, Recovered is the time from the last fault until all had two.
	Lacking   []Paths
	Recovered time.Duration
	// Still lists connections that stood still while the direct path was cut at the end,
	// although they had two paths.
	Still []string
	// Unconverted lists connections that did not go through the converter before the first fault.
	Unconverted []string
	// Unauthorised counts forbidden packets by reason. Excess lists what else attackers got.
	Unauthorised map[string]int
	Excess       []string
	Stolen       []string // how the client's own traffic was led elsewhere
	Before       map[string]Holdings
	After        map[string]Holdings
	// Idle and IdleAgain are the holdings before any traffic and after all of it.
	Idle      map[string]Holdings
	IdleAgain map[string]Holdings
	// Died lists failures of dcol's own processes.
	Died []string
	// Exempt counts connections that need not have two paths, by the reason.
	Exempt map[string]int
	// LosesOverlaps reports that this kernel loses data of connections that became plain TCP.
	LosesOverlaps bool
	// HeldStill lists connections that stood still then because of a fault of an end's kernel.
	HeldStill []string
	Late      time.Duration // of the emulated links' packets, 99th percentile, the worst
}

// PairRecord holds the records of a connection and its twin.
type PairRecord struct {
	MPTCP, Plain twin.Record
	// Held reports that an end's kernel kept bytes from a program that waited for them: see heldByKernel.
	Held bool
}
