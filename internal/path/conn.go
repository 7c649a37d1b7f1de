package path

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/deadline"
	"github.com/detour-collective/dcol/internal/path/measure"
)

// conn holds the state of one connection.
type conn struct {
	token         Token
	local, remote netip.AddrPort // of the first subflow
	server        netip.AddrPort // destination of further subflows: remote, or an address that the server announced
	since         time.Time
	rule          *Rule

	tunnelled   bool // its first subflow starts in a tunnel, so all others must, too
	denyInitial bool
	excluded    exclusion
	refused     bool // the kernel accepts no commands for it
	halfClosed  bool // the kernel opens no more subflows for it
	adopted     bool // found when it was already established
	tls         bool // detours wait for the server's first data
	heard       bool // the server's first data has arrived
	capped      bool // would take more subflows if the server accepted more
	asks        bool // short of a detour, and a mapping would do
	watched     bool // listed in closeSampling.watched
	slotless    bool // watched without a slot, so not measured (closely.go)
	hadSlot     bool // has had a slot (closely.go)
	tried       bool // has taken a detour to measure it
	kindSaid    bool // the operator set kind
	exceeds     bool // has more subflows than its policy allows (surplus.go)
	firstEnded  bool // its first subflow ended because messages were stuck on it (dead.go)
	lastID      uint8
	kind        measure.Kind // of its traffic

	subflows []*subflow
	ended    []ended // ended subflows that are not judged yet
	removals removals

	short     time.Time // when it became short of a detour; zero: it is not
	nextProbe time.Time
	dropped   time.Time // when a subflow last ended that the server may still count

	carried uint64  // bytes in both directions
	growth  *growth // nil unless its Rule.Start delays further subflows

	ask    retry // requests for detours
	direct retry // attempts at the direct path
	room   retry // attempts at more subflows than the server accepted

	exchanges int32         // number of detours exchanged because their waypoints were loaded or slower
	flights   int32         // number of detours left because they collapsed
	exchanged time.Time     // start of the last exchange
	fled      time.Time     // start of the last flight
	follows   time.Duration // its age when it exchanges a detour for one that the operator wants; 0: not decided
	fledFrom  *collapse     // the collapsed detour whose place the next one takes; nil: none

	attention  *attention  // nil unless sampled closely
	tryouts    *tryouts    // nil unless it has had bulk traffic
	departures *departures // nil unless it leaves or left a path

	data  progress
	moved time.Time             // when a subflow last received or sent data
	seen  time.Time             // when one of its subflows last appeared in a complete sample
	lone  time.Time             // when it lost its last established subflow; zero: it has one
	due   deadline.Entry[*conn] // when it needs a Tick
}

// managed reports whether this manager may act on the connection. It acts on an excluded connection only if it began
// in a tunnel. Such a connection gets no detours but has to find its way into the next tunnel.
func (c *conn) managed() bool { return (!c.isExcluded() || c.tunnelled) && !c.refused }

// isExcluded reports whether the connection gets no detours.
func (c *conn) isExcluded() bool { return c.excluded != notExcluded }

// denied reports whether the server accepts no further subflow to its only known address.
func (c *conn) denied() bool { return c.denyInitial && c.server == c.remote }

// closing reports whether a subflow ended recently, because then the connection itself may be closing. A failed try
// does not count, because it has a cause of its own.
func (c *conn) closing() bool {
	return slices.ContainsFunc(c.ended, func(e ended) bool { return e.up || !e.try || e.unsent })
}

// open reports whether detours may carry data.
func (c *conn) open() bool { return !c.tls || c.heard }

// waits reports whether a detour of a TLS connection is up and may not be used yet.
func (c *conn) waits() bool {
	return !c.open() && c.has((*subflow).waits) && c.has(func(s *subflow) bool { return s.up && s.direct })
}

// wants reports whether mappings that are not known yet may help the connection. They may if it is short of a detour.
// They also may if it has a subflow from before the agent's restart, because such a subflow is recognised only when
// its detour is on offer again.
func (c *conn) wants() bool {
	return c.asks || c.has(func(s *subflow) bool { return !s.direct && s.detour == nil && s.id != 0 })
}

// isShort reports whether the connection would take another detour.
func (c *conn) isShort() bool { return !c.short.IsZero() }

// asked returns the joining subflow with this id that this manager requested. A subflow of an earlier agent may have
// the same id.
func (c *conn) asked(id uint8) *subflow {
	return c.find(func(s *subflow) bool { return s.id == id && !s.up })
}

func (c *conn) byAddrs(local, remote netip.AddrPort) *subflow {
	return c.find(func(s *subflow) bool { return s.local == local && s.remote == remote })
}

// joining returns the joining subflow that the kernel reports. It matches by the local address and port, or by the id
// while those are unknown. The kernel may leave out the remote port.
func (c *conn) joining(id uint8, local, remote netip.AddrPort) *subflow {
	return c.find(func(s *subflow) bool {
		return !s.up && s.remote.Addr() == remote.Addr() && (s.remote.Port() == remote.Port() || remote.Port() == 0) &&
			(s.local == local || s.local.Port() == 0 && s.id == id)
	})
}

func (c *conn) find(is func(*subflow) bool) *subflow {
	if i := slices.IndexFunc(c.subflows, is); i >= 0 {
		return c.subflows[i]
	}
	return nil
}

func (c *conn) has(is func(*subflow) bool) bool { return slices.ContainsFunc(c.subflows, is) }

// ends appends the addresses of the established subflows to list.
func (c *conn) ends(list []Ends) []Ends {
	for _, s := range c.subflows {
		if s.up {
			list = append(list, Ends{s.local, s.remote})
		}
	}
	return list
}

// where returns the subflows for which is returns true.
func (c *conn) where(is func(*subflow) bool) (list []*subflow) {
	for _, s := range c.subflows {
		if is(s) {
			list = append(list, s)
		}
	}
	return list
}

// beside counts the subflows other than the first for which is returns true.
func (c *conn) beside(is func(*subflow) bool) (n int) {
	for _, s := range c.subflows {
		if s.id != 0 && is(s) {
			n++
		}
	}
	return n
}

// further counts the subflows other than the first.
func (c *conn) further() int { return c.beside(func(*subflow) bool { return true }) }

// adopt adds a subflow that the peer created or that an earlier agent requested.
func (c *conn) adopt(id uint8, remote netip.AddrPort, now time.Time) *subflow {
	s := &subflow{id: id, remote: remote, direct: remote == c.server, since: now, foreign: true}
	c.subflows = append(c.subflows, s)
	return s
}

func (c *conn) remove(s *subflow) {
	c.subflows = slices.DeleteFunc(c.subflows, func(x *subflow) bool { return x == s })
}

// newID returns an address id that no subflow uses and no REMOVE_ADDR waits for. Ids are reused as late as possible,
// because a REMOVE_ADDR for an old one may still be in flight. Every subflow has an id of its own, so that one can be
// removed without the others. There are 255 ids, and the kernel stops at 8 subflows.
func (c *conn) newID() (id uint8, ok bool) {
	for range 255 {
		c.lastID++
		if c.lastID == 0 { // id 0 is the first subflow's
			c.lastID++
		}
		used := c.has(func(s *subflow) bool { return s.id == c.lastID }) ||
			slices.ContainsFunc(c.removals.lost, func(l lostAddr) bool { return l.id == c.lastID })
		if !used {
			return c.lastID, true
		}
	}
	return 0, false
}

// ownsID reports whether no other subflow of the connection has the address id of s.
func (c *conn) ownsID(s *subflow) bool {
	return !c.has(func(x *subflow) bool { return x != s && x.id == s.id })
}
