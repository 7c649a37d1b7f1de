package netstate

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Flow is a TCP conntrack entry. Origin has the addresses of the first packet, and Reply those of the packets that
// answer it. After address translation, Reply.Src is the real server and Reply.Dst this host's source address.
type Flow struct {
	Origin, Reply Tuple
	Mark          uint32
	// Established is set if the handshake is complete and neither end has begun to close. Events of
	// new entries do not have it yet.
	Established bool
	// Helped is set if a conntrack helper reads the flow's data, or its sequence numbers are
	// translated. Events do not have it.
	Helped bool
	// BytesOrigin and BytesReply count bytes of IP packets by direction. They are zero unless
	// nf_conntrack_acct is on, and in events of new entries.
	BytesOrigin, BytesReply uint64
}

// Tuple is one direction of a flow.
type Tuple struct{ Src, Dst netip.AddrPort }

// FlowEvent reports a flow's creation, establishment, or end with the final counters.
type FlowEvent struct {
	Flow
	Closed bool
}

// From include/uapi/linux/netfilter/nfnetlink_conntrack.h and nfnetlink.h.
const (
	nfgenmsgSize = 4

	ctMsgNew         = 0
	ctMsgGet         = 1
	ctMsgDelete      = 2
	ctMsgGetStatsCPU = 4

	groupConntrackNew     = 1
	groupConntrackUpdate  = 2
	groupConntrackDestroy = 3

	ctaTupleOrig     = 1
	ctaTupleReply    = 2
	ctaStatus        = 3
	ctaProtoInfo     = 4
	ctaHelp          = 5
	ctaTimeout       = 7
	ctaMark          = 8
	ctaCountersOrig  = 9
	ctaCountersReply = 10
	ctaMarkMask      = 21

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3

	ctaCountersBytes = 2

	ctaProtoInfoTCP          = 1
	ctaProtoInfoTCPState     = 1
	ctaProtoInfoTCPFlagsOrig = 4
	ctaProtoInfoTCPFlagsRply = 5

	statusSeqAdjust = 1 << 6 // enum ip_conntrack_status of nf_conntrack_common.h

	tcpEstablished = 3 // enum tcp_conntrack of nf_conntrack_tcp.h

	// Flags of either direction, from the same file.
	tcpBeLiberal = 0x08
	tcpMaxAckSet = 0x20
)

// decodeFlow decodes a ctnetlink message that begins with its struct nfgenmsg. ok is false unless it is a complete TCP
// entry.
func decodeFlow(b []byte) (f Flow, ok bool) {
	if len(b) < nfgenmsgSize {
		return Flow{}, false
	}
	var haveOrigin, haveReply bool
	ok = attributes(b[nfgenmsgSize:], func(kind uint16, value []byte) bool {
		switch kind {
		case ctaTupleOrig:
			f.Origin, haveOrigin = decodeTuple(value)
			return haveOrigin
		case ctaTupleReply:
			f.Reply, haveReply = decodeTuple(value)
			return haveReply
		case ctaMark:
			return beUint(value, 4, func(v uint64) { f.Mark = uint32(v) })
		case ctaStatus:
			return beUint(value, 4, func(v uint64) { f.Helped = f.Helped || v&statusSeqAdjust != 0 })
		case ctaHelp:
			f.Helped = true
		case ctaProtoInfo:
			return decodeState(value, &f.Established)
		case ctaCountersOrig:
			return decodeBytes(value, &f.BytesOrigin)
		case ctaCountersReply:
			return decodeBytes(value, &f.BytesReply)
		}
		return true
	})
	if !ok || !haveOrigin || !haveReply {
		return Flow{}, false
	}
	return f, true
}

func decodeTuple(b []byte) (t Tuple, ok bool) {
	var src, dst netip.Addr
	var proto, srcPort, dstPort uint64
	ok = attributes(b, func(kind uint16, value []byte) bool {
		switch kind {
		case ctaTupleIP:
			return attributes(value, func(kind uint16, value []byte) bool {
				switch kind {
				case ctaIPv4Src, ctaIPv6Src:
					src, ok = netip.AddrFromSlice(value)
					return ok
				case ctaIPv4Dst, ctaIPv6Dst:
					dst, ok = netip.AddrFromSlice(value)
					return ok
				}
				return true
			})
		case ctaTupleProto:
			return attributes(value, func(kind uint16, value []byte) bool {
				switch kind {
				case ctaProtoNum:
					return beUint(value, 1, func(v uint64) { proto = v })
				case ctaProtoSrcPort:
					return beUint(value, 2, func(v uint64) { srcPort = v })
				case ctaProtoDstPort:
					return beUint(value, 2, func(v uint64) { dstPort = v })
				}
				return true
			})
		}
		return true
	})
	t = Tuple{Src: netip.AddrPortFrom(src, uint16(srcPort)), Dst: netip.AddrPortFrom(dst, uint16(dstPort))}
	return t, ok && proto == unix.IPPROTO_TCP && src.IsValid() && dst.IsValid()
}

func decodeState(b []byte, established *bool) bool {
	return attributes(b, func(kind uint16, value []byte) bool {
		if kind != ctaProtoInfoTCP {
			return true
		}
		return attributes(value, func(kind uint16, value []byte) bool {
			if kind != ctaProtoInfoTCPState {
				return true
			}
			return beUint(value, 1, func(v uint64) { *established = v == tcpEstablished })
		})
	})
}

func decodeBytes(b []byte, bytes *uint64) bool {
	return attributes(b, func(kind uint16, value []byte) bool {
		if kind != ctaCountersBytes {
			return true
		}
		return beUint(value, 8, func(v uint64) { *bytes = v })
	})
}

// beUint decodes a big-endian number of exactly size bytes.
func beUint(b []byte, size int, set func(uint64)) bool {
	if len(b) != size {
		return false
	}
	var v uint64
	for _, c := range b {
		v = v<<8 | uint64(c)
	}
	set(v)
	return true
}

// attributes calls each for netlink attributes until it returns false. It reports whether all were
// well-formed and each always returned true. (netlink.AttributeDecoder does the same with an
// allocation per level, which matters at thousands of events a second.)
func attributes(b []byte, each func(kind uint16, value []byte) bool) bool {
	for len(b) > 0 {
		if len(b) < unix.NLA_HDRLEN {
			return false
		}
		size := int(binary.NativeEndian.Uint16(b))
		kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		if size < unix.NLA_HDRLEN || size > len(b) {
			return false
		}
		if !each(kind, b[unix.NLA_HDRLEN:size]) {
			return false
		}
		b = b[min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
	}
	return true
}
