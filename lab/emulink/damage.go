package emulink

import (
	"encoding/binary"
	"math/rand/v2"
)

// Offsets and values of IP and TCP headers (RFC 791, 8200, 9293).
const (
	ipv4MinHeader = 20
	ipv6Header    = 40
	tcpMinHeader  = 20

	protocolTCP = 6

	ipv4FragmentAt = 6
	ipv4ProtocolAt = 9
	ipv6NextAt     = 6
	tcpOffsetAt    = 12
	tcpChecksumAt  = 16
	fragmentMask   = 0x3fff // the bit "more fragments" and the offset
)

// ipPayload returns the data behind a packet's IP header, and the protocol that the header names. Data that is not an
// IP packet has no payload.
func ipPayload(data []byte) (payload []byte, protocol byte) {
	switch {
	case len(data) >= ipv4MinHeader && data[0]>>4 == 4:
		header := int(data[0]&0xf) * 4
		if header < ipv4MinHeader || header > len(data) {
			return nil, 0
		}
		return data[header:], data[ipv4ProtocolAt]
	case len(data) >= ipv6Header && data[0]>>4 == 6:
		return data[ipv6Header:], data[ipv6NextAt]
	}
	return nil, 0
}

// tcpPayload returns a packet's TCP segment and the offset of the segment's payload. ok is false for fragments and for
// segments without payload.
func tcpPayload(data []byte) (segment []byte, payload int, ok bool) {
	segment, protocol := ipPayload(data)
	if protocol != protocolTCP || len(segment) < tcpMinHeader {
		return nil, 0, false
	}
	if data[0]>>4 == 4 && binary.BigEndian.Uint16(data[ipv4FragmentAt:])&fragmentMask != 0 {
		return nil, 0, false
	}
	payload = int(segment[tcpOffsetAt]>>4) * 4
	return segment, payload, payload >= tcpMinHeader && payload < len(segment)
}

// flipBit flips one bit behind a packet's IP header. It reports whether the packet has any.
func flipBit(data []byte, draws *rand.PCG) bool {
	payload, _ := ipPayload(data)
	if len(payload) == 0 {
		return false
	}
	bit := below(draws, 8*len(payload))
	payload[bit/8] ^= 1 << (bit % 8)
	return true
}

// changeByte changes one byte of a segment's payload and updates the checksum (RFC 1624, equation 3). A
// receiver without its own checksum, such as that of MPTCP's DSS option, cannot detect it.
func changeByte(segment []byte, payload int, draws *rand.PCG) {
	at := payload + below(draws, len(segment)-payload)
	word := at &^ 1
	before := wordAt(segment, word)
	segment[at] ^= byte(1 + below(draws, 255))
	sum := uint32(^binary.BigEndian.Uint16(segment[tcpChecksumAt:])) + uint32(^before) + uint32(wordAt(segment, word))
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(segment[tcpChecksumAt:], ^uint16(sum))
}

// wordAt returns 16 bits of a segment, padded with zeros as for a checksum.
func wordAt(segment []byte, at int) uint16 {
	if at+1 == len(segment) {
		return uint16(segment[at]) << 8
	}
	return binary.BigEndian.Uint16(segment[at:])
}
