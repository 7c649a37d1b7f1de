package packet

import (
	"encoding/binary"
	"fmt"
	"slices"
)

const (
	tcpFixed  = 20
	tcpMax    = 60
	udpFixed  = 8
	icmpFixed = 8
)

// Flags are the low 12 bits of the TCP header's seventh 16-bit word: control bits and reserved ones (RFC 9293, 3.1; RFC
// 9768 defines AE).
type Flags uint16

// Control bits.
const (
	FIN Flags = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
	AE
)

// Has reports whether all of the given flags are set.
func (f Flags) Has(all Flags) bool { return f&all == all }

// TCP is the header of RFC 9293, 3.1.
type TCP struct {
	SrcPort, DstPort uint16
	Seq, Ack         uint32
	Offset           uint8 // header length in words of 32 bits
	Flags            Flags
	Window           uint16
	Checksum         uint16
	Urgent           uint16
	Options          []Option
	// Rest has the bytes of the header after the options: padding after End, or bytes that are not an option, which a
	// receiver ignores.
	Rest []byte
}

func (h *TCP) decodeFixed(b []byte) {
	word := binary.BigEndian.Uint16(b[12:])
	*h = TCP{
		SrcPort: binary.BigEndian.Uint16(b), DstPort: binary.BigEndian.Uint16(b[2:]),
		Seq: binary.BigEndian.Uint32(b[4:]), Ack: binary.BigEndian.Uint32(b[8:]),
		Offset: uint8(word >> 12), Flags: Flags(word & 0xfff),
		Window:   binary.BigEndian.Uint16(b[14:]),
		Checksum: binary.BigEndian.Uint16(b[16:]),
		Urgent:   binary.BigEndian.Uint16(b[18:]),
		Options:  h.Options[:0],
	}
}

// decodeOptions decodes the options from the bytes after the fixed header, and returns the payload.
func (h *TCP) decodeOptions(b []byte, mayBeCut bool) (payload []byte, err error) {
	size := int(h.Offset)*4 - tcpFixed
	if !mayBeCut && (size < 0 || size > len(b)) {
		return nil, malformed("TCP header of %d bytes in %d", size+tcpFixed, len(b)+tcpFixed)
	}
	size = max(0, min(size, len(b))) // the offset is 0 if a quote is padded
	h.Options, h.Rest = appendOptions(h.Options, b[:size:size])
	return b[size:], nil
}

// OptionsComplete reports whether all options of the header are present and could be read.
func (h *TCP) OptionsComplete() bool {
	size := tcpFixed + optionsSize(h.Options) + len(h.Rest)
	ended := len(h.Options) > 0 && h.Options[len(h.Options)-1].Kind == KindEnd
	return size == int(h.Offset)*4 && (ended || len(h.Rest) == 0)
}

// Option returns the first option of a kind.
func (h *TCP) Option(kind uint8) (o Option, ok bool) {
	for _, o := range h.Options {
		if o.Kind == kind {
			return o, true
		}
	}
	return Option{}, false
}

// Append appends the bytes of the header.
func (h *TCP) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, h.SrcPort)
	b = binary.BigEndian.AppendUint16(b, h.DstPort)
	b = binary.BigEndian.AppendUint32(b, h.Seq)
	b = binary.BigEndian.AppendUint32(b, h.Ack)
	b = binary.BigEndian.AppendUint16(b, uint16(h.Offset)<<12|uint16(h.Flags)&0xfff)
	b = binary.BigEndian.AppendUint16(b, h.Window)
	b = binary.BigEndian.AppendUint16(b, h.Checksum)
	b = binary.BigEndian.AppendUint16(b, h.Urgent)
	return h.appendOptions(b)
}

// OptionBytes returns the options area of the header.
func (h *TCP) OptionBytes() []byte { return h.appendOptions(nil) }

func (h *TCP) appendOptions(b []byte) []byte {
	for _, o := range h.Options {
		b = o.Append(b)
	}
	return append(b, h.Rest...)
}

func (h *TCP) seal() error {
	size := tcpFixed + optionsSize(h.Options) + len(h.Rest)
	if over := size % 4; over != 0 {
		h.Rest = slices.Concat(h.Rest, make([]byte, 4-over))
		size += 4 - over
	}
	if size > tcpMax {
		return fmt.Errorf("a TCP header with %d bytes of options is too long", size-tcpFixed)
	}
	h.Offset = uint8(size / 4)
	return nil
}

// UDP is the header of RFC 768.
type UDP struct {
	SrcPort, DstPort uint16
	Length           uint16 // of header and payload
	Checksum         uint16 // 0: none
}

func (h *UDP) decode(b []byte) {
	*h = UDP{
		SrcPort: binary.BigEndian.Uint16(b), DstPort: binary.BigEndian.Uint16(b[2:]),
		Length: binary.BigEndian.Uint16(b[4:]), Checksum: binary.BigEndian.Uint16(b[6:]),
	}
}

func (h *UDP) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, h.SrcPort)
	b = binary.BigEndian.AppendUint16(b, h.DstPort)
	b = binary.BigEndian.AppendUint16(b, h.Length)
	return binary.BigEndian.AppendUint16(b, h.Checksum)
}
