package trace

import (
	"bytes"
	"math/bits"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace/compare"
)

// sentProbe is a packet that was sent.
type sentProbe struct {
	distance int
	at       time.Time
	packet   *packet.Packet
	sent     *compare.Sent
}

// matcher keeps the sent probes, and finds the probe to which a packet belongs.
type matcher struct {
	probes []*sentProbe
	// byID is set if IP identifications tell probes apart, and bySequence if TCP's sequence numbers do.
	byID, bySequence bool
	// distinct is set if answers of the destination show which probe they answer.
	distinct bool
}

// kind classifies an arrived packet.
type kind int

const (
	foreign kind = iota // none of ours
	stray               // about our flow, but none of the probes
	quoting             // an ICMP error about a probe
	answer              // from the destination
)

// match returns the kind of a packet, and the probe to which it belongs. If all probes look alike to the destination,
// an answer belongs to the last one.
func (m *matcher) match(p *packet.Packet) (kind, *sentProbe, packet.Quote) {
	if len(m.probes) == 0 {
		return foreign, nil, packet.Quote{}
	}
	quote, err := p.Quote()
	if err != nil {
		probe, ok := m.answered(p)
		if !ok {
			return foreign, nil, packet.Quote{}
		}
		return answer, probe, packet.Quote{}
	}
	q, _ := packet.ParseQuote(quote.Bytes)
	if q == nil {
		return foreign, nil, packet.Quote{}
	}
	best, bestScore, twice := (*sentProbe)(nil), 0, false
	for _, probe := range m.probes {
		score := m.likeness(probe.packet, q)
		switch {
		case score > bestScore:
			best, bestScore, twice = probe, score, false
		case score == bestScore && best != nil && probe.distance != best.distance:
			twice = true
		}
	}
	switch {
	case bestScore == 0:
		return foreign, nil, quote
	case twice || bestScore < enough:
		return stray, nil, quote
	}
	return quoting, best, quote
}

// These are the points for the fields that a quote shares with a probe. A quote must have the probe's own
// mark, and enough of its flow that nobody who has not seen the probe could guess it. A middlebox may have
// changed a part of the flow.
const (
	ownMark  = 10 // a field that differs between probes: identification, sequence number
	flowPart = 1
	enough   = ownMark + 2*flowPart
	ourFlow  = 3 * flowPart
	notAlike = 0
)

// likeness returns the points for the fields that a quote shares with a probe.
func (m *matcher) likeness(p, q *packet.Packet) int {
	if q.Protocol() != p.Protocol() || (p.V4 == nil) != (q.V4 == nil) {
		return notAlike
	}
	flow, marks := 0, 0
	add := func(equal bool, points *int, value int) {
		if equal {
			*points += value
		}
	}
	add(q.Dst() == p.Dst(), &flow, flowPart)
	if m.byID {
		add(q.V4.ID == p.V4.ID || q.V4.ID == bits.ReverseBytes16(p.V4.ID), &marks, ownMark)
	}
	switch {
	case p.TCP != nil && q.TCP != nil:
		add(q.TCP.SrcPort == p.TCP.SrcPort, &flow, flowPart)
		add(q.TCP.DstPort == p.TCP.DstPort, &flow, flowPart)
		if q.Cut == 0 || q.Cut >= 8 {
			same := q.TCP.Seq == p.TCP.Seq
			add(same, &flow, flowPart)
			own := same && m.bySequence || q.Cut == 0 && q.TCP.Window == p.TCP.Window
			add(!m.byID && own, &marks, ownMark)
		}
	case p.UDP != nil && q.UDP != nil:
		add(q.UDP.SrcPort == p.UDP.SrcPort, &flow, flowPart)
		add(q.UDP.DstPort == p.UDP.DstPort, &flow, flowPart)
		own := (q.Cut == 0 || q.Cut >= 8) && q.UDP.Checksum == p.UDP.Checksum ||
			len(q.Payload) >= markSize && bytes.HasPrefix(p.Payload, q.Payload[:markSize])
		add(!m.byID && own, &marks, ownMark)
	case p.ICMP != nil && q.ICMP != nil:
		add(q.ICMP.Data[0] == p.ICMP.Data[0] && q.ICMP.Data[1] == p.ICMP.Data[1], &flow, 2*flowPart)
		add(q.ICMP.Data == p.ICMP.Data, &marks, ownMark)
	default:
		add(p.TCP == nil && p.UDP == nil && p.ICMP == nil, &flow, 2*flowPart)
	}
	if marks == 0 && flow < ourFlow {
		return notAlike
	}
	if marks > 0 && flow < 2*flowPart {
		return notAlike // an identification alone is often the same by chance
	}
	return marks + flow
}

// answered returns the probe that a packet answers.
func (m *matcher) answered(p *packet.Packet) (*sentProbe, bool) {
	last := m.probes[len(m.probes)-1]
	if p.Src() != last.packet.Dst() || p.Dst() != last.packet.Src() {
		return nil, false
	}
	for i := len(m.probes) - 1; i >= 0; i-- {
		probe := m.probes[i].packet
		switch {
		case p.TCP != nil && probe.TCP != nil:
			if p.TCP.SrcPort != probe.TCP.DstPort || p.TCP.DstPort != probe.TCP.SrcPort {
				continue
			}
			if m.distinct && probe.TCP.Flags.Has(packet.SYN) && !probe.TCP.Flags.Has(packet.ACK) && p.TCP.Ack != probe.TCP.Seq+1+uint32(len(probe.Payload)) &&
				p.TCP.Ack != probe.TCP.Seq+1 {
				continue
			}
			if p.TCP.Flags.Has(packet.SYN) && !probe.TCP.Flags.Has(packet.SYN) {
				return nil, false // a server repeats its SYN+ACK; that is no answer to data
			}
			return m.probes[i], true
		case p.UDP != nil && probe.UDP != nil:
			if p.UDP.SrcPort == probe.UDP.DstPort && p.UDP.DstPort == probe.UDP.SrcPort {
				return m.probes[i], true
			}
		case p.ICMP != nil && probe.ICMP != nil:
			if echoReply(p) && p.ICMP.Data == probe.ICMP.Data {
				return m.probes[i], true
			}
		}
	}
	return nil, false
}

// echoReply reports whether a packet answers a ping.
func echoReply(p *packet.Packet) bool {
	if p.V4 != nil {
		return p.ICMP.Type == EchoReply
	}
	return p.ICMP.Type == V6EchoReply
}

// Types of ICMP messages that are no errors (RFC 792, RFC 4443).
const (
	EchoReply     = 0
	EchoRequest   = 8
	V6EchoRequest = 128
	V6EchoReply   = 129
)

// exceeded reports whether an ICMP error was sent because the time to live had ended.
func exceeded(p *packet.Packet) bool {
	if p.V4 != nil {
		return p.ICMP.Type == packet.TimeExceeded && p.ICMP.Code == 0
	}
	return p.ICMP.Type == packet.V6TimeExceeded && p.ICMP.Code == 0
}

// quotedBy makes the result's quote of an ICMP error.
func (s *sentProbe) quotedBy(p *packet.Packet, q packet.Quote, now time.Time) (Quote, error) {
	c, err := s.sent.Quote(q.Bytes)
	if err != nil {
		return Quote{}, err
	}
	result := Quote{
		From: p.Src(), RTT: now.Sub(s.at), Exceeded: exceeded(p), Type: p.ICMP.Type, Code: p.ICMP.Code, Comparison: c,
	}
	for _, o := range q.Objects {
		if labels, ok := o.Labels(); ok {
			result.Labels = append(result.Labels, labels...)
		}
	}
	return result, nil
}

// sameAddr reports whether a is b, as IPv4 or as IPv4-mapped IPv6 addresses.
func sameAddr(a, b netip.Addr) bool { return a.Unmap() == b.Unmap() }
