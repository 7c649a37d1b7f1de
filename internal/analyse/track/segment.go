package track

import (
	"github.com/detour-collective/dcol/internal/packet"
)

// before reports whether a is before b in a sequence space of 32 bits.
func before(a, b uint32) bool { return int32(a-b) < 0 }

// segment processes a packet of a subflow:
//  1. a copy of a packet that the capture has twice is left out;
//  2. the handshake, and options but DSS;
//  3. what the packet acknowledges: round trips, the window;
//  4. what it carries: at the subflow's level, then at the connection's;
//  5. the end of the subflow.
func (t *Tracker) segment(s *subflow, p *Packet) {
	if s.c.joining && p.HasDSS {
		t.attach(s, p)
	}
	c := s.c
	from := s.side(p.Low)
	h, peer := &s.half[from], &s.half[from.other()]
	if h.duplicate(p) {
		c.anomaly.duplicates++
		return
	}
	c.touch(p)
	s.last = p.Time
	h.last = p.Time
	h.packets++
	if p.Cut {
		c.anomaly.cut++
	}
	if p.Malformed {
		c.anomaly.badOption++
	}
	if p.HasMPTCP {
		h.mptcp++
		if p.OthersLen > 0 {
			t.signals(s, p, from)
		}
	}
	syn := p.Flags.Has(packet.SYN)
	if syn {
		s.handshake(p, from)
	} else if !s.up {
		s.established(p, from)
	}
	if !syn {
		if !h.started {
			h.started, h.next = true, p.Seq
		}
		if p.Flags.Has(packet.ACK) {
			s.acknowledge(p, h, peer)
		}
	}
	if p.HasDSS {
		s.dss(p, from)
		if c.midway {
			defer t.orphans.move(c)
		}
	}
	if s.index == 0 && !syn {
		c.fallback.note(s, p, from)
	}
	if p.Payload > 0 && !syn && !p.Flags.Has(packet.RST) {
		s.carry(p, from)
	}
	if p.Flags&(packet.FIN|packet.RST) != 0 {
		t.ends(s, p, from)
	}
	if c.closing && p.Payload > 0 && !c.done() {
		c.reopened = true
	}
}

// touch notes the time of a packet.
func (c *connection) touch(p *Packet) {
	if gap := p.Time - c.last; gap >= second {
		c.idleTime += gap
		c.longestGap = max(c.longestGap, gap)
	} else if gap > c.longestGap {
		c.longestGap = gap
	}
	c.first = min(c.first, p.Time)
	c.last = max(c.last, p.Time)
	c.active = p.Clock
	c.packets++
}

// duplicate reports whether the capture has the packet a second time, as captures of several interfaces and of
// mirrored ports do. A segment that is sent again has another IP identification, and over IPv6, at least another
// timestamp, unless it is sent again at once.
func (h *half) duplicate(p *Packet) bool {
	window := second
	if p.IPID == 0 {
		if p.Payload == 0 {
			return false // acknowledgements repeat themselves
		}
		window = 2 * millisecond
	}
	sum := p.fingerprint()
	for i := range h.prints {
		if f := &h.prints[i]; f.sum == sum && p.Time-f.at < window {
			return true
		}
	}
	h.prints[h.printAt&3] = fingerprint{sum, p.Time}
	h.printAt++
	return false
}

func (p *Packet) fingerprint() uint64 {
	const multiplier = 0x9e3779b97f4a7c15
	x := uint64(p.Seq)<<32 | uint64(p.Ack)
	x = (x ^ x>>29) * multiplier
	x ^= uint64(p.IPID)<<48 | uint64(p.Window)<<32 | uint64(p.Flags)<<20 | uint64(p.Payload)
	x = (x ^ x>>32) * multiplier
	x ^= p.DSS.Sequence + p.DSS.Ack
	if p.HasStamps {
		x ^= uint64(p.Value)<<32 | uint64(p.Echo)
	}
	return (x ^ x>>29) * multiplier
}

// acknowledge handles a segment's acknowledgement of the other direction.
func (s *subflow) acknowledge(p *Packet, h, peer *half) {
	scale := uint8(0)
	// The window is scaled if both SYNs had the option (RFC 7323, 2.2).
	if h.scale != packet.NoScale && peer.scale != packet.NoScale {
		scale = min(h.scale, 14)
	}
	h.window = uint32(p.Window) << scale
	if p.HasSACK {
		peer.lost = p.Time
	}
	if !peer.ackKnown {
		peer.ackKnown, peer.acked, peer.ackTime = true, p.Ack, p.Time
		return
	}
	if !before(peer.acked, p.Ack) {
		return
	}
	if peer.started && before(peer.next, p.Ack) {
		// The capture lacks it, or has it later.
		if peer.packets > 0 && p.Ack-peer.next > 1 {
			s.c.anomaly.lostByCapture++
		}
		peer.holes.add(hole{peer.next, p.Ack, p.Time, true})
		peer.next, peer.pendingLen = p.Ack, 0
	}
	peer.acked, peer.ackTime = p.Ack, p.Time
	for peer.pendingLen > 0 {
		oldest := peer.pending[peer.pendingAt&7]
		if before(p.Ack, oldest.end) {
			return
		}
		peer.pendingAt++
		peer.pendingLen--
		// Of several that are acknowledged together, the last one's arrival caused that.
		last := peer.pendingLen == 0 || before(p.Ack, peer.pending[peer.pendingAt&7].end)
		if last && p.Time >= oldest.at {
			peer.sample(p.Time, p.Time-oldest.at)
			if trace := s.c.trace; trace != nil {
				trace.roundTrip(p.Time, s, peer == &s.half[Server], p.Time-oldest.at)
			}
		}
	}
}

// sample takes a round trip.
func (h *half) sample(at, rtt int64) {
	h.rtt.add(rtt)
	if h.rttOverTime == nil {
		h.rttOverTime = newOverTime(at)
	}
	h.rttOverTime.add(at, rtt)
}

// arrival classifies a segment by the relation of its bytes to those seen before on the subflow.
type arrival uint8

const (
	fresh    arrival = iota
	again            // it was seen before
	belated          // it fills a hole
	unneeded         // not even a byte of data, such as a keep-alive probe's
)

// receive takes the sequence numbers of a segment with data.
func (h *half) receive(p *Packet) arrival {
	end := p.Seq + p.Payload
	if p.Seq == h.next {
		h.next = end
		h.time(end, p.Time)
		return fresh
	}
	if before(h.next, p.Seq) {
		h.holes.add(hole{h.next, p.Seq, p.Time, false})
		h.next = end
		h.time(end, p.Time)
		return fresh
	}
	if h.ackKnown && p.Payload == 1 && p.Seq+1 == h.next && !before(h.acked, h.next) {
		return unneeded
	}
	// The segment begins with known data, so its round trip would be ambiguous (Karn).
	h.pendingLen = 0
	filled, isFilled := h.holes.fill(p.Seq, end)
	if before(h.next, end) {
		h.next = end
	}
	if isFilled {
		// A segment that comes soon after the hole was overtaken on the way. A later one was sent again. If the data
		// was acknowledged already, the segment was overtaken in the capture.
		if late := p.Time - filled.at; late < h.disorder() || filled.acked && late < second {
			h.found = h.found || filled.acked
			h.disordered++
			return belated
		}
		h.repeated++
		h.retransmitted += uint64(p.Payload)
		h.lost = p.Time
		h.lastRe = p.Time
		return belated
	}
	h.repeated++
	h.retransmitted += uint64(p.Payload)
	h.lost = p.Time
	h.lastRe = p.Time
	return again
}

// disorder returns the delay, in nanoseconds, below which a segment that fills a hole counts as overtaken on the way. A
// later one counts as a retransmission, which takes at least one round trip.
func (h *half) disorder() int64 {
	if h.rtt.Count > 0 && h.rtt.Min > 0 {
		return min(max(h.rtt.Min*3/4, millisecond/2), 100*millisecond)
	}
	return 3 * millisecond
}

func (h *half) time(end uint32, at int64) {
	if h.pendingLen < 8 {
		h.pending[(h.pendingAt+h.pendingLen)&7] = sample{end, at}
		h.pendingLen++
	}
}

// holes are the gaps in a direction's sequence numbers that may still be filled.
type holes struct {
	n    int
	list [4]hole
}

type hole struct {
	from, to uint32
	at       int64
	acked    bool // an acknowledgement made it
}

func (s *holes) add(made hole) {
	if s.n == len(s.list) {
		copy(s.list[:], s.list[1:])
		s.n--
	}
	s.list[s.n] = made
	s.n++
}

// fill returns the hole that a segment has bytes of.
func (s *holes) fill(from, to uint32) (filled hole, ok bool) {
	for i := 0; i < s.n; i++ {
		g := s.list[i]
		if !before(from, g.to) || !before(g.from, to) {
			continue
		}
		copy(s.list[i:], s.list[i+1:s.n])
		s.n--
		if before(to, g.to) {
			s.insert(i, hole{to, g.to, g.at, g.acked})
		}
		if before(g.from, from) {
			s.insert(i, hole{g.from, from, g.at, g.acked})
		}
		return g, true
	}
	return hole{}, false
}

func (s *holes) insert(at int, g hole) {
	if s.n == len(s.list) {
		return
	}
	copy(s.list[at+1:s.n+1], s.list[at:s.n])
	s.list[at] = g
	s.n++
}

// ends notes FIN or RST.
func (t *Tracker) ends(s *subflow, p *Packet, from Side) {
	if p.Flags.Has(packet.RST) {
		if s.end != reset {
			s.end, s.endTime, s.endBy = reset, p.Time, from
			s.refused = !s.up
		}
	} else {
		h := &s.half[from]
		if end := p.Seq + p.Payload + 1; before(h.next, end) {
			h.next = end
		}
		h.fin = true
		if s.end == open {
			s.end, s.endTime, s.endBy = finished, p.Time, from
		}
	}
	t.mayClose(s.c)
}

// done reports whether all subflows have ended.
func (c *connection) done() bool {
	for _, s := range c.subflows {
		if !s.closed() {
			return false
		}
	}
	return true
}

// closed reports whether the subflow was reset, or has FINs of both sides.
func (s *subflow) closed() bool { return s.end == reset || s.half[Client].fin && s.half[Server].fin }

// mayClose ends a connection soon if all of its subflows have ended: at once would lose its last acknowledgements.
func (t *Tracker) mayClose(c *connection) {
	if c.closing || !c.done() {
		return
	}
	// Without DATA_FIN or FASTCLOSE the connection may live on without subflows (RFC 8684, 3.4), as when its network
	// was lost. Then it ends when it is idle for long enough.
	said := c.fastClose || c.streams[Client].finSeen && c.streams[Server].finSeen
	only := c.subflows[0]
	over := len(c.subflows) == 1 && (only.end != reset || !only.up)
	if !said && !c.fallback.plain() && !over {
		return
	}
	c.closing, c.reopened = true, false
	t.closed.push(c, c.active+linger)
}
