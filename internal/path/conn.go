package path

import (
	"net/netip"
	"slices"
	"time"
)

// conn is one connection.
type conn struct {
	token         Token
	local, remote netip.AddrPort // of the first subflow
	server        netip.AddrPort // where further subflows lead: remote, or announced
	since         time.Time
	denyInitial   bool
	excluded      bool
	refused       bool // the kernel takes no commands for it

	subflows []*subflow
	ended    []ended    // not judged yet
	lost     []lostAddr // the peer may think that they are there
	spoke    time.Time  // when the last REMOVE_ADDR went
	lastID   uint8

	tls       bool // detours wait for the server's first data
	heard     bool // which has come
	nextProbe time.Time

	capped  bool      // would take more if the server did
	dropped time.Time // when a subflow last ended that the server may still count

	short  bool  // would take another detour
	asks   bool  // and a mapping may be it
	ask    retry // for detours
	direct retry // of the direct path
	room   retry // of subflows beyond those that the server took

	data  progress
	moved time.Time // when a subflow last did
	busy  bool      // in Manager.busy
	seen  time.Time // when a complete sample last had one of its subflows
	due   time.Time // when it wants a Tick; zero: it does not
	place int       // in Manager.due, while due is set
}

// subflow is one of a connection's subflows, up or joining.
type subflow struct {
	id            uint8
	local, remote netip.AddrPort // local is not complete until the kernel chose
	direct        bool
	detour        *Detour // nil for the direct path, and for one not recognised
	why           Reason  // for the detour, where it was our choice
	chosen        bool    // it was
	try           bool    // over a detour that was not proven
	network       uint32  // that it began on, as Manager.network
	backup        bool
	up            bool
	since         time.Time
	took          time.Duration // to come up
	leaving       bool          // it is to end: its waypoint is not to be used any more
	foreign       bool          // the peer's, or of an agent before us: its id may be one of ours, too

	round           uint64 // of the last complete sample that had it; 0: none
	received, acked uint64
	moved           time.Time // when either last grew
	backoff         int       // how often its retransmission timer had doubled last

	senses
	suspicion suspicion
}

// ended is a subflow that ended, before it is known whether its connection did.
type ended struct {
	*subflow
	err    error
	lived  time.Duration
	unsent bool // no SYN left: the kernel refused
	silent bool // no event said so
	// after and failedBefore are of one that ended silently: the last complete sample then,
	// and how many checksums had failed when it was certainly there.
	after, failedBefore uint64
	adrift              bool // its address was gone, perhaps for a moment, so that the peer did not hear of its end
	judge               time.Time
}

// managed: it is ours to act on.
func (c *conn) managed() bool { return !c.excluded && !c.refused }

// denied: the server allows no further subflow to the only address known of it.
func (c *conn) denied() bool { return c.denyInitial && c.server == c.remote }

// closing: a subflow ended, so that the connection itself may be closing too. A
// try that did not come up is no sign of it: it has a reason of its own.
func (c *conn) closing() bool {
	return slices.ContainsFunc(c.ended, func(e ended) bool { return e.up || !e.try || e.unsent })
}

// open: detours may carry data.
func (c *conn) open() bool { return !c.tls || c.heard }

func (c *conn) byID(id uint8) *subflow {
	return c.find(func(s *subflow) bool { return s.id == id })
}

// asked is the subflow with this id that we asked for and that is not up yet. Beside it
// there may be one with the same id that an agent before us asked for.
func (c *conn) asked(id uint8) *subflow {
	return c.find(func(s *subflow) bool { return s.id == id && !s.up })
}

func (c *conn) byAddrs(local, remote netip.AddrPort) *subflow {
	return c.find(func(s *subflow) bool { return s.local == local && s.remote == remote })
}

// joining is the subflow that is not up yet and is known to the kernel by these:
// by its local address and port, or by its id as long as they are not known. The
// kernel may leave out the remote port.
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

// newID returns an address id that no subflow of the connection uses and of which
// the peer is not to be told any more, and as late as possible one that was used
// before: a REMOVE_ADDR for it may still be under way. Every subflow has an id of its own so that one can be taken back
// without the others. There are 255; the kernel stops at 8 subflows.
func (c *conn) newID() (id uint8, ok bool) {
	for range 255 {
		c.lastID++
		if c.lastID == 0 { // the first subflow's
			c.lastID++
		}
		if c.byID(c.lastID) == nil && !slices.ContainsFunc(c.lost, func(l lostAddr) bool { return l.id == c.lastID }) {
			return c.lastID, true
		}
	}
	return 0, false
}

// ownsID: s is ours, and the only subflow of its address id.
func (c *conn) ownsID(s *subflow) bool {
	return !c.has(func(x *subflow) bool { return x != s && x.id == s.id })
}

// end takes a subflow out, which ended by itself. The verdict about its route is
// left for later.
func (m *Manager) end(c *conn, e ended, now time.Time) {
	c.remove(e.subflow)
	if !c.managed() {
		return
	}
	e.adrift = !m.here(e.subflow)
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

// recognise ties subflows that are not of our making to the detour they take. A
// subflow from a tunnel's address to the server itself is taken for a direct
// one until the tunnel is known. An in-band one looks like a mapped one at the
// server's own port, and is more probably in-band, which needs no mapping.
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
