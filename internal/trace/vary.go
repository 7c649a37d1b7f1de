package trace

import (
	"encoding/binary"
	"slices"

	"github.com/detour-collective/dcol/internal/packet"
)

// markSize is the size of the part of a payload that differs between probes, in bytes.
const markSize = 2

// prepare returns a copy of a probe with room for a mark that differs between probes. In a datagram or a ping, the mark
// is the beginning of the payload, because load balancers choose a way by ports and by ICMP's checksum.
func prepare(probe *packet.Packet, byID bool) (*packet.Packet, error) {
	p := *probe
	if p.ICMP == nil && (p.UDP == nil || byID) || len(p.Payload) >= markSize {
		return &p, nil
	}
	p.Payload = append(slices.Clone(p.Payload), make([]byte, markSize-len(p.Payload))...)
	if p.UDP != nil {
		h := *p.UDP
		p.UDP = &h
	}
	if p.ICMP != nil {
		h := *p.ICMP
		p.ICMP = &h
	}
	p.V4, p.V6 = copyIP(&p)
	return &p, p.Seal()
}

func copyIP(p *packet.Packet) (*packet.IPv4, *packet.IPv6) {
	if p.V4 != nil {
		h := *p.V4
		return &h, nil
	}
	h := *p.V6
	return nil, &h
}

// vary makes the n-th packet of the trace, for a distance. Packets differ only in a mark that distinguishes their
// quotes, and in nothing by which load balancers choose a way.
func (t *tracer) vary(n, distance int) *packet.Packet {
	p := *t.probe
	p.V4, p.V6 = copyIP(t.probe)
	if p.V4 != nil {
		p.V4.TTL = uint8(distance)
		if !t.options.FixedID {
			p.V4.ID += uint16(n)
			if p.V4.ID == 0 {
				p.V4.ID = uint16(0x8000 + n) // the kernel replaces 0
			}
		}
	} else {
		p.V6.HopLimit = uint8(distance)
	}
	switch {
	case p.TCP != nil:
		p.TCP = t.segment(p.TCP, n)
	case p.ICMP != nil:
		h := *p.ICMP
		sequence := binary.BigEndian.Uint16(h.Data[2:]) + uint16(n)
		p.Payload = balanced(p.Payload, binary.BigEndian.Uint16(h.Data[2:]), sequence)
		binary.BigEndian.PutUint16(h.Data[2:], sequence)
		p.ICMP = &h
	case p.UDP != nil:
		h := *p.UDP
		p.UDP = &h
		if !t.matcher.byID {
			p.Payload = slices.Clone(p.Payload)
			p.Payload[0] ^= uint8(n >> 8)
			p.Payload[1] ^= uint8(n)
		}
	}
	return &p
}

// balanced returns a payload whose beginning compensates for a change of a word before it, so that
// the checksum stays the same.
func balanced(payload []byte, before, after uint16) []byte {
	own := slices.Clone(payload)
	sum := uint32(binary.BigEndian.Uint16(own)) + uint32(before) + uint32(^after)
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(own, uint16(sum))
	return own
}

// segment copies a TCP header for the n-th packet. If nothing else distinguishes probes, a segment that belongs to no
// connection gets its own sequence number. Otherwise SYNs are repetitions of one, which every middlebox knows: some
// drop a second SYN with another number.
func (t *tracer) segment(h *packet.TCP, n int) *packet.TCP {
	own := *h
	if !t.matcher.byID {
		own.Window -= uint16(n) // a mark that is left where the sequence number is changed
	}
	if t.matcher.bySequence || t.apart && opens(h) {
		own.Seq += uint32(n) << 16
	}
	return &own
}

// opens reports whether a segment is the first of a connection.
func opens(h *packet.TCP) bool { return h.Flags.Has(packet.SYN) && !h.Flags.Has(packet.ACK) }
