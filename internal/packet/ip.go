package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

const (
	ipv4Fixed = 20
	ipv4Max   = 60
	ipv6Fixed = 40
)

// Flags in IPv4.Fragment (RFC 791, 3.1).
const (
	DontFragment  = 0x4000
	MoreFragments = 0x2000

	fragmentOffset = 0x1fff
)

// IPv4 is the header of RFC 791, 3.1.
type IPv4 struct {
	IHL      uint8  // header length in words of 32 bits
	TOS      uint8  // DSCP and ECN
	Length   uint16 // of header and payload; 0: all bytes, as with segmentation offload
	ID       uint16
	Fragment uint16 // flags, and the offset in units of 8 bytes
	TTL      uint8
	Protocol uint8
	Checksum uint16
	Src, Dst netip.Addr
	Options  []byte
}

// decodeIPv4 returns the bytes that follow the header.
func (d *Decoder) decodeIPv4(b []byte, quote bool) (rest []byte, err error) {
	if len(b) < ipv4Fixed {
		return nil, malformed("%d bytes are no IPv4 header", len(b))
	}
	header := int(b[0]&0xf) * 4
	if header < ipv4Fixed || header > len(b) {
		return nil, malformed("IPv4 header of %d bytes in %d", header, len(b))
	}
	d.v4 = IPv4{
		IHL: b[0] & 0xf, TOS: b[1],
		Length:   binary.BigEndian.Uint16(b[2:]),
		ID:       binary.BigEndian.Uint16(b[4:]),
		Fragment: binary.BigEndian.Uint16(b[6:]),
		TTL:      b[8], Protocol: b[9],
		Checksum: binary.BigEndian.Uint16(b[10:]),
		Src:      netip.AddrFrom4([4]byte(b[12:])), Dst: netip.AddrFrom4([4]byte(b[16:])),
		Options: b[ipv4Fixed:header:header],
	}
	d.p.V4 = &d.v4
	length := int(d.v4.Length)
	switch {
	case length == 0, quote && length < header:
		return b[header:], nil
	case length < header:
		return nil, malformed("IPv4 packet of %d bytes with a header of %d", length, header)
	case length > len(b):
		d.p.Missing = length - len(b)
		return b[header:], nil
	}
	d.p.Trailer = b[length:]
	return b[header:length:length], nil
}

func (h *IPv4) append(b []byte) []byte {
	b = append(b, 4<<4|h.IHL&0xf, h.TOS)
	b = binary.BigEndian.AppendUint16(b, h.Length)
	b = binary.BigEndian.AppendUint16(b, h.ID)
	b = binary.BigEndian.AppendUint16(b, h.Fragment)
	b = append(b, h.TTL, h.Protocol)
	b = binary.BigEndian.AppendUint16(b, h.Checksum)
	src, dst := as4(h.Src), as4(h.Dst)
	b = append(b, src[:]...)
	b = append(b, dst[:]...)
	return append(b, h.Options...)
}

func (h *IPv4) seal(payload int) error {
	if h.Src.IsValid() && !h.Src.Is4() || h.Dst.IsValid() && !h.Dst.Is4() {
		return fmt.Errorf("an IPv4 header from %v to %v", h.Src, h.Dst)
	}
	h.Options = padded(h.Options, 4)
	header := ipv4Fixed + len(h.Options)
	if header > ipv4Max || header+payload > 0xffff {
		return fmt.Errorf("an IPv4 packet with %d bytes of options and %d of payload is too long", len(h.Options), payload)
	}
	h.IHL, h.Length = uint8(header/4), uint16(header+payload)
	return nil
}

// SetChecksum computes the header's checksum, as Seal does.
func (h *IPv4) SetChecksum() {
	var scratch [ipv4Max]byte
	h.Checksum = 0
	h.Checksum = ^Sum(h.append(scratch[:0]), 0)
}

// IPv6 is the header of RFC 8200, 3, with its extension headers.
type IPv6 struct {
	Class      uint8 // DSCP and ECN
	FlowLabel  uint32
	Length     uint16 // of everything after this header; 0 before TCP or a jumbogram's header (RFC 2675): all bytes
	NextHeader uint8
	HopLimit   uint8
	Src, Dst   netip.Addr
	Extensions []Extension
}

// Extension is an extension header of IPv6 (RFC 8200, 4).
type Extension struct {
	Kind uint8  // its protocol number
	Data []byte // the whole header; Data[0] is the protocol of the next one
}

// Kinds of extension headers that are decoded (IANA, IPv6 Extension Header Types). The bytes after others, such as ESP,
// cannot be interpreted.
const (
	HopByHop           = 0
	Routing            = 43
	FragmentHeader     = 44
	Authentication     = 51
	DestinationOptions = 60
	mobility           = 135
	hostIdentity       = 139
	shim6              = 140
)

func (d *Decoder) decodeIPv6(b []byte) (rest []byte, err error) {
	if len(b) < ipv6Fixed {
		return nil, malformed("%d bytes are no IPv6 header", len(b))
	}
	first := binary.BigEndian.Uint32(b)
	d.v6 = IPv6{
		Class: uint8(first >> 20), FlowLabel: first & 0xfffff,
		Length:     binary.BigEndian.Uint16(b[4:]),
		NextHeader: b[6], HopLimit: b[7],
		Src: netip.AddrFrom16([16]byte(b[8:])), Dst: netip.AddrFrom16([16]byte(b[24:])),
		Extensions: d.v6.Extensions[:0],
	}
	d.p.V6 = &d.v6
	end := ipv6Fixed + int(d.v6.Length)
	switch {
	case d.v6.Length == 0 && (d.v6.NextHeader == HopByHop || d.v6.NextHeader == ProtocolTCP):
		return b[ipv6Fixed:], nil
	case end > len(b):
		d.p.Missing = end - len(b)
		return b[ipv6Fixed:], nil
	}
	d.p.Trailer = b[end:]
	return b[ipv6Fixed:end:end], nil
}

// decodeExtensions returns the bytes after the extension headers. If a header is cut off or malformed, the bytes begin
// with it.
func (h *IPv6) decodeExtensions(b []byte) (rest []byte, err error) {
	for {
		kind := h.protocol()
		if !isExtension(kind) {
			return b, nil
		}
		if len(b) < 8 {
			return b, malformed("IPv6 extension header %d of %d bytes", kind, len(b))
		}
		size := 8 * (1 + int(b[1]))
		switch kind {
		case FragmentHeader:
			size = 8
		case Authentication:
			size = 4 * (2 + int(b[1])) // RFC 4302, 2.2
		}
		if size > len(b) {
			return b, malformed("IPv6 extension header %d of %d bytes in %d", kind, size, len(b))
		}
		h.Extensions = append(h.Extensions, Extension{Kind: kind, Data: b[:size:size]})
		b = b[size:]
		if offset, _ := h.fragment(); offset != 0 {
			return b, nil
		}
	}
}

func isExtension(protocol uint8) bool {
	switch protocol {
	case HopByHop, Routing, FragmentHeader, Authentication, DestinationOptions, mobility, hostIdentity, shim6:
		return true
	}
	return false
}

func (h *IPv6) protocol() uint8 {
	if n := len(h.Extensions); n > 0 {
		return h.Extensions[n-1].Data[0]
	}
	return h.NextHeader
}

// fragment returns the fields of the last fragment header (RFC 8200, 4.5).
func (h *IPv6) fragment() (offset int, more bool) {
	for _, e := range h.Extensions {
		if e.Kind == FragmentHeader {
			field := binary.BigEndian.Uint16(e.Data[2:])
			offset, more = int(field&^7), field&1 != 0
		}
	}
	return offset, more
}

func (h *IPv6) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, 6<<28|uint32(h.Class)<<20|h.FlowLabel&0xfffff)
	b = binary.BigEndian.AppendUint16(b, h.Length)
	b = append(b, h.NextHeader, h.HopLimit)
	src, dst := as16(h.Src), as16(h.Dst)
	b = append(b, src[:]...)
	b = append(b, dst[:]...)
	for _, e := range h.Extensions {
		b = append(b, e.Data...)
	}
	return b
}

func (h *IPv6) seal(payload int) error {
	if h.Src.IsValid() && !h.Src.Is6() || h.Dst.IsValid() && !h.Dst.Is6() {
		return fmt.Errorf("an IPv6 header from %v to %v", h.Src, h.Dst)
	}
	next := &h.NextHeader
	for _, e := range h.Extensions {
		if len(e.Data) < 8 {
			return errors.New("an IPv6 extension header has at least 8 bytes")
		}
		*next, next = e.Kind, &e.Data[0]
		payload += len(e.Data)
	}
	if payload > 0xffff {
		return fmt.Errorf("an IPv6 packet with a payload of %d bytes is too long", payload)
	}
	h.Length = uint16(payload)
	return nil
}

// as4 returns the address, or 0.0.0.0 if it is invalid.
func as4(a netip.Addr) [4]byte {
	if !a.IsValid() {
		return [4]byte{}
	}
	return a.As4()
}

// as16 returns the address, or :: if it is invalid.
func as16(a netip.Addr) [16]byte {
	if !a.IsValid() {
		return [16]byte{}
	}
	return a.As16()
}

// padded appends zeros up to the next multiple.
func padded(b []byte, multiple int) []byte {
	if over := len(b) % multiple; over != 0 {
		return slices.Concat(b, make([]byte, multiple-over))
	}
	return b
}
