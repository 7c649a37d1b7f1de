package chain

import (
	"bytes"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
)

// Multipath answers as a server with Linux's MPTCP and SACK does, as far as recipes look: its SYN+ACK has MP_CAPABLE
// with a key, it acknowledges data behind a hole by a SACK block, and data of MPTCP by a data acknowledgement. It accepts
// joins, and answers a request by data. Ports are those where it listens. It answers pings.
func Multipath(ports ...uint16) Server {
	s := &multipath{ports: ports, flows: map[netip.AddrPort]*connection{}, half: map[netip.AddrPort]time.Duration{}}
	return s.answer
}

type multipath struct {
	ports []uint16
	flows map[netip.AddrPort]*connection
	half  map[netip.AddrPort]time.Duration
	// client is the key of the connection of MPTCP that is alive, from its data on; 0: none.
	client packet.Key
}

type connection struct {
	next uint32 // byte that is expected
}

const (
	serverKey = packet.Key(0x1122334455667788)
	serverSeq = 7_000_000
)

func (s *multipath) answer(p *packet.Packet, now time.Duration) []*packet.Packet {
	if p.ICMP != nil {
		return pong(p)
	}
	if p.TCP == nil {
		return nil
	}
	if !slices.Contains(s.ports, p.TCP.DstPort) {
		if !p.TCP.Flags.Has(packet.SYN) {
			return nil
		}
		return reply(p, packet.TCP{Ack: p.TCP.Seq + 1, Flags: packet.RST | packet.ACK})
	}
	const again = 500 * time.Millisecond
	from := p.From()
	switch {
	case p.TCP.Flags.Has(packet.RST):
		delete(s.flows, from)
		delete(s.half, from)
		s.client = 0
		return nil
	case p.TCP.Flags.Has(packet.SYN):
		if last, known := s.half[from]; known && now-last < again {
			return nil
		}
		if o, join := subtype(p.TCP, packet.SubtypeJoin); join {
			if m, err := o.MPTCP(); err == nil && s.client != 0 && m.(packet.JoinSYN).Token == serverKey.Token(1) {
				return reply(p, s.acceptJoin(p, m.(packet.JoinSYN)))
			}
			return reply(p, packet.TCP{Ack: p.TCP.Seq + 1, Flags: packet.RST | packet.ACK})
		}
		s.half[from] = now
		s.flows[from] = &connection{next: p.TCP.Seq + 1}
		return reply(p, packet.TCP{Seq: serverSeq, Ack: p.TCP.Seq + 1, Flags: packet.SYN | packet.ACK, Options: s.greeting(p.TCP)})
	}
	c := s.flows[from]
	if c == nil || len(p.Payload) == 0 {
		return nil
	}
	h := packet.TCP{Seq: serverSeq + 1, Flags: packet.ACK}
	switch {
	case p.TCP.Seq == c.next:
		c.next += uint32(len(p.Payload))
	case int32(p.TCP.Seq-c.next) > 0:
		h.Options = []packet.Option{packet.NOP, packet.NOP, packet.SACK(packet.Block{Left: p.TCP.Seq, Right: p.TCP.Seq + uint32(len(p.Payload))})}
	}
	h.Ack = c.next
	data, ok := s.dataOf(p.TCP)
	if !ok {
		return reply(p, h)
	}
	ack := packet.DSS{Flags: packet.DSSAck, Ack: uint64(uint32(data.Sequence) + uint32(len(p.Payload)))}
	answer := h
	h.Options = append(h.Options, ack.Option())
	answers := reply(p, h)
	if bytes.HasSuffix(p.Payload, []byte("\r\n\r\n")) || string(p.Payload) == "\r\n" {
		ack.Flags |= packet.DSSMap | packet.DSSMap8
		ack.Sequence, ack.Subflow, ack.Length = serverKey.InitialSequence(1)+1, 1, uint16(len(document))
		answer.Flags |= packet.PSH
		answer.Options = []packet.Option{ack.Option()}
		answers = append(answers, replyWith(p, answer, document)...)
	}
	return answers
}

// document is the answer to a request.
const document = "HTTP/1.0 200 OK\r\n\r\nhello"

// dataOf returns the mapping of data of MPTCP.
func (s *multipath) dataOf(h *packet.TCP) (packet.DSS, bool) {
	if o, ok := subtype(h, packet.SubtypeCapable); ok {
		if m, err := o.MPTCP(); err == nil {
			s.client = m.(packet.Capable).Sender
			return packet.DSS{Sequence: s.client.InitialSequence(1) + 1}, true
		}
	}
	o, _ := subtype(h, packet.SubtypeDSS)
	return o.DSS()
}

// acceptJoin makes the SYN+ACK of a second subflow.
func (s *multipath) acceptJoin(p *packet.Packet, join packet.JoinSYN) packet.TCP {
	const nonce = 0x55667788
	accept := packet.JoinSYNACK{AddressID: 0, Nonce: nonce, HMAC: [8]byte(packet.JoinHMAC(1, serverKey, s.client, nonce, join.Nonce))}
	return packet.TCP{Seq: serverSeq, Ack: p.TCP.Seq + 1, Flags: packet.SYN | packet.ACK, Options: []packet.Option{packet.MSS(1460), accept.Option()}}
}

// greeting are the options of a SYN+ACK.
func (s *multipath) greeting(syn *packet.TCP) (options []packet.Option) {
	options = append(options, packet.MSS(1460))
	if _, ok := syn.Option(packet.KindSACKPermitted); ok {
		options = append(options, packet.SACKPermitted)
	}
	if _, ok := subtype(syn, packet.SubtypeCapable); ok {
		options = append(options, packet.Capable{Version: 1, Flags: packet.CapableHMAC, Keys: 1, Sender: serverKey}.Option())
	}
	return options
}

func subtype(h *packet.TCP, want packet.Subtype) (packet.Option, bool) {
	for _, o := range h.Options {
		if sub, ok := o.Subtype(); ok && sub == want {
			return o, true
		}
	}
	return packet.Option{}, false
}

func reply(p *packet.Packet, h packet.TCP) []*packet.Packet { return replyWith(p, h, "") }

func replyWith(p *packet.Packet, h packet.TCP, payload string) []*packet.Packet {
	h.Window = 65535
	return []*packet.Packet{packet.Segment(p.To(), p.From(), h, []byte(payload))}
}

func pong(p *packet.Packet) []*packet.Packet {
	h := *p.ICMP
	r := &packet.Packet{ICMP: &h, Payload: p.Payload}
	if p.V4 != nil {
		h.Type = 0
		r.V4 = &packet.IPv4{TTL: 64, Src: p.Dst(), Dst: p.Src()}
	} else {
		const echoReply = 129
		h.Type = echoReply
		r.V6 = &packet.IPv6{HopLimit: 64, Src: p.Dst(), Dst: p.Src()}
	}
	return []*packet.Packet{r}
}
