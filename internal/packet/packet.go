// Package packet decodes and encodes IP packets: IPv4, IPv6, TCP with its options and those of MPTCP (versions 0 and
// 1), UDP, and ICMP errors with the packets that they quote.
//
// Decoding loses nothing: a decoded packet encodes to the same bytes, including unknown and reserved fields. So a quote
// can be compared byte for byte with the packet that was sent.
//
// # Where to find what
//
//	packet.go               Packet, Decoder, Segment
//	ip.go transport.go      headers of IP, TCP and UDP
//	icmp.go                 ICMP errors, their quotes and extensions
//	option.go               TCP options
//	mptcp.go mptcpkey.go    MPTCP options; tokens, HMACs and checksums
//	checksum.go             checksums
//	summary.go              the fields that an analysis of many packets needs, without allocations
//	tshark/                 comparison with tshark
package packet

import (
	"errors"
	"fmt"
	"net/netip"
)

// Protocols that are decoded (IANA, Assigned Internet Protocol Numbers).
const (
	ProtocolICMP   = 1
	ProtocolTCP    = 6
	ProtocolUDP    = 17
	ProtocolICMPv6 = 58
)

// ErrMalformed is wrapped by all errors of decoding.
var ErrMalformed = errors.New("malformed packet")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
}

// Packet is an IP packet. Exactly one of V4 and V6 is set, and at most one of TCP, UDP and ICMP. Payload has the rest.
// For other protocols, and for fragments other than the first, that is everything after the IP headers.
type Packet struct {
	V4   *IPv4
	V6   *IPv6
	TCP  *TCP
	UDP  *UDP
	ICMP *ICMP // also of version 6
	// Payload follows the headers above.
	Payload []byte
	// Trailer has the bytes after the end of the packet by its IP header, such as the padding of Ethernet.
	Trailer []byte

	// Cut is the number of bytes of the fixed header of TCP, UDP or ICMP, if a quote or a capture ends within it. The
	// missing fields are zero. Cut is 0 if the header is whole.
	Cut int
	// Missing is the number of bytes that the packet had, by its IP header, beyond those decoded. Append ignores it.
	Missing int
}

// Decoder decodes packets without an allocation for each.
type Decoder struct {
	p    Packet
	v4   IPv4
	v6   IPv6
	tcp  TCP
	udp  UDP
	icmp ICMP
}

// Parse decodes an IP packet. The result refers to b. If a packet is malformed after its IP header, Parse returns it
// with the error, and the remaining bytes as payload.
func Parse(b []byte) (*Packet, error) { return new(Decoder).Decode(b) }

// ParseQuote is like Parse, but for a packet that an ICMP error quotes. The quote may end anywhere after the IP header.
// The length in that header may be wrong, as some routers change it.
func ParseQuote(b []byte) (*Packet, error) { return new(Decoder).decode(b, true) }

// Decode is like Parse, but the result and the data that it refers to are valid only until the next call.
func (d *Decoder) Decode(b []byte) (*Packet, error) { return d.decode(b, false) }

func (d *Decoder) decode(b []byte, quote bool) (*Packet, error) {
	d.p = Packet{}
	if len(b) == 0 {
		return nil, malformed("it is empty")
	}
	var rest []byte
	var err error
	switch b[0] >> 4 {
	case 4:
		rest, err = d.decodeIPv4(b, quote)
	case 6:
		rest, err = d.decodeIPv6(b)
	default:
		err = malformed("IP version %d", b[0]>>4)
	}
	if err != nil {
		return nil, err
	}
	p := &d.p
	p.Payload = rest
	if p.V6 != nil {
		p.Payload, err = p.V6.decodeExtensions(rest)
		if err != nil && (quote || p.Missing > 0) { // the packet is cut
			return p, nil
		}
		if err != nil {
			return p, err
		}
	}
	offset, more := p.Fragment()
	if offset != 0 {
		return p, nil
	}
	return p, d.decodeTransport(p.Payload, quote || more || p.Missing > 0)
}

// decodeTransport decodes the bytes after the IP headers. mayBeCut says that they may end early.
func (d *Decoder) decodeTransport(b []byte, mayBeCut bool) error {
	var fixed int
	protocol := d.p.Protocol()
	switch {
	case protocol == ProtocolTCP:
		fixed = tcpFixed
	case protocol == ProtocolUDP:
		fixed = udpFixed
	case protocol == ProtocolICMP && d.p.V4 != nil, protocol == ProtocolICMPv6 && d.p.V6 != nil:
		fixed = icmpFixed
	default:
		return nil
	}
	var cut [tcpFixed]byte
	header, rest := b, []byte(nil)
	if len(b) >= fixed {
		rest = b[fixed:]
	} else {
		if !mayBeCut {
			return malformed("%d bytes of protocol %d are no header", len(b), protocol)
		}
		if len(b) == 0 {
			return nil
		}
		copy(cut[:], b)
		header, d.p.Cut = cut[:], len(b)
	}
	switch protocol {
	case ProtocolTCP:
		d.tcp.decodeFixed(header)
		if d.p.Cut == 0 {
			var err error
			if rest, err = d.tcp.decodeOptions(rest, mayBeCut); err != nil {
				return err
			}
		}
		d.p.TCP = &d.tcp
	case ProtocolUDP:
		d.udp.decode(header)
		d.p.UDP = &d.udp
	default:
		d.icmp.decode(header)
		d.p.ICMP = &d.icmp
	}
	d.p.Payload = rest
	return nil
}

// Segment makes a TCP segment between two ports, with 64 hops to live. It uses IPv4 or IPv6 depending on the addresses,
// and sets the ports in h. Call Seal afterwards.
func Segment(from, to netip.AddrPort, h TCP, payload []byte) *Packet {
	const hops = 64
	h.SrcPort, h.DstPort = from.Port(), to.Port()
	p := &Packet{TCP: &h, Payload: payload}
	if from.Addr().Is4() {
		p.V4 = &IPv4{TTL: hops, Src: from.Addr(), Dst: to.Addr()}
	} else {
		p.V6 = &IPv6{HopLimit: hops, Src: from.Addr(), Dst: to.Addr()}
	}
	return p
}

// Bytes encodes the packet's fields as they are. Seal makes them consistent.
func (p *Packet) Bytes() []byte { return p.Append(make([]byte, 0, p.size())) }

func (p *Packet) size() int {
	const headers = ipv6Fixed + tcpMax
	return headers + len(p.Payload) + len(p.Trailer)
}

// Append appends the packet's bytes.
func (p *Packet) Append(b []byte) []byte {
	switch {
	case p.V4 != nil:
		b = p.V4.append(b)
	case p.V6 != nil:
		b = p.V6.append(b)
	}
	b = p.appendTransport(b)
	b = append(b, p.Payload...)
	return append(b, p.Trailer...)
}

func (p *Packet) appendTransport(b []byte) []byte {
	start := len(b)
	switch {
	case p.TCP != nil:
		b = p.TCP.Append(b)
	case p.UDP != nil:
		b = p.UDP.append(b)
	case p.ICMP != nil:
		b = p.ICMP.append(b)
	}
	if p.Cut > 0 {
		b = b[:min(len(b), start+p.Cut)]
	}
	return b
}

// Seal fills in the fields that depend on others: IPv4's total length and IPv6's payload length, header lengths,
// protocols, padding and checksums. It returns an error if the options do not fit.
func (p *Packet) Seal() error {
	if (p.V4 == nil) == (p.V6 == nil) {
		return errors.New("a packet has one IP header, of version 4 or 6")
	}
	if p.TCP != nil {
		if err := p.TCP.seal(); err != nil {
			return err
		}
	}
	var header [tcpMax]byte
	transport := len(p.appendTransport(header[:0])) + len(p.Payload)
	if p.UDP != nil {
		p.UDP.Length = uint16(transport)
	}
	var err error
	if p.V4 != nil {
		err = p.V4.seal(transport)
	} else {
		err = p.V6.seal(transport)
	}
	if err != nil {
		return err
	}
	if protocol, ok := p.transportProtocol(); ok {
		p.setProtocol(protocol)
	}
	if p.V4 != nil {
		p.V4.SetChecksum()
	}
	if field := p.checksumField(); field != nil {
		*field = 0
		*field = p.transportChecksum()
	}
	return nil
}

func (p *Packet) transportProtocol() (number uint8, ok bool) {
	switch {
	case p.TCP != nil:
		return ProtocolTCP, true
	case p.UDP != nil:
		return ProtocolUDP, true
	case p.ICMP != nil && p.V6 != nil:
		return ProtocolICMPv6, true
	case p.ICMP != nil:
		return ProtocolICMP, true
	}
	return 0, false
}

// Src returns the packet's source address.
func (p *Packet) Src() netip.Addr {
	if p.V4 != nil {
		return p.V4.Src
	}
	return p.V6.Src
}

// Dst returns the packet's destination address.
func (p *Packet) Dst() netip.Addr {
	if p.V4 != nil {
		return p.V4.Dst
	}
	return p.V6.Dst
}

// From returns the source address and port. The port is 0 if the packet has none.
func (p *Packet) From() netip.AddrPort { return netip.AddrPortFrom(p.Src(), p.ports()[0]) }

// To returns the destination address and port. The port is 0 if the packet has none.
func (p *Packet) To() netip.AddrPort { return netip.AddrPortFrom(p.Dst(), p.ports()[1]) }

func (p *Packet) ports() [2]uint16 {
	switch {
	case p.TCP != nil:
		return [2]uint16{p.TCP.SrcPort, p.TCP.DstPort}
	case p.UDP != nil:
		return [2]uint16{p.UDP.SrcPort, p.UDP.DstPort}
	}
	return [2]uint16{}
}

// Protocol returns the number of the protocol after the IP headers.
func (p *Packet) Protocol() uint8 {
	if p.V4 != nil {
		return p.V4.Protocol
	}
	return p.V6.protocol()
}

func (p *Packet) setProtocol(number uint8) {
	switch {
	case p.V4 != nil:
		p.V4.Protocol = number
	case len(p.V6.Extensions) > 0:
		p.V6.Extensions[len(p.V6.Extensions)-1].Data[0] = number
	default:
		p.V6.NextHeader = number
	}
}

// Fragment returns the fragment's offset in bytes, and whether more fragments follow. For a packet that is not a
// fragment, it returns 0 and false.
func (p *Packet) Fragment() (offset int, more bool) {
	if p.V4 != nil {
		return int(p.V4.Fragment&fragmentOffset) * 8, p.V4.Fragment&MoreFragments != 0
	}
	return p.V6.fragment()
}
