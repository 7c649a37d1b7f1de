package session

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// State is the client's knowledge of a waypoint.
type State struct {
	Waypoint string
	Addr     netip.AddrPort
	Up       bool
	Since    time.Time // when Up last changed
	Problem  *Problem  // nil if Up
	Sessions uint64    // sessions opened so far

	// The following fields are valid while Up.
	//
	// Moving is set after our address has changed, until the waypoint has confirmed the new one. Requests wait until
	// then.
	Moving      bool
	Local       netip.Addr     // source address of our packets
	Observed    netip.AddrPort // our address as the waypoint sees it, for which its grants are valid
	Offers      []wire.Kind
	Closed      *Closed // why nothing is given for now; nil: not closed
	Load        Load
	Lease       time.Duration // of a mapping at this waypoint
	RTT         time.Duration // smoothed
	MinRTT      time.Duration
	LatestRTT   time.Duration
	Loss        float64 // share of our packets that did not arrive, over about the last minute
	LossPackets float64 // number of packets from which Loss was computed; older ones count less
}

// Usable reports whether requests can be answered now, for the address in Observed.
func (s State) Usable() bool { return s.Up && !s.Moving }

// backoff computes the wait before the next try.
type backoff struct{ tries int }

const (
	firstDelay = time.Second
	lastDelay  = 60 * time.Second
	// steady is the age from which a session resets the backoff.
	steady = 10 * time.Second
)

// next returns the delay. chance is in [0, 1) and spreads clients that lost the same waypoint at
// the same time.
func (b *backoff) next(chance float64) time.Duration {
	delay := lastDelay
	if b.tries < 6 { // 2^6 s is more than lastDelay
		delay = firstDelay << b.tries
		b.tries++
	}
	return min(lastDelay, delay+time.Duration(chance*float64(delay)/2))
}

func (b *backoff) reset() { b.tries = 0 }
