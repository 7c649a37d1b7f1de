package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Sum returns the one's complement sum of RFC 1071, not complemented. It continues from start. If the number of bytes
// is odd, a zero is added.
func Sum(b []byte, start uint16) uint16 {
	sum := uint64(start)
	for ; len(b) >= 8; b = b[8:] {
		w := binary.BigEndian.Uint64(b)
		sum += w>>32 + w&0xffffffff
	}
	for ; len(b) >= 2; b = b[2:] {
		sum += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint64(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// Errors of Verify.
var (
	ErrChecksum = errors.New("wrong checksum")
	// ErrIncomplete means that a checksum covers bytes that are missing: the packet is cut or a fragment.
	ErrIncomplete = errors.New("incomplete")
)

// Verify checks the checksums of IPv4, TCP, UDP and ICMP. If a packet is still on its way through an IPv6 routing
// header, its checksum is for the final destination (RFC 8200, 8.1). Verify does not take that into account.
func (p *Packet) Verify() error {
	if p.V4 != nil {
		var scratch [ipv4Max]byte
		if Sum(p.V4.append(scratch[:0]), 0) != 0xffff {
			return fmt.Errorf("IPv4: %w", ErrChecksum)
		}
	}
	if offset, more := p.Fragment(); offset != 0 || more || p.Missing > 0 || p.Cut > 0 {
		return ErrIncomplete
	}
	field := p.checksumField()
	if field == nil || p.UDP != nil && p.V4 != nil && *field == 0 {
		return nil
	}
	if p.transportSum() != 0xffff {
		return fmt.Errorf("protocol %d: %w", p.Protocol(), ErrChecksum)
	}
	return nil
}

func (p *Packet) checksumField() *uint16 {
	switch {
	case p.TCP != nil:
		return &p.TCP.Checksum
	case p.UDP != nil:
		return &p.UDP.Checksum
	case p.ICMP != nil:
		return &p.ICMP.Checksum
	}
	return nil
}

// transportChecksum returns the correct checksum. The checksum field must be 0.
func (p *Packet) transportChecksum() uint16 {
	sum := ^p.transportSum()
	if sum == 0 && p.UDP != nil {
		return 0xffff // RFC 768: 0 means none
	}
	return sum
}

// transportSum returns the sum over the pseudo-header (RFC 9293, 3.1; RFC 8200, 8.1), the header and the payload.
func (p *Packet) transportSum() uint16 {
	var scratch [tcpMax]byte
	header := p.appendTransport(scratch[:0])
	payload := p.Payload
	if p.UDP != nil && p.UDP.Length >= udpFixed {
		payload = payload[:min(len(payload), int(p.UDP.Length)-udpFixed)]
	}
	var pseudo uint16
	size := len(header) + len(payload)
	if p.ICMP == nil || p.V6 != nil {
		pseudo = p.addressSum()
		protocol, _ := p.transportProtocol()
		var tail [8]byte
		binary.BigEndian.PutUint32(tail[:], uint32(size))
		tail[7] = protocol
		pseudo = Sum(tail[:], pseudo)
	}
	return Sum(payload, Sum(header, pseudo))
}

func (p *Packet) addressSum() uint16 {
	if p.V4 != nil {
		src, dst := as4(p.V4.Src), as4(p.V4.Dst)
		return Sum(dst[:], Sum(src[:], 0))
	}
	src, dst := as16(p.V6.Src), as16(p.V6.Dst)
	return Sum(dst[:], Sum(src[:], 0))
}
