package cflb

import (
	"encoding/binary"
	"fmt"

	"github.com/detour-collective/dcol/internal/packet"
)

// malformedFrame returns an error of a frame that is neither MPLS nor TRILL as expected.
func malformedFrame(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{packet.ErrMalformed}, args...)...)
}

const (
	// EntropyBits is the width of MPLS's entropy label (RFC 6790), the controlled field of packets that are not IP.
	EntropyBits = 20

	entropyIndicator = 7 // announces that the next label is an entropy label (RFC 6790, 3)
	mplsBottom       = 1 << 8
)

// ReadMPLS returns what CFLB reads of an MPLS packet, which begins with its label stack. The time to live is that of
// the top label. The controlled field is the entropy label, and without one, that of the IP packet inside. Labels are
// not uncontrolled fields either: they change at each hop.
func ReadMPLS(b []byte, f Field) (h Header, err error) {
	if len(b) < 4 {
		return h, malformedFrame("%d bytes are no MPLS label", len(b))
	}
	top := uint8(binary.BigEndian.Uint32(b))
	announced := false
	for {
		if len(b) < 4 {
			return h, malformedFrame("the label stack has no end")
		}
		entry := binary.BigEndian.Uint32(b)
		b = b[4:]
		if announced {
			return Header{Controlled: NumberOf(uint64(entry >> 12)), TTL: top}, nil
		}
		announced = entry>>12 == entropyIndicator
		if entry&mplsBottom != 0 {
			break
		}
	}
	p, err := packet.Parse(b)
	if err != nil {
		return h, err
	}
	h, err = f.Read(p)
	h.TTL = top
	return h, err
}

// WriteEntropy sets the entropy label of an MPLS packet.
func WriteEntropy(b []byte, label Number) error {
	if !label.fits(EntropyBits) {
		return fmt.Errorf("an entropy label has %d bits: the number is larger", EntropyBits)
	}
	announced := false
	for ; len(b) >= 4; b = b[4:] {
		entry := binary.BigEndian.Uint32(b)
		if announced {
			binary.BigEndian.PutUint32(b, uint32(label[0])<<12|entry&0xfff)
			return nil
		}
		announced = entry>>12 == entropyIndicator
		if entry&mplsBottom != 0 {
			break
		}
	}
	return malformedFrame("it has no entropy label")
}

const (
	trillFixed    = 6
	trillHops     = 0x3f
	etherHeader   = 14
	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd
	etherTypeVLAN = 0x8100
	vlanTag       = 4
)

// ReadTRILL returns what CFLB reads of a TRILL packet, which begins with TRILL's header (RFC 6325, 3.1). The hop count,
// of 6 bits, takes the place of the time to live. The fields are those of the IP packet in the inner Ethernet frame.
func ReadTRILL(b []byte, f Field) (h Header, err error) {
	if len(b) < trillFixed {
		return h, malformedFrame("%d bytes are no TRILL header", len(b))
	}
	first := binary.BigEndian.Uint16(b)
	if version := first >> 14; version != 0 {
		return h, malformedFrame("TRILL version %d", version)
	}
	hops, options := uint8(first&trillHops), int(first>>6&0x1f)*4
	if len(b) < trillFixed+options+etherHeader {
		return h, malformedFrame("a TRILL packet of %d bytes has no inner frame", len(b))
	}
	b = b[trillFixed+options:]
	kind := binary.BigEndian.Uint16(b[12:])
	b = b[etherHeader:]
	if kind == etherTypeVLAN && len(b) >= vlanTag {
		kind = binary.BigEndian.Uint16(b[2:])
		b = b[vlanTag:]
	}
	if kind != etherTypeIPv4 && kind != etherTypeIPv6 {
		return h, ErrNoPorts
	}
	p, err := packet.Parse(b)
	if err != nil {
		return h, err
	}
	h, err = f.Read(p)
	h.TTL = hops
	return h, err
}
