package track

import (
	"github.com/detour-collective/dcol/internal/packet"
)

// mapping is one of DSS: length bytes of data from dsn are in the subflow from ssn, relative to its first SYN.
type mapping struct {
	dsn    uint64
	ssn    uint32
	length uint32
}

// stream is one direction of a connection, in data sequence numbers.
type stream struct {
	known bool
	begun bool   // first is exact
	first uint64 // of data
	high  uint64 // behind the highest that was seen
	next  uint64 // behind the data without holes

	ack       uint64 // the highest from the other side
	ackKnown  bool
	ackMoved  bool   // it has gone forward
	edge      uint64 // of the receiver's window
	edgeKnown bool
	largest   uint32 // segment

	finSeen  bool
	fin      uint64
	finAcked bool

	ranges ranges

	fresh       uint64 // bytes first seen
	unmapped    uint64 // bytes without mapping: data, if the connection fell back
	reinjected  uint64 // bytes seen on another subflow before
	reinjection uint64 // segments
	lastSubflow int
	lastNew     int64

	blockedSince, blocked int64
	blockages             int
	stalledSince, stalled int64
	stallEnded            int64
	stalls                int
	maxFlight             uint64
}

// begin sets the first data sequence number, which follows from the key, unless it is known already.
func (s *stream) begin(first uint64) {
	if s.known {
		return
	}
	s.known, s.begun = true, true
	s.first, s.high, s.next = first, first, first
}

// expand returns the number of 8 bytes that a number of 4 bytes stands for: the one closest to a known one.
func expand(low uint64, known uint64) uint64 {
	return known + uint64(int64(int32(uint32(low)-uint32(known))))
}

// mapTo makes a mapping the current one.
func (h *half) mapTo(m mapping) {
	if h.mapping == m {
		return
	}
	h.before, h.mapping = h.mapping, m
}

// dss handles a data sequence signal.
func (s *subflow) dss(p *Packet, from Side) {
	c, d := s.c, &p.DSS
	out, in := &c.streams[from], &c.streams[from.other()]
	if d.Flags&packet.DSSAck != 0 {
		ack := d.Ack
		if d.Flags&packet.DSSAck8 == 0 {
			switch {
			case in.known:
				ack = expand(ack, in.high)
			case in.ackKnown:
				ack = expand(ack, in.ack)
			}
		}
		in.acknowledge(c, s, p.Time, ack, s.half[from].window)
	}
	if d.Flags&packet.DSSMap == 0 {
		return
	}
	dsn := d.Sequence
	if d.Flags&packet.DSSMap8 == 0 && out.known {
		dsn = expand(dsn, out.high)
	}
	length := uint32(d.Length)
	if d.Flags&packet.DSSFinish != 0 && length > 0 {
		length--
		out.finish(dsn + uint64(length))
	} else if length == 0 {
		c.fallback.infinite(p.Time)
		return
	}
	if length > 0 {
		s.half[from].mapTo(mapping{dsn, d.Subflow, length})
	}
}

func (s *stream) finish(fin uint64) {
	s.finSeen, s.fin = true, fin
	if !s.known {
		s.known, s.first, s.high, s.next = true, fin, fin, fin
	}
}

// acknowledge takes a data acknowledgement, and the window in its segment.
func (s *stream) acknowledge(c *connection, on *subflow, at int64, ack uint64, window uint32) {
	if !s.ackKnown || int64(ack-s.ack) > 0 {
		s.ackMoved = s.ackMoved || s.ackKnown
		s.ack, s.ackKnown = ack, true
		if s.known && int64(ack-s.next) > 0 {
			s.skip(at, ack)
		}
		if s.finSeen && int64(ack-s.fin) > 0 {
			s.finAcked = true
		}
		if c.trace != nil {
			c.trace.acknowledgement(at, on, s == &c.streams[Server], ack)
		}
	}
	if edge := ack + uint64(window); !s.edgeKnown || int64(edge-s.edge) > 0 {
		s.edge, s.edgeKnown = edge, true
		if s.stalledSince != 0 && int64(s.edge-s.high) >= int64(s.largest) {
			s.stallEnded = at
		}
	}
}

// skip goes on where the other side has data that the capture lacks.
func (s *stream) skip(at int64, ack uint64) {
	if s.finSeen && ack == s.fin+1 {
		ack = s.fin
	}
	if int64(ack-s.next) <= 0 {
		return
	}
	if int64(ack-s.high) > 0 {
		s.high = ack
	}
	s.next = ack
	s.next = s.ranges.contiguous(s.next)
	s.unblock(at)
}

func (s *stream) unblock(at int64) {
	if s.blockedSince == 0 || s.next != s.high {
		return
	}
	s.blocked += max(0, at-s.blockedSince)
	s.blockages++
	s.blockedSince = 0
}

// carry processes a segment's payload.
func (s *subflow) carry(p *Packet, from Side) {
	c, h := s.c, &s.half[from]
	was := h.receive(p)
	if h.found {
		h.found = false
		c.anomaly.lostByCapture -= min(c.anomaly.lostByCapture, 1)
	}
	if was == unneeded {
		return
	}
	if h.firstData == 0 {
		h.firstData = p.Time
	}
	h.bytes += uint64(p.Payload)
	if was == again || was == belated && h.lastRe == p.Time {
		c.repeats.add(p.Time, retransmission)
	}
	out := &c.streams[from]
	if c.fallback.plain() {
		if was != again { // as of an infinite mapping
			h.newBytes += uint64(p.Payload)
			h.lastNew = p.Time
			out.fresh += uint64(p.Payload)
		}
		return
	}
	dsn, length, mapped := h.locate(p)
	switch {
	case was == again:
		if mapped && c.trace != nil {
			c.trace.segment(p.Time, s, from, dsn, length, Retransmitted)
		}
	case mapped:
		out.data(s, p, from, dsn, length)
	case !p.HasMPTCP && !p.Cut:
		c.anomaly.unmapped++
		c.fallback.unmapped(p.Time, s, from)
		out.unmapped += uint64(p.Payload)
		h.unmapped += uint64(p.Payload)
	}
}

// locate returns the data sequence numbers of a segment's payload.
func (h *half) locate(p *Packet) (dsn uint64, length uint32, ok bool) {
	for _, m := range [2]mapping{h.mapping, h.before} {
		if m.length == 0 {
			continue
		}
		if !h.isnKnown && !h.learn(p, m) {
			return 0, 0, false
		}
		offset := p.Seq - h.isn - m.ssn
		if offset < m.length {
			return m.dsn + uint64(offset), min(p.Payload, m.length-offset), true
		}
	}
	return 0, 0, false
}

// learn finds a subflow's initial sequence number where its SYN is missing: a segment that begins a mapping has the
// number of its first byte. It is sure once two mappings give the same.
func (h *half) learn(p *Packet, m mapping) bool {
	isn := p.Seq - m.ssn
	switch {
	case !h.isnGuess:
		h.isn, h.isnGuess = isn, true
	case h.isn == isn && h.before.length > 0 && h.mapping != h.before:
		h.isnKnown = true
	case before(isn, h.isn):
		h.isn = isn
	}
	return h.isnKnown
}

// data takes data that is new on its subflow.
func (s *stream) data(on *subflow, p *Packet, from Side, dsn uint64, length uint32) {
	c, h := on.c, &on.half[from]
	if !s.known {
		s.known, s.first, s.high, s.next = true, dsn, dsn, dsn
	}
	s.largest = max(s.largest, min(length, 1460))
	end := dsn + uint64(length)
	var fresh, other uint32
	var original span
	if dsn == s.high { // mostly
		s.ranges.append(dsn, length, on.index, p.Time)
		fresh = length
	} else {
		fresh, other, original = s.ranges.add(dsn, length, on.index, p.Time)
	}
	if int64(end-s.high) > 0 {
		s.high = end
	}
	if s.ackKnown && int64(s.high-s.ack) > 0 {
		s.maxFlight = max(s.maxFlight, s.high-s.ack)
	}
	// Holes between the data: data behind a hole waits for it.
	switch {
	case dsn == s.next && s.high == end:
		s.next = end
	case int64(dsn-s.next) <= 0 && int64(end-s.next) > 0:
		s.next = s.ranges.contiguous(end)
	}
	if s.next != s.high {
		if s.blockedSince == 0 {
			s.blockedSince = p.Time
		}
	} else if s.blockedSince != 0 {
		s.unblock(p.Time)
	}
	kind := Retransmitted
	if other > 0 {
		h.reinjected += uint64(other)
		h.lastRe = p.Time
		s.reinjected += uint64(other)
		s.reinjection++
		c.repeats.add(p.Time, reinjection)
		c.repeats.causes[c.cause(original, on, from, p.Time)]++
		kind = Reinjected
	}
	if fresh > 0 {
		s.newData(on, p, from, fresh)
		kind = First
	}
	if c.trace != nil {
		c.trace.segment(p.Time, on, from, dsn, length, kind)
	}
	if s.ackKnown {
		s.ranges.forget(s.ack, p.Time)
	} else {
		s.ranges.forget(s.high-min(s.high, 1<<22), p.Time)
	}
}

// newData takes data that no subflow has carried before.
func (s *stream) newData(on *subflow, p *Packet, from Side, fresh uint32) {
	c, h := on.c, &on.half[from]
	s.fresh += uint64(fresh)
	h.newBytes += uint64(fresh)
	h.lastNew = p.Time
	if on.nextOther != 0 {
		on.nextOther = 0 // it carries again
	}
	if s.lastSubflow >= 0 && s.lastSubflow != on.index {
		if last := c.subflows[s.lastSubflow]; last.nextOther == 0 {
			last.nextOther, last.otherIndex = p.Time, on.index
		}
	}
	s.lastSubflow, s.lastNew = on.index, p.Time
	if s.stallEnded != 0 {
		// Data that follows the opening of the window at once was waiting for it.
		if p.Time-s.stallEnded < 200*millisecond && s.stallEnded-s.stalledSince >= 10*millisecond {
			s.stalled += s.stallEnded - s.stalledSince
			s.stalls++
		}
		s.stalledSince, s.stallEnded = 0, 0
	}
	if s.edgeKnown && s.stalledSince == 0 && int64(s.edge-s.high) < int64(s.largest) {
		s.stalledSince = p.Time
	}
}
