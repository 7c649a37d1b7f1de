package packet

import (
	"encoding/binary"
	"errors"
	"slices"
)

// Types of ICMP errors (RFC 792, RFC 4443).
const (
	Unreachable      = 3
	TimeExceeded     = 11
	ParameterProblem = 12

	V6Unreachable      = 1
	V6PacketTooBig     = 2
	V6TimeExceeded     = 3
	V6ParameterProblem = 4

	sourceQuench = 4
	redirect     = 5
)

// ICMP is the header of RFC 792 and RFC 4443, 2.1. The meaning of the four bytes of Data depends on the type.
type ICMP struct {
	Type, Code uint8
	Checksum   uint16
	Data       [4]byte
}

func (h *ICMP) decode(b []byte) {
	*h = ICMP{Type: b[0], Code: b[1], Checksum: binary.BigEndian.Uint16(b[2:]), Data: [4]byte(b[4:])}
}

func (h *ICMP) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(append(b, h.Type, h.Code), h.Checksum)
	return append(b, h.Data[:]...)
}

// Quote is the quotation in an ICMP error.
type Quote struct {
	Bytes   []byte            // bytes of the quoted packet, with padding
	Objects []ExtensionObject // extension objects after it (RFC 4884, 7)
	// Extended is false if the objects begin at byte 128 because no length is given (RFC 4884, 5.5).
	Extended bool
}

// ExtensionObject is a part of an ICMP extension (RFC 4884, 8).
type ExtensionObject struct {
	Class, Type uint8
	Data        []byte
}

// Class of the labels of MPLS (RFC 4950, 2).
const ClassMPLS = 1

// Labels returns the labels of an object of class MPLS.
func (o ExtensionObject) Labels() (labels []uint32, ok bool) {
	if o.Class != ClassMPLS || o.Type != 1 || len(o.Data)%4 != 0 {
		return nil, false
	}
	for b := o.Data; len(b) > 0; b = b[4:] {
		labels = append(labels, binary.BigEndian.Uint32(b)>>12)
	}
	return labels, true
}

// ErrNoQuote is returned by Quote for packets that are not ICMP errors.
var ErrNoQuote = errors.New("not an ICMP error")

// Quote returns the quotation of an ICMP error; ParseQuote decodes its bytes. Malformed extensions are left out. Their
// bytes then belong to the quoted packet if no length separates them. A length that cannot be right is ignored.
func (p *Packet) Quote() (q Quote, err error) {
	unit, ok := p.quoteUnit()
	if !ok {
		return q, ErrNoQuote
	}
	const legacy = 128 // length of the quote in errors that give none
	at := unit
	if unit > 0 {
		at = unit * int(p.ICMP.Data[lengthAt(unit)])
	}
	q.Bytes = p.Payload
	// A quote with a length has at least 128 bytes (RFC 4884, 3).
	wrong := at > 0 && at < legacy || at > len(p.Payload) && p.Missing == 0
	switch {
	case wrong: // the whole payload is the quote, as without a length
	case at > len(p.Payload):
	case at > 0:
		q.Bytes, q.Extended = p.Payload[:at:at], true
		q.Objects, _ = parseExtensions(p.Payload[at:])
	case unit > 0 && len(p.Payload) > legacy:
		if objects, ok := parseExtensions(p.Payload[legacy:]); ok {
			q.Bytes, q.Objects = p.Payload[:legacy:legacy], objects
		}
	}
	return q, nil
}

const (
	unitIPv4 = 4
	unitIPv6 = 8
)

// lengthAt returns the index in ICMP.Data of the quote's length (RFC 4884, 4).
func lengthAt(unit int) int {
	if unit == unitIPv6 {
		return 0
	}
	return 1
}

// quoteUnit returns the unit, in bytes, of the quote's length, or 0 if the type has no length. ok is false if the
// packet is not an ICMP error.
func (p *Packet) quoteUnit() (bytes int, ok bool) {
	if p.ICMP == nil || p.Cut > 0 {
		return 0, false
	}
	if p.V4 != nil {
		switch p.ICMP.Type {
		case Unreachable, TimeExceeded, ParameterProblem:
			return unitIPv4, true
		case sourceQuench, redirect:
			return 0, true
		}
		return 0, false
	}
	switch p.ICMP.Type {
	case V6Unreachable, V6TimeExceeded:
		return unitIPv6, true
	case V6PacketTooBig, V6ParameterProblem:
		return 0, true
	}
	return 0, false
}

// SetQuote makes an ICMP error quote bytes. If extension objects follow, it pads the quote and sets its length. Call
// Seal afterwards.
func (p *Packet) SetQuote(quoted []byte, objects ...ExtensionObject) error {
	unit, ok := p.quoteUnit()
	if !ok {
		return ErrNoQuote
	}
	p.Payload = quoted
	if len(objects) == 0 {
		return nil
	}
	const least = 128
	if len(quoted) < least {
		quoted = slices.Concat(quoted, make([]byte, least-len(quoted)))
	}
	if unit == 0 || len(quoted) > 255*unit {
		return errors.New("extensions do not fit to this ICMP error")
	}
	quoted = padded(quoted, unit)
	p.ICMP.Data[lengthAt(unit)] = uint8(len(quoted) / unit)
	p.Payload = slices.Concat(quoted, encodeExtensions(objects))
	return nil
}

const extensionVersion = 2 << 4

func parseExtensions(b []byte) (objects []ExtensionObject, ok bool) {
	const header = 4
	if len(b) < header || b[0]&0xf0 != extensionVersion {
		return nil, false
	}
	if binary.BigEndian.Uint16(b[2:]) != 0 && Sum(b, 0) != 0xffff {
		return nil, false
	}
	for b = b[header:]; len(b) > 0; {
		if len(b) < header {
			return nil, false
		}
		size := int(binary.BigEndian.Uint16(b))
		if size < header || size > len(b) {
			return nil, false
		}
		objects = append(objects, ExtensionObject{Class: b[2], Type: b[3], Data: b[header:size:size]})
		b = b[size:]
	}
	return objects, true
}

func encodeExtensions(objects []ExtensionObject) []byte {
	b := []byte{extensionVersion, 0, 0, 0}
	for _, o := range objects {
		b = binary.BigEndian.AppendUint16(b, uint16(4+len(o.Data)))
		b = append(append(b, o.Class, o.Type), o.Data...)
	}
	binary.BigEndian.PutUint16(b[2:], ^Sum(b, 0))
	return b
}
