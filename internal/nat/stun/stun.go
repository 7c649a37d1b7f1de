// Package stun implements the part of STUN (RFC 8489) that members need: Binding requests and their
// answers, from which a host learns the source of its packets as others see it. The packets share
// the sessions' UDP port: the upper two bits of their first byte are zero, unlike those of QUIC's
// packets (RFC 9443).
//
// Parse accepts bytes from strangers. Its allocations do not depend on them, and it accepts only
// complete packets with a FINGERPRINT.
package stun

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
)

// ID matches an answer to its request.
type ID [12]byte

// NewID returns a random ID.
func NewID() ID {
	var id ID
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	return id
}

// Message is a Binding request or its answer.
type Message struct {
	ID ID
	// Request is set on requests. All other messages are answers.
	Request bool
	// OtherPort in a request asks for the answer to come from another port (CHANGE-REQUEST, RFC
	// 5780, 7.2).
	OtherPort bool
	// Seen in an answer is the source of the request.
	Seen netip.AddrPort
}

// Size is the length of every request in bytes. No answer is longer, so forging the source of a
// request amplifies nothing.
const Size = 52

const (
	headerSize = 20
	cookie     = 0x2112A442

	bindingRequest = 0x0001
	bindingSuccess = 0x0101

	// Attributes (RFC 8489, 14; RFC 5780, 7).
	attrChangeRequest = 0x0003
	attrIntegrity     = 0x0008
	attrXorMapped     = 0x0020
	attrPadding       = 0x0026
	attrFingerprint   = 0x8028

	changePort = 0x2

	familyIPv4 = 1
	familyIPv6 = 2

	attrHeader       = 4
	fingerprintXor   = 0x5354554e
	fingerprintSize  = attrHeader + 4
	changeSize       = attrHeader + 4
	maxSize          = 256 // of a packet that is looked at; ours are smaller
	requestPadding   = Size - headerSize - changeSize - fingerprintSize - attrHeader
	comprehensionOpt = 0x8000 // attributes from here on may be skipped (RFC 8489, 14)
)

// Append adds the message to b.
func (m Message) Append(b []byte) []byte {
	start := len(b)
	kind := uint16(bindingSuccess)
	if m.Request {
		kind = bindingRequest
	}
	b = binary.BigEndian.AppendUint16(b, kind)
	b = append(b, 0, 0) // the length, filled in below
	b = binary.BigEndian.AppendUint32(b, cookie)
	b = append(b, m.ID[:]...)
	if m.Request {
		var flags uint32
		if m.OtherPort {
			flags = changePort
		}
		b = appendHeader(b, attrChangeRequest, 4)
		b = binary.BigEndian.AppendUint32(b, flags)
		b = appendHeader(b, attrPadding, requestPadding)
		b = append(b, make([]byte, requestPadding)...)
	} else {
		b = m.appendSeen(b)
	}
	// The fingerprint covers a length that already includes it (RFC 8489, 14.7).
	binary.BigEndian.PutUint16(b[start+2:], uint16(len(b)-start-headerSize+fingerprintSize))
	return append(b[:start], appendFingerprint(b[start:])...)
}

func appendFingerprint(packet []byte) []byte {
	sum := crc32.ChecksumIEEE(packet) ^ fingerprintXor
	packet = appendHeader(packet, attrFingerprint, 4)
	return binary.BigEndian.AppendUint32(packet, sum)
}

func appendHeader(b []byte, kind, size uint16) []byte {
	b = binary.BigEndian.AppendUint16(b, kind)
	return binary.BigEndian.AppendUint16(b, size)
}

// appendSeen adds XOR-MAPPED-ADDRESS (RFC 8489, 14.2). The address is masked because some routers
// rewrite addresses inside packets.
func (m Message) appendSeen(b []byte) []byte {
	addr := m.Seen.Addr().Unmap()
	family := byte(familyIPv4)
	if addr.Is6() {
		family = familyIPv6
	}
	b = appendHeader(b, attrXorMapped, uint16(4+addr.BitLen()/8))
	b = append(b, 0, family)
	b = binary.BigEndian.AppendUint16(b, m.Seen.Port()^(cookie>>16))
	masked := addr.AsSlice()
	m.mask(masked)
	return append(b, masked...)
}

// mask masks or unmasks an address.
func (m Message) mask(addr []byte) {
	mask := binary.BigEndian.AppendUint32(make([]byte, 0, 16), cookie)
	mask = append(mask, m.ID[:]...)
	for i := range addr {
		addr[i] ^= mask[i]
	}
}

// Errors returned by Parse.
var (
	// ErrNotSTUN means that a packet is not a Binding message, or is malformed.
	ErrNotSTUN = errors.New("no STUN Binding message")
	// ErrRefused means that the other side answered with an error.
	ErrRefused = errors.New("the STUN request was refused")
)

const bindingError = 0x0111

// Parse decodes a packet.
func Parse(b []byte) (Message, error) {
	var m Message
	if len(b) < headerSize+fingerprintSize || len(b) > maxSize || len(b)%4 != 0 ||
		int(binary.BigEndian.Uint16(b[2:])) != len(b)-headerSize || binary.BigEndian.Uint32(b[4:]) != cookie {
		return m, ErrNotSTUN
	}
	body, last := b[:len(b)-fingerprintSize], b[len(b)-fingerprintSize:]
	if binary.BigEndian.Uint16(last) != attrFingerprint || binary.BigEndian.Uint16(last[2:]) != 4 ||
		binary.BigEndian.Uint32(last[4:]) != crc32.ChecksumIEEE(body)^fingerprintXor {
		return m, ErrNotSTUN
	}
	copy(m.ID[:], b[8:headerSize])
	switch binary.BigEndian.Uint16(b) {
	case bindingRequest:
		m.Request = true
	case bindingSuccess:
	case bindingError:
		return m, ErrRefused
	default:
		return m, ErrNotSTUN
	}
	if err := m.attributes(body[headerSize:]); err != nil {
		return m, err
	}
	if m.Request == m.Seen.IsValid() {
		return m, ErrNotSTUN
	}
	return m, nil
}

func (m *Message) attributes(b []byte) error {
	for len(b) > 0 {
		if len(b) < attrHeader {
			return ErrNotSTUN
		}
		kind, size := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
		padded := attrHeader + (size+3)&^3
		if padded > len(b) {
			return ErrNotSTUN
		}
		value := b[attrHeader : attrHeader+size]
		b = b[padded:]
		switch {
		case kind == attrXorMapped && !m.Request:
			if !m.readSeen(value) {
				return ErrNotSTUN
			}
		case kind == attrChangeRequest && m.Request:
			if size != 4 {
				return ErrNotSTUN
			}
			flags := binary.BigEndian.Uint32(value)
			if flags&^changePort != 0 {
				return ErrNotSTUN // members never request another address that way
			}
			m.OtherPort = flags&changePort != 0
		case kind == attrIntegrity: // there is no shared password to verify it
		case kind == attrPadding, kind >= comprehensionOpt:
		default:
			return ErrNotSTUN
		}
	}
	return nil
}

func (m *Message) readSeen(value []byte) bool {
	if len(value) < 4 {
		return false
	}
	port := binary.BigEndian.Uint16(value[2:]) ^ (cookie >> 16)
	var masked [16]byte
	addr := masked[:copy(masked[:], value[4:])]
	switch {
	case value[1] == familyIPv4 && len(value) == 4+4:
	case value[1] == familyIPv6 && len(value) == 4+16:
	default:
		return false
	}
	m.mask(addr)
	a, _ := netip.AddrFromSlice(addr) // of one of the two lengths
	if a.Is4In6() || a.IsUnspecified() || port == 0 {
		return false
	}
	m.Seen = netip.AddrPortFrom(a, port)
	return true
}
