package session

import (
	"net/netip"
	"time"
)

// move tracks a session through a change of this host's network: pings are sent from the current
// address until the waypoint has validated it and reports it. A nil move means that there is none.
type move struct {
	until    time.Time
	retry    *time.Ticker
	before   netip.AddrPort
	relocate bool // the waypoint must see an address other than before
}

const (
	moveEvery = 100 * time.Millisecond
	// moveTimeout allows for a lost neighbour solicitation (repeated after a second, RFC 4861, 10),
	// which would delay a new session as well.
	moveTimeout = 2 * time.Second
)

// startMove returns the move that a change of the network requires, or nil if there is none.
func (c *Client) startMove(call *call, running *move) *move {
	local, err := localFor(c.config.Addr)
	if err != nil {
		c.log.Info("no route to the waypoint", "err", err)
		return running // the address may come back; if not, silence ends the session
	}
	if running == nil {
		running = &move{before: c.State().Observed, retry: time.NewTicker(moveEvery)}
	}
	running.until = time.Now().Add(moveTimeout)
	if local != call.local {
		running.relocate = true
		c.unsettle()
	}
	return running
}

// arrived reports whether the waypoint sees our current address.
func (m *move) arrived(seen netip.AddrPort) bool {
	return m == nil || !m.relocate || seen != m.before
}

func (m *move) late() bool { return time.Now().After(m.until) }

func (m *move) retries() <-chan time.Time {
	if m == nil {
		return nil
	}
	return m.retry.C
}

func (m *move) stop() {
	if m != nil {
		m.retry.Stop()
	}
}
