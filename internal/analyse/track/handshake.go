package track

import (
	"github.com/detour-collective/dcol/internal/packet"
)

// handshake handles a segment with SYN.
func (s *subflow) handshake(p *Packet, from Side) {
	h := &s.half[from]
	if p.Flags.Has(packet.ACK) {
		if s.synAck != 0 {
			s.synRepeats = true
		} else {
			s.synAck = p.Time
		}
	} else if s.syn != 0 {
		s.synRepeats = true
	} else {
		s.syn = p.Time
	}
	h.isn, h.isnKnown = p.Seq, true
	if !h.started {
		h.started, h.next = true, p.Seq+1
	}
	h.scale = p.Scale
	if from == s.acceptor() && !h.ackKnown && s.half[from.other()].isnKnown {
		h.ackKnown, h.acked = true, p.Seq
	}
	c := s.c
	if s.index == 0 && !s.join {
		capable := hasSubtype(p, packet.SubtypeCapable)
		switch {
		case p.Flags.Has(packet.ACK):
			c.fallback.synAck = true
			c.fallback.synAckCapable = c.fallback.synAckCapable || capable || p.Cut
		case capable:
			c.fallback.syn = true
		default:
			c.fallback.plainSYN = c.fallback.plainSYN || !p.Cut
		}
	}
}

func (s *subflow) acceptor() Side { return s.opener.other() }

// established notes the third ACK.
func (s *subflow) established(p *Packet, from Side) {
	if s.up || s.refused || from != s.opener || p.Flags&(packet.SYN|packet.RST) != 0 {
		return
	}
	if s.synAck == 0 && s.syn != 0 {
		return // no SYN+ACK was seen; its absence is a capture's of one direction, if data follows
	}
	s.ack, s.up = p.Time, true
}

// handshakeTime returns the time from SYN to SYN+ACK and from there to the ACK.
func (s *subflow) handshakeTime(of Side) (int64, bool) {
	if s.synRepeats || s.syn == 0 || s.synAck == 0 {
		return 0, false
	}
	if of == s.opener {
		return max(0, s.synAck-s.syn), true
	}
	return max(0, s.ack-s.synAck), s.ack != 0
}

// capable handles MP_CAPABLE.
func (t *Tracker) capable(s *subflow, p *Packet, from Side, m packet.Capable) {
	c := s.c
	if s.join {
		c.anomaly.badOption++
		return
	}
	if !c.versionSet || p.Flags.Has(packet.ACK) {
		c.version, c.versionSet = m.Version, true // the SYN+ACK's counts
	}
	c.checksums = c.checksums || m.Flags&packet.CapableChecksum != 0
	if m.Keys > 0 {
		t.learnKey(c, from, m.Sender)
	}
	if m.Keys > 1 {
		t.learnKey(c, from.other(), m.Receiver)
	}
	if m.HasLength && p.Payload > 0 && c.keyKnown[from] {
		// The first data's mapping follows from the key (RFC 8684, 3.1).
		s.half[from].mapTo(mapping{dsn: c.key[from].InitialSequence(c.version) + 1, ssn: 1, length: uint32(m.Length)})
	}
}

func (t *Tracker) learnKey(c *connection, of Side, key packet.Key) {
	if c.keyKnown[of] {
		if c.key[of] != key {
			c.anomaly.conflict++
		}
		return
	}
	c.key[of], c.keyKnown[of] = key, true
	if !c.versionSet {
		return
	}
	t.register(c, key.Token(c.version))
	c.streams[of].begin(key.InitialSequence(c.version) + 1)
}

// joinSYN handles MP_JOIN in a SYN.
func (s *subflow) joinSYN(from Side, m packet.JoinSYN) {
	s.nonce[from], s.addressID[from], s.idKnown[from] = m.Nonce, m.AddressID, true
	s.backup = s.backup || m.Flags&packet.Backup != 0
}

func (s *subflow) joinSYNACK(from Side, m packet.JoinSYNACK) {
	s.nonce[from], s.addressID[from], s.idKnown[from] = m.Nonce, m.AddressID, true
	s.backup = s.backup || m.Flags&packet.Backup != 0
	c := s.c
	if !c.keyKnown[Client] || !c.keyKnown[Server] || s.syn == 0 {
		return
	}
	to := from.other()
	sum := packet.JoinHMAC(c.version, c.key[from], c.key[to], m.Nonce, s.nonce[to])
	s.judge(from, [8]byte(sum) == m.HMAC)
}

func (s *subflow) joinACK(from Side, m packet.JoinACK) {
	c := s.c
	if !c.keyKnown[Client] || !c.keyKnown[Server] || s.syn == 0 || s.synAck == 0 {
		return
	}
	to := from.other()
	sum := packet.JoinHMAC(c.version, c.key[from], c.key[to], s.nonce[from], s.nonce[to])
	s.judge(from, [20]byte(sum) == m.HMAC)
}

func (s *subflow) judge(from Side, fits bool) {
	switch {
	case fits:
		s.verified[from] = right
	case s.verified[from] != wrong:
		s.verified[from] = wrong
		s.c.anomaly.wrongHMAC++
	}
}
