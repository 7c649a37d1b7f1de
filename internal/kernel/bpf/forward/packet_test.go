package forward

import (
	"encoding/binary"
	"slices"

	"github.com/detour-collective/dcol/internal/packet"
)

// sample is what the tests vary of a TCP packet in an Ethernet frame. Its wire form
// is built anew each time, with checksums over all of it: so that one built with
// other addresses is a model of what the program makes of this one.
type sample struct {
	tuple   Tuple
	ttl     byte
	tos     byte // or traffic class
	flow    uint32
	flags   packet.Flags
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

// forwarded is the packet as a router would send it on that translates addresses.
func (p sample) forwarded(out Tuple) sample {
	p.tuple = out
	p.ttl--
	return p
}

func (p sample) frame() []byte {
	timestamps := packet.Timestamps(0x01020304, 0x05060708)
	built := packet.Segment(p.tuple.Src, p.tuple.Dst, packet.TCP{
		Seq: p.seq, Ack: p.ack, Flags: p.flags, Options: []packet.Option{packet.NOP, packet.NOP, timestamps},
	}, p.payload)
	if h := built.V4; h != nil {
		h.TTL, h.TOS, h.Fragment, h.Options = p.ttl, p.tos, packet.DontFragment|p.fragment, p.ipOptions
	} else {
		built.V6.HopLimit, built.V6.Class, built.V6.FlowLabel = p.ttl, p.tos, p.flow
	}
	if err := built.Seal(); err != nil {
		panic(err)
	}
	if p.offset != 0 {
		built.TCP.Offset = p.offset
	}
	etherType := uint16(0x0800)
	if h := built.V4; h != nil {
		if p.protocol != 0 {
			h.Protocol = p.protocol
			h.SetChecksum()
		}
	} else {
		etherType = 0x86dd
		if p.protocol != 0 {
			built.V6.NextHeader = p.protocol
		}
		if len(p.ipOptions) > 0 {
			built.V6.NextHeader = p.extension
			built.V6.Extensions = []packet.Extension{{Kind: p.extension, Data: p.ipOptions}}
			built.V6.Length += uint16(len(p.ipOptions))
		}
	}
	frame := slices.Concat(p.to[:], []byte{2, 0, 0, 0, 0, 9})
	if p.vlan {
		frame = append(frame, 0x81, 0)
		frame = binary.BigEndian.AppendUint16(frame, p.vlanID)
	}
	frame = binary.BigEndian.AppendUint16(frame, etherType)
	frame = slices.Concat(frame, built.Bytes(), p.trailer)
	if p.truncateTo > 0 {
		frame = frame[:p.truncateTo]
	}
	return frame
}
