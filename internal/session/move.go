package session

import (
	"net/netip"
	"time"
)

// move follows a session through a change of this host's network: pings leave from where we are now
// until the waypoint has validated that address and says so. A nil move is none.
type move struct {
	until    time.Time
	retry    *time.Ticker
	before   netip.AddrPort
	relocate bool // the waypoint must see another address than before
}

const (
	moveEvery = 100 * time.Millisecond
	// moveTimeout covers a lost neighbour solicitation (repeated after a second, RFC 4861, 10), which
	// a new session would have to wait for as well.
	moveTimeout = 2 * time.Second
)

// startMove looks what the change of the network means for a session.
func (c *Client) startMove(call *call, running *move) *move {
	local, err := localFor(c.config.Addr)
	if err != nil {
		c.log.Info("no route to the waypoint", "err", err)
		return running // it may come back; if not, silence ends the session
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

// arrived says whether the waypoint sees us where we are now.
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
