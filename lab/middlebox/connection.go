package middlebox

import (
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/packet"
)

// translate gives connections another source port. The address stays: the host's own may not be reachable from
// everywhere in a lab. A box that reverts quotes gives them the old port back, but leaves the checksum in the
// quote as some real NATs do.
func translate(b *Box, p *packet.Packet, r *result, reverts bool) {
	if q, err := p.Quote(); err == nil {
		if reverts {
			revert(b, p, q, r)
		}
		return
	}
	if p.TCP == nil && p.UDP == nil || slices.Contains(b.own, p.Src()) {
		return
	}
	// From outside, the connection is known by the new port.
	if m := b.state.flows[flow{from: p.To(), to: p.From()}]; m != nil {
		setPort(p, false, m.port)
		r.change()
		return
	}
	m, _ := b.state.of(p)
	inside := p.From().Port()
	outsideFlow := flow{netip.AddrPortFrom(p.Src(), m.port), p.To()}
	if b.state.flows[outsideFlow] == nil {
		b.state.flows[outsideFlow] = &memory{port: inside}
	}
	setPort(p, true, m.port)
	r.change()
}

// setPort sets the source port, or the destination's.
func setPort(p *packet.Packet, source bool, port uint16) {
	var src, dst *uint16
	switch {
	case p.TCP != nil:
		src, dst = &p.TCP.SrcPort, &p.TCP.DstPort
	case p.UDP != nil:
		src, dst = &p.UDP.SrcPort, &p.UDP.DstPort
	default:
		return
	}
	if source {
		*src = port
	} else {
		*dst = port
	}
}

// revert changes the quoted packet's port back.
func revert(b *Box, p *packet.Packet, q packet.Quote, r *result) {
	quoted, err := packet.ParseQuote(slices.Clone(q.Bytes))
	if quoted == nil || err != nil || slices.Contains(b.own, p.Src()) {
		return
	}
	m := b.state.flows[flow{quoted.From(), quoted.To()}]
	if m == nil {
		return
	}
	setPort(quoted, true, m.port)
	at := len(q.Bytes) - len(quoted.Bytes())
	if at != 0 {
		return
	}
	copy(p.Payload, quoted.Bytes()) // the quote is the beginning of the payload
	r.change()
}

// proxy accepts connections to port 80 itself, and acknowledges their data.
func proxy(b *Box, p *packet.Packet, r *result) {
	const http = 80
	if p.TCP == nil || p.TCP.DstPort != http || p.TCP.Flags.Has(packet.RST) {
		return
	}
	r.drop()
	m, _ := b.state.of(p)
	h := packet.TCP{Seq: m.seq, Ack: p.TCP.Seq + uint32(len(p.Payload)), Flags: packet.ACK, Window: 65535}
	switch {
	case inSYNs(p):
		h.Flags |= packet.SYN
		h.Ack++
		h.Options = []packet.Option{packet.MSS(1460)}
	case p.TCP.Flags.Has(packet.FIN):
		h.Seq++
		h.Ack++
		h.Flags |= packet.FIN
	case len(p.Payload) > 0:
		h.Seq++
	default:
		return
	}
	r.answer(packet.Segment(p.To(), p.From(), h, nil))
}

// refuse resets every connection in the server's name.
func refuse(_ *Box, p *packet.Packet, r *result) {
	if p.TCP == nil || !inSYNs(p) || p.TCP.Flags.Has(packet.ACK) {
		return
	}
	r.drop()
	r.answer(packet.Segment(p.To(), p.From(), packet.TCP{Ack: p.TCP.Seq + 1, Flags: packet.RST | packet.ACK}, nil))
}

// echoOptions adds the unknown options of a SYN to the SYN+ACK, as some servers and load balancers do
// (thesis, 3.5.1).
func echoOptions(b *Box, p *packet.Packet, r *result) {
	if p.TCP == nil || !inSYNs(p) {
		return
	}
	m, forward := b.state.of(p)
	if forward {
		m.options = nil
		for _, o := range p.TCP.Options {
			if isUnknown(o) {
				o.Data = slices.Clone(o.Data)
				m.options = append(m.options, o)
			}
		}
		return
	}
	if len(m.options) == 0 {
		return
	}
	own := remove(p.TCP.Options, func(o packet.Option) bool { return isUnknown(o) || o.Kind == packet.KindEnd })
	p.TCP.Options = slices.Concat(own, m.options)
	p.TCP.Rest = nil // the padding behind the end
	r.change()
}
