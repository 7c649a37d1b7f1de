package track

import (
	"github.com/detour-collective/dcol/internal/packet"
)

// open makes the subflow of a packet that is the first of its flow, and finds its connection.
func (t *Tracker) open(p *Packet) *subflow {
	for int(p.Slot) >= len(t.flows) {
		t.flows = append(t.flows, nil)
	}
	s := &subflow{slot: p.Slot, reason: -1, otherIndex: -1}
	s.half[Client].scale, s.half[Server].scale = packet.NoScale, packet.NoScale
	t.flows[p.Slot] = s

	// Who is the client of this TCP connection? For a join by the server, that is the connection's server.
	fromOpener := true
	switch {
	case p.Flags.Has(packet.SYN | packet.ACK):
		fromOpener = false
	case p.Flags.Has(packet.SYN):
	default:
		fromOpener = p.SrcPort > p.DstPort // servers' ports are lower, mostly
	}
	opener := endpoint{p.Src, p.SrcPort}
	acceptor := endpoint{p.Dst, p.DstPort}
	if !fromOpener {
		opener, acceptor = acceptor, opener
	}
	joined := t.joined(s, p)
	if joined == nil && !p.Flags.Has(packet.SYN) {
		joined = t.adopter(p, fromOpener)
	}
	if joined == nil {
		joined = &connection{number: p.Number, first: p.Time, last: p.Time}
		joined.midway = !p.Flags.Has(packet.SYN) || s.join
		for side := range joined.streams {
			joined.streams[side].lastSubflow = -1
		}
		if t.options.Trace != 0 && t.options.Trace == p.Number {
			joined.trace = new(Trace)
		}
		if joined.midway {
			t.orphans[joined] = struct{}{}
		}
		t.live++
		t.watch(joined, p.Clock)
		if s.join {
			joined.anomaly.unknownToken++
			t.register(joined, s.tokenOfJoin(p))
		}
	}
	c := joined
	s.c, s.index = c, len(c.subflows)
	c.subflows = append(c.subflows, s)
	client, server := opener, acceptor
	if s.opener == Server {
		client, server = acceptor, opener
	}
	s.address, s.port = [2][16]byte{client.address, server.address}, [2]uint16{client.port, server.port}
	s.clientLow = p.Low == (endpoint{p.Src, p.SrcPort} == client)
	return s
}

type endpoint struct {
	address [16]byte
	port    uint16
}

func (s *subflow) tokenOfJoin(p *Packet) uint32 {
	for rest := p.Others[:p.OthersLen]; len(rest) > 0; {
		var o packet.Option
		o, rest = p.Other(rest)
		if m, err := o.MPTCP(); err == nil {
			if j, ok := m.(packet.JoinSYN); ok {
				return j.Token
			}
		}
	}
	return 0
}

// joined finds the connection of a SYN with MP_JOIN by its token, and who opened the subflow.
func (t *Tracker) joined(s *subflow, p *Packet) *connection {
	if !p.Flags.Has(packet.SYN) || !hasSubtype(p, packet.SubtypeJoin) {
		return nil
	}
	s.join = true
	if p.Flags.Has(packet.ACK) {
		return nil // its SYN is missing: no token
	}
	c := t.tokens[s.tokenOfJoin(p)]
	if c == nil {
		return nil
	}
	// The token is the receiver's. A join by the server has the client's.
	if c.keyKnown[Client] && c.key[Client].Token(c.version) == s.tokenOfJoin(p) {
		s.opener = Server
	}
	return c
}

func hasSubtype(p *Packet, want packet.Subtype) bool {
	for rest := p.Others[:p.OthersLen]; len(rest) > 0; {
		var o packet.Option
		o, rest = p.Other(rest)
		if got, ok := o.Subtype(); ok && got == want {
			return true
		}
	}
	return false
}

// near bounds the distance between the data sequence numbers of one connection's subflows, in bytes.
const near = 1 << 30

// adopter finds the connection of a flow that began before the capture: one of those that did so, too, shares
// an address, and has data sequence numbers of 8 bytes close by. Two connections that are not the same have such
// numbers with a probability of 2^-33.
func (t *Tracker) adopter(p *Packet, fromOpener bool) *connection {
	d := &p.DSS
	if !p.HasDSS {
		return nil
	}
	from, to := Client, Server
	if !fromOpener {
		from, to = to, from
	}
	for c := range t.orphans {
		fits := false
		if d.Flags&packet.DSSMap != 0 && d.Flags&packet.DSSMap8 != 0 {
			fits = c.streams[from].isNear(d.Sequence)
		}
		if d.Flags&packet.DSSAck != 0 && d.Flags&packet.DSSAck8 != 0 {
			fits = fits || c.streams[to].isNear(d.Ack)
		}
		if fits {
			return c
		}
	}
	return nil
}

func (s *stream) isNear(number uint64) bool {
	at := s.high
	if !s.known {
		if !s.ackKnown {
			return false
		}
		at = s.ack
	}
	return number-at+near < 2*near
}

// register makes a token lead to a connection.
func (t *Tracker) register(c *connection, token uint32) {
	t.tokens[token] = c
	c.tokens = append(c.tokens, token)
}
