package path

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/deadline"
)

// conn holds the state of one connection.
type conn struct {
	token         Token
	local, remote netip.AddrPort // of the first subflow
	server        netip.AddrPort // destination of further subflows: remote, or an announced address
	since         time.Time
	denyInitial   bool
	excluded      bool
	refused       bool // the kernel accepts no commands for it

	subflows       []*subflow
	ended          []ended    // subflows that ended and are not judged yet
	lost           []lostAddr // addresses that the peer may believe to exist
	lastRemoveAddr time.Time  // when the last REMOVE_ADDR was sent
	lastID         uint8

	tls       bool // detours wait for the server's first data
	heard     bool // the server's first data has arrived
	nextProbe time.Time

	capped  bool      // would take more subflows if the server did
	dropped time.Time // when a subflow last ended that the server may still count

	short  bool  // would take another detour
	asks   bool  // a mapping may serve as that detour
	ask    retry // for requesting detours
	direct retry // for the direct path
	room   retry // for subflows beyond those that the server accepted

	data  progress
	moved time.Time             // when a subflow last received or sent data
	busy  bool                  // in Manager.busy
	seen  time.Time             // when one of its subflows last appeared in a complete sample
	due   deadline.Entry[*conn] // when it needs a Tick
}

// subflow is one subflow of a connection, established or joining.
type subflow struct {
	id            uint8
	local, remote netip.AddrPort // local is incomplete until the kernel has chosen
	direct        bool
	detour        *Detour // nil for the direct path and for an unrecognised one
	why           Reason  // why the detour was chosen, if this manager chose it
	chosen        bool    // this manager chose it
	try           bool    // goes over an unproven detour
	network       uint32  // Manager.network when it started
	backup        bool
	up            bool
	since         time.Time
	took          time.Duration // how long the join took
	leaving       bool          // to be ended: its waypoint is not to be used any more
	foreign       bool          // created by the peer or by an earlier agent, so its id may equal one of ours

	round           uint64 // last complete sample that included it; 0: none
	received, acked uint64
	moved           time.Time // when received or acked last grew
	backoff         int       // how often its retransmission timer had doubled at the last sample

	senses
	suspicion suspicion
}

// ended is a subflow that ended while it is not yet known whether the connection did, too.
type ended struct {
	*subflow
	err    error
	lived  time.Duration
	unsent bool // no SYN was sent: the kernel refused
	silent bool // ended without a kernel event
	// after and failedBefore are set for a silent end: the last complete sample at that time, and
	// the number of failed checksums when the subflow was last known to exist.
	after, failedBefore uint64
	adrift              bool // its address was gone, perhaps for a moment, so the peer did not learn of its end
	judge               time.Time
}

// managed reports whether this manager may act on the connection.
func (c *conn) managed() bool { return !c.excluded && !c.refused }

// denied reports whether the server accepts no further subflow to the only address known of it.
func (c *conn) denied() bool { return c.denyInitial && c.server == c.remote }

// closing reports whether a subflow ended recently, so that the connection itself may be closing. A
// failed try is not counted, because it has a cause of its own.
func (c *conn) closing() bool {
	return slices.ContainsFunc(c.ended, func(e ended) bool { return e.up || !e.try || e.unsent })
}

// open reports whether detours may carry data.
func (c *conn) open() bool { return !c.tls || c.heard }

func (c *conn) byID(id uint8) *subflow {
	return c.find(func(s *subflow) bool { return s.id == id })
}

// asked returns the subflow with this id that this manager requested and that is not established
// yet. There may be another with the same id that an earlier agent requested.
func (c *conn) asked(id uint8) *subflow {
	return c.find(func(s *subflow) bool { return s.id == id && !s.up })
}

func (c *conn) byAddrs(local, remote netip.AddrPort) *subflow {
	return c.find(func(s *subflow) bool { return s.local == local && s.remote == remote })
}

// joining returns the subflow that is not established yet and matches what the kernel reports: the
// local address and port, or the id while those are unknown. The kernel may leave out the remote
// port.
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

func (c *conn) remove(s *subflow) {
	c.subflows = slices.DeleteFunc(c.subflows, func(x *subflow) bool { return x == s })
}

// newID returns an address id that no subflow of the connection uses and that is not waiting for a
// REMOVE_ADDR. Ids are reused as late as possible, because a REMOVE_ADDR for an old one may still
// be in flight. Every subflow has an id of its own so that one can be removed without the others.
// There are 255 ids; the kernel stops at 8 subflows.
func (c *conn) newID() (id uint8, ok bool) {
	for range 255 {
		c.lastID++
		if c.lastID == 0 { // id 0 is the first subflow's
			c.lastID++
		}
		if c.byID(c.lastID) == nil && !slices.ContainsFunc(c.lost, func(l lostAddr) bool { return l.id == c.lastID }) {
			return c.lastID, true
		}
	}
	return 0, false
}

// ownsID reports whether this manager created s and no other subflow has its address id.
func (c *conn) ownsID(s *subflow) bool {
	return !c.has(func(x *subflow) bool { return x != s && x.id == s.id })
}

// end removes a subflow that ended by itself. Its route is judged later.
func (m *Manager) end(c *conn, e ended, now time.Time) {
	c.remove(e.subflow)
	if !c.managed() {
		return
	}
	e.adrift = !m.hasSource(e.subflow)
	switch {
	case e.up:
		e.lived = now.Sub(e.since)
	case e.err == nil:
		e.err = errNotJoined
	}
	if !e.full() {
		c.dropped = now
	}
	c.ended = append(c.ended, e)
}

// recognise assigns d to subflows that use it and that this manager did not create. A subflow from
// a tunnel's address to the server itself counts as direct until the tunnel is known. An in-band
// subflow looks like a mapped one if the port is the server's own; it is taken for in-band, which
// is more likely because it needs no mapping.
func (c *conn) recognise(d *Detour) {
	remote, ok := d.target(c.server)
	if !ok || d.Local.IsValid() && d.Local == c.local.Addr() {
		return
	}
	for _, s := range c.subflows {
		better := s.detour == nil || !s.chosen && d.Kind < s.detour.Kind
		if better && s.remote == remote && (!d.Local.IsValid() || d.Local == s.local.Addr()) {
			s.detour, s.direct = d, false
		}
	}
}

func (m *Manager) recogniseAll(c *conn) {
	for o := range m.leading(c.server) {
		c.recognise(&o.Detour)
	}
}
