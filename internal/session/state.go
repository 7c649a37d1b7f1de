package session

import (
	"net/netip"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// State is what a client knows of a waypoint.
type State struct {
	Waypoint string
	Addr     netip.AddrPort
	Up       bool
	Since    time.Time // of Up, or of its being down
	Problem  *Problem  // why it is down; nil when Up
	Sessions uint64    // how many sessions came up so far

	// The following hold while Up.
	// Moving: our address has changed and the session follows; requests wait that long.
	Moving   bool
	Local    netip.Addr     // the address our packets leave from
	Observed netip.AddrPort // where the waypoint sees them come from: what its grants are for
	Offers   []wire.Kind
	Closed   *Closed       // why nothing is given for now; nil: it is
	Lease    time.Duration // of a mapping at this waypoint
	RTT      time.Duration // smoothed
	MinRTT   time.Duration
	Loss     float64 // part of our packets not acknowledged, over about the last minute
}

// Usable says whether requests are answered now, for the address in Observed.
func (s State) Usable() bool { return s.Up && !s.Moving }

// loss estimates loss from quic-go's counters, which never forget.
type loss struct {
	sent, lost         float64
	lastSent, lastLost uint64
}

// keep is how much of the past counts at each ping: half of it after 34.
const keep = 0.98

func (l *loss) update(s quic.ConnectionStats) {
	sent := float64(s.PacketsSent - l.lastSent)
	// Packets thought lost may still arrive: this counter can fall.
	lost := float64(int64(s.PacketsLost - l.lastLost))
	l.lastSent, l.lastLost = s.PacketsSent, s.PacketsLost
	l.sent = l.sent*keep + sent
	l.lost = max(0, l.lost*keep+lost)
}

func (l *loss) ratio() float64 {
	if l.sent == 0 {
		return 0
	}
	return min(1, l.lost/l.sent)
}

// backoff is how long to wait before the next try.
type backoff struct{ tries int }

const (
	firstDelay = time.Second
	lastDelay  = 60 * time.Second
	// steady is how long a session must have been up for the past to be forgotten.
	steady = 10 * time.Second
)

// next returns the delay; chance is in [0, 1) and spreads clients that lost the same waypoint at once.
func (b *backoff) next(chance float64) time.Duration {
	delay := lastDelay
	if b.tries < 6 { // 2^6 s is more than lastDelay
		delay = firstDelay << b.tries
		b.tries++
	}
	return min(lastDelay, delay+time.Duration(chance*float64(delay)/2))
}

func (b *backoff) reset() { b.tries = 0 }
