package track

import (
	"slices"

	"github.com/detour-collective/dcol/internal/packet"
)

// orphans finds connections that began before the capture by the data sequence numbers that they have reached.
type orphans map[place]*connection

// place is a part of the numbers of one side's data.
type place struct {
	side Side
	part uint64
}

const (
	// near bounds the distance between the data sequence numbers of one connection's subflows, in bytes. Numbers of one
	// part are near each other. Others may be in the part before or behind.
	nearBits = 30
	near     = 1 << nearBits
	parts    = 1 << (64 - nearBits)
)

// move notes where a connection's data is. If another connection is in the same part, that one is found.
func (o orphans) move(c *connection) {
	for side := range c.streams {
		number, ok := c.streams[side].position()
		at := place{Side(side), number >> nearBits}
		if !ok || c.placed[side] && c.places[side] == at {
			continue
		}
		o.leave(c, Side(side))
		c.places[side], c.placed[side] = at, true
		if o[at] == nil {
			o[at] = c
		}
	}
}

func (o orphans) leave(c *connection, side Side) {
	if c.placed[side] && o[c.places[side]] == c {
		delete(o, c.places[side])
	}
}

func (o orphans) remove(c *connection) {
	o.leave(c, Client)
	o.leave(c, Server)
}

// find returns the connection whose data of a side is near a number.
func (o orphans) find(side Side, number uint64) *connection {
	part := number >> nearBits
	for _, at := range [3]uint64{part, part - 1, part + 1} {
		if c := o[place{side, at % parts}]; c != nil && c.streams[side].isNear(number) {
			return c
		}
	}
	return nil
}

// position returns where a stream is.
func (s *stream) position() (number uint64, ok bool) {
	if s.known {
		return s.high, true
	}
	return s.ack, s.ackKnown
}

func (s *stream) isNear(number uint64) bool {
	at, ok := s.position()
	return ok && number-at+near < 2*near
}

// adopter finds the connection of a packet whose flow or join belongs to no known one: a connection that began
// before the capture and has data sequence numbers of 8 bytes close to the packet's. Two different connections
// have such numbers with a probability of 2^-33. from is the sender, as far as the flow shows. turned reports
// that it is the other side.
func (t *Tracker) adopter(p *Packet, from Side) (c *connection, turned bool) {
	d := &p.DSS
	if !p.HasDSS {
		return nil, false
	}
	for _, side := range [2]Side{from, from.other()} {
		if d.Flags&packet.DSSMap != 0 && d.Flags&packet.DSSMap8 != 0 {
			c = t.orphans.find(side, d.Sequence)
		}
		if c == nil && d.Flags&packet.DSSAck != 0 && d.Flags&packet.DSSAck8 != 0 {
			c = t.orphans.find(side.other(), d.Ack)
		}
		if c != nil {
			return c, side != from
		}
	}
	return nil, false
}

// adopted finds the connection of a flow that began before the capture, and who opened the subflow.
func (t *Tracker) adopted(s *subflow, p *Packet, fromOpener bool) *connection {
	from := Client
	if !fromOpener {
		from = Server
	}
	c, turned := t.adopter(p, from)
	if c == nil {
		return nil
	}
	if turned {
		s.opener = Server
	}
	c.anomaly.unknownToken, c.joining = 0, false // if a join was seen first, its connection is known now
	return c
}

// attach moves the subflows of a connection that consists only of joins with an unknown token to the connection that a
// data sequence number shows to be theirs. It is tried until data is mapped.
func (t *Tracker) attach(s *subflow, p *Packet) {
	joins := s.c
	c, turned := t.adopter(p, s.side(p.Low))
	if c == nil || c == joins {
		joins.joining = p.DSS.Flags&packet.DSSMap == 0
		return
	}
	for _, f := range joins.subflows {
		if turned {
			f.turn()
		}
		f.c, f.index = c, len(c.subflows)
		c.subflows = append(c.subflows, f)
	}
	for _, token := range joins.tokens {
		t.register(c, token)
		if turned {
			c.clientToken = &token
		}
	}
	c.absorb(joins, turned)
	joins.finished = true
	t.live--
	t.quiet.forget(joins)
	t.orphans.remove(joins)
}

// absorb takes over what was seen of joins before they were known to belong to the connection.
func (c *connection) absorb(joins *connection, turned bool) {
	for _, g := range joins.signals {
		if turned {
			g.from = g.from.other()
		}
		c.keep(g)
	}
	slices.SortStableFunc(c.signals, func(a, b *signal) int { return int(a.at - b.at) })
	if gap := joins.first - c.last; gap >= second {
		c.idleTime += gap
		c.longestGap = max(c.longestGap, gap)
	}
	c.idleTime += joins.idleTime
	c.longestGap = max(c.longestGap, joins.longestGap)
	c.first, c.last, c.active = min(c.first, joins.first), max(c.last, joins.last), max(c.active, joins.active)
	c.packets += joins.packets
	c.fastClose = c.fastClose || joins.fastClose
	c.reopened = c.closing
	joins.anomaly.unknownToken = 0
	c.anomaly.add(joins.anomaly)
}

// turn exchanges a subflow's sides.
func (s *subflow) turn() {
	s.opener, s.endBy, s.clientLow = s.opener.other(), s.endBy.other(), !s.clientLow
	s.address[0], s.address[1] = s.address[1], s.address[0]
	s.port[0], s.port[1] = s.port[1], s.port[0]
	s.half[0], s.half[1] = s.half[1], s.half[0]
	s.addressID[0], s.addressID[1] = s.addressID[1], s.addressID[0]
	s.idKnown[0], s.idKnown[1] = s.idKnown[1], s.idKnown[0]
	s.nonce[0], s.nonce[1] = s.nonce[1], s.nonce[0]
	s.verified[0], s.verified[1] = s.verified[1], s.verified[0]
}
