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
		joined = t.adopted(s, p, fromOpener)
	}
	if joined == nil {
		joined = t.begin(s, p)
	}
	c := joined
	s.c, s.index = c, len(c.subflows)
	c.subflows = append(c.subflows, s)
	t.subflows++
	client, server := opener, acceptor
	if s.opener == Server {
		client, server = acceptor, opener
	}
	s.address, s.port = [2][16]byte{client.address, server.address}, [2]uint16{client.port, server.port}
	s.clientLow = p.Low == (endpoint{p.Src, p.SrcPort} == client)
	return s
}

// begin makes the connection of a subflow that belongs to none that is known.
func (t *Tracker) begin(s *subflow, p *Packet) *connection {
	c := &connection{number: p.Number, first: p.Time, last: p.Time}
	c.midway = !p.Flags.Has(packet.SYN) || s.join
	for side := range c.streams {
		c.streams[side].lastSubflow = -1
	}
	if t.options.Trace != 0 && t.options.Trace == p.Number {
		c.trace = new(Trace)
	}
	t.live++
	t.watch(c, p.Clock)
	if s.join {
		c.joining = true
		c.anomaly.unknownToken++
		t.register(c, s.tokenOfJoin(p))
	}
	return c
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
	token := s.tokenOfJoin(p)
	c := t.tokens[token]
	if c == nil {
		return nil
	}
	// The token is the receiver's. A join by the server has the client's.
	if c.clientToken != nil && *c.clientToken == token || c.keyKnown[Client] && c.key[Client].Token(c.version) == token {
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

// register makes a token lead to a connection.
func (t *Tracker) register(c *connection, token uint32) {
	t.tokens[token] = c
	c.tokens = append(c.tokens, token)
}
