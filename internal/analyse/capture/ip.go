package capture

import "encoding/binary"

const (
	etherIPv4  = 0x0800
	etherIPv6  = 0x86dd
	etherVLAN  = 0x8100
	etherQinQ  = 0x88a8
	etherQinQ2 = 0x9100 // before IEEE 802.1ad
	etherPPPoE = 0x8864
	etherMPLS  = 0x8847
)

// IP returns the IP packet in the frame, behind VLAN tags, PPPoE and MPLS labels, or nil.
func (p *Packet) IP() []byte {
	b := p.Data
	switch p.Link {
	case LinkEthernet:
		if len(b) < 14 {
			return nil
		}
		return inEthernet(binary.BigEndian.Uint16(b[12:]), b[14:])
	case LinkRaw, LinkRawBSD, LinkRawOpen, LinkIPv4, LinkIPv6:
		return ip(b)
	case LinkLinux:
		if len(b) < 16 {
			return nil
		}
		return inEthernet(binary.BigEndian.Uint16(b[14:]), b[16:])
	case LinkLinux2:
		if len(b) < 20 {
			return nil
		}
		return inEthernet(binary.BigEndian.Uint16(b), b[20:])
	case LinkNull, LinkLoop:
		// A protocol family whose value and byte order depend on the host that captured.
		if len(b) < 4 {
			return nil
		}
		return ip(b[4:])
	case LinkPPP:
		if len(b) >= 2 && b[0] == 0xff && b[1] == 0x03 {
			b = b[2:]
		}
		return inPPP(b)
	}
	return nil
}

// Known reports whether IP knows the link layer.
func (l LinkType) Known() bool {
	switch l {
	case LinkNull, LinkEthernet, LinkPPP, LinkRawBSD, LinkRawOpen, LinkRaw, LinkLoop, LinkLinux, LinkIPv4, LinkIPv6, LinkLinux2:
		return true
	}
	return false
}

func inEthernet(kind uint16, b []byte) []byte {
	for {
		switch kind {
		case etherIPv4, etherIPv6:
			return ip(b)
		case etherVLAN, etherQinQ, etherQinQ2:
			if len(b) < 4 {
				return nil
			}
			kind, b = binary.BigEndian.Uint16(b[2:]), b[4:]
		case etherPPPoE:
			if len(b) < 6 {
				return nil
			}
			return inPPP(b[6:])
		case etherMPLS:
			for len(b) >= 4 {
				last := b[2]&1 != 0
				if b = b[4:]; last {
					return ip(b)
				}
			}
			return nil
		default:
			return nil
		}
	}
}

func inPPP(b []byte) []byte {
	if len(b) < 2 {
		return nil
	}
	if kind := binary.BigEndian.Uint16(b); kind == 0x0021 || kind == 0x0057 {
		return ip(b[2:])
	}
	return nil
}

func ip(b []byte) []byte {
	if len(b) == 0 || b[0]>>4 != 4 && b[0]>>4 != 6 {
		return nil
	}
	return b
}
