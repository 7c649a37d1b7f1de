package packet

import "encoding/binary"

// Summary holds the fields of a TCP segment that an analysis of many packets needs. It has a fixed size and no
// pointers.
type Summary struct {
	Src, Dst         [16]byte // IPv4 addresses are mapped (RFC 4291, 2.5.5.2)
	SrcPort, DstPort uint16
	IPID             uint16 // of IPv4
	Flags            Flags
	Seq, Ack         uint32
	Payload          uint32 // length by the IP header, captured or not
	Window           uint16
	Scale            uint8 // NoScale: there is no such option
	// Cut reports that some of the header's options were not captured.
	Cut bool
	// Malformed reports that an MPTCP option has a wrong length.
	Malformed bool
	HasStamps bool
	HasSACK   bool
	HasMPTCP  bool
	HasDSS    bool
	OthersLen uint8
	Value     uint32 // of timestamps
	Echo      uint32
	DSS       DSS
	Others    [MaxOptions]byte // MPTCP options except DSS, as in the header: kind, length, data
}

const (
	// MaxOptions is the size of the largest options area of a TCP header.
	MaxOptions = tcpMax - tcpFixed
	// NoScale is Summary.Scale if a segment has no window scale.
	NoScale = 0xff
)

// Summarise reads an IP packet of the given length. b has its captured beginning. Summarise reports whether the packet
// is a TCP segment whose ports, numbers and flags were captured. It returns false for fragments other than the first.
func (s *Summary) Summarise(b []byte, length int) bool {
	if len(b) < ipv4Fixed {
		return false
	}
	var header int
	if b[0]>>4 == 4 {
		header = int(b[0]&0xf) * 4
		if b[9] != ProtocolTCP || header < ipv4Fixed || header > len(b) || binary.BigEndian.Uint16(b[6:])&fragmentOffset != 0 {
			return false
		}
		s.Src, s.Dst = mapped4(b[12:]), mapped4(b[16:])
		s.IPID = binary.BigEndian.Uint16(b[4:])
		if total := int(binary.BigEndian.Uint16(b[2:])); total > 0 {
			length = total
		}
	} else {
		var ok bool
		if header, length, ok = s.ipv6(b, length); !ok {
			return false
		}
	}
	captured := min(len(b), length)
	if captured-header < tcpFixed {
		return false
	}
	tcp := b[header:captured]
	offset := int(tcp[12]>>4) * 4
	if offset < tcpFixed || header+offset > length {
		return false
	}
	s.SrcPort, s.DstPort = binary.BigEndian.Uint16(tcp), binary.BigEndian.Uint16(tcp[2:])
	s.Seq, s.Ack = binary.BigEndian.Uint32(tcp[4:]), binary.BigEndian.Uint32(tcp[8:])
	s.Flags = Flags(binary.BigEndian.Uint16(tcp[12:]) & 0xfff)
	s.Window = binary.BigEndian.Uint16(tcp[14:])
	s.Payload = uint32(length - header - offset)
	s.Scale, s.OthersLen = NoScale, 0
	s.Malformed, s.HasStamps, s.HasSACK, s.HasMPTCP, s.HasDSS = false, false, false, false, false
	s.Cut = offset > len(tcp)
	s.options(tcp[tcpFixed:min(offset, len(tcp))])
	return true
}

// mapped4 returns an IPv4 address mapped into IPv6.
func mapped4(b []byte) (a [16]byte) {
	a[10], a[11] = 0xff, 0xff
	copy(a[12:], b[:4])
	return a
}

func (s *Summary) ipv6(b []byte, length int) (header, total int, ok bool) {
	if b[0]>>4 != 6 || len(b) < ipv6Fixed {
		return 0, 0, false
	}
	s.Src, s.Dst, s.IPID = [16]byte(b[8:]), [16]byte(b[24:]), 0
	if n := int(binary.BigEndian.Uint16(b[4:])); n > 0 {
		length = ipv6Fixed + n
	}
	next, header := b[6], ipv6Fixed
	for next != ProtocolTCP {
		if !isExtension(next) || len(b) < header+8 {
			return 0, 0, false
		}
		size := 8 * (1 + int(b[header+1]))
		switch next {
		case FragmentHeader:
			if binary.BigEndian.Uint16(b[header+2:])&^7 != 0 {
				return 0, 0, false
			}
			size = 8
		case Authentication:
			size = 4 * (2 + int(b[header+1]))
		}
		next, header = b[header], header+size
	}
	return header, length, header <= len(b)
}

// options reads the options that were captured.
func (s *Summary) options(b []byte) {
	for len(b) > 0 {
		if b[0] == KindNOP {
			b = b[1:]
			continue
		}
		if b[0] == KindEnd {
			return
		}
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			s.Malformed = s.Malformed || b[0] == KindMPTCP && !s.Cut
			return
		}
		size := int(b[1])
		switch b[0] {
		case KindTimestamps:
			if size == 10 {
				s.HasStamps = true
				s.Value, s.Echo = binary.BigEndian.Uint32(b[2:]), binary.BigEndian.Uint32(b[6:])
			}
		case KindMPTCP:
			s.mptcp(b[:size:size])
		case KindWindowScale:
			if size == 3 {
				s.Scale = b[2]
			}
		case KindSACK:
			s.HasSACK = true
		}
		b = b[size:]
	}
}

func (s *Summary) mptcp(b []byte) {
	s.HasMPTCP = true
	o := Option{Kind: KindMPTCP, Data: b[2:]}
	subtype, ok := o.Subtype()
	switch {
	case !ok:
		s.Malformed = true
	case subtype == SubtypeDSS:
		if d, ok := o.DSS(); ok {
			s.DSS, s.HasDSS = d, true
		} else {
			s.Malformed = true
		}
	default:
		copy(s.Others[s.OthersLen:], b)
		s.OthersLen += uint8(len(b))
	}
}

// Other returns the first MPTCP option in rest, and the bytes of the others. A caller begins with
// s.Others[:s.OthersLen] and ends when no bytes remain.
func (s *Summary) Other(rest []byte) (Option, []byte) {
	size := int(rest[1])
	return Option{Kind: rest[0], Data: rest[2:size:size]}, rest[size:]
}
