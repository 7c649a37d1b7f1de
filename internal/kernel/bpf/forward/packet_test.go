package forward

import (
	"encoding/binary"
	"slices"
)

// packet is what the tests vary of a TCP packet in an Ethernet frame. Its wire form
// is built anew each time, with checksums over all of it: so that one built with
// other addresses is a model of what the program makes of this one.
type packet struct {
	tuple   Tuple
	ttl     byte
	tos     byte // or traffic class
	flow    uint32
	flags   byte
	seq     uint32
	ack     uint32
	payload []byte

	to         [6]byte // hardware address
	vlan       bool    // tagged
	vlanID     uint16
	protocol   byte   // 0: TCP
	ipOptions  []byte // of IPv6: extension headers
	extension  byte   // the kind of the first extension header; 0: hop by hop
	fragment   uint16 // flags and offset
	trailer    []byte // behind the packet
	offset     byte   // of TCP, in words; 0: as it is
	truncateTo int    // of the frame; 0: not
}

const (
	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagPSH = 0x08
	flagACK = 0x10
)

// forwarded is the packet as a router would send it on that translates addresses.
func (p packet) forwarded(out Tuple) packet {
	p.tuple = out
	p.ttl--
	return p
}

func (p packet) frame() []byte {
	from, to := p.tuple.Src.Addr().AsSlice(), p.tuple.Dst.Addr().AsSlice()
	protocol := p.protocol
	if protocol == 0 {
		protocol = 6
	}
	tcp := make([]byte, 32) // with timestamps
	binary.BigEndian.PutUint16(tcp, p.tuple.Src.Port())
	binary.BigEndian.PutUint16(tcp[2:], p.tuple.Dst.Port())
	binary.BigEndian.PutUint32(tcp[4:], p.seq)
	binary.BigEndian.PutUint32(tcp[8:], p.ack)
	tcp[12], tcp[13] = 8<<4, p.flags
	copy(tcp[20:], []byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8})
	tcp = append(tcp, p.payload...)
	pseudo := slices.Concat(from, to, []byte{0, 6}, binary.BigEndian.AppendUint16(nil, uint16(len(tcp))))
	binary.BigEndian.PutUint16(tcp[16:], ^sum(slices.Concat(pseudo, tcp)))
	if p.offset != 0 {
		tcp[12] = p.offset << 4
	}

	var ip []byte
	etherType := uint16(0x0800)
	if p.tuple.Src.Addr().Is4() {
		ip = make([]byte, 20)
		ip[0], ip[1] = 0x40|byte(5+len(p.ipOptions)/4), p.tos
		binary.BigEndian.PutUint16(ip[2:], uint16(20+len(p.ipOptions)+len(tcp)))
		binary.BigEndian.PutUint16(ip[6:], 0x4000|p.fragment)
		ip[8], ip[9] = p.ttl, protocol
		ip = slices.Concat(ip[:12], from, to, p.ipOptions)
		binary.BigEndian.PutUint16(ip[10:], ^sum(ip))
	} else {
		etherType = 0x86dd
		ip = binary.BigEndian.AppendUint32(nil, 6<<28|uint32(p.tos)<<20|p.flow)
		ip = binary.BigEndian.AppendUint16(ip, uint16(len(p.ipOptions)+len(tcp)))
		if len(p.ipOptions) > 0 {
			protocol = p.extension
		}
		ip = slices.Concat(ip, []byte{protocol, p.ttl}, from, to, p.ipOptions)
	}
	frame := slices.Concat(p.to[:], []byte{2, 0, 0, 0, 0, 9})
	if p.vlan {
		frame = append(frame, 0x81, 0)
		frame = binary.BigEndian.AppendUint16(frame, p.vlanID)
	}
	frame = binary.BigEndian.AppendUint16(frame, etherType)
	frame = slices.Concat(frame, ip, tcp, p.trailer)
	if p.truncateTo > 0 {
		frame = frame[:p.truncateTo]
	}
	return frame
}

// sum is RFC 1071's, not complemented, of pairs with a zero behind an odd end.
func sum(b []byte) uint16 {
	s := uint32(0)
	for i := 0; i < len(b); i += 2 {
		s += uint32(b[i]) << 8
		if i+1 < len(b) {
			s += uint32(b[i+1])
		}
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
