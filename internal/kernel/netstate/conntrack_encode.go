package netstate

import (
	"encoding/binary"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ctnetlinkRequest returns a request for all entries with a mark.
func ctnetlinkRequest(msg uint16, flags netlink.HeaderFlags, match MarkMatch) netlink.Message {
	b := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0} // struct nfgenmsg
	b = appendAttribute(b, ctaMark, binary.BigEndian.AppendUint32(nil, match.Value))
	b = appendAttribute(b, ctaMarkMask, binary.BigEndian.AppendUint32(nil, match.Mask))
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | msg), Flags: flags},
		Data:   b,
	}
}

// deleteRequest returns a request to remove one TCP entry.
func deleteRequest(origin Tuple) netlink.Message {
	return entryRequest(ctMsgDelete, netlink.Request|netlink.Acknowledge, origin)
}

// relaxRequest returns a request that makes a TCP entry accept packets outside its window, forget
// acknowledgements, and live for timeout unless that is 0.
func relaxRequest(origin Tuple, timeout time.Duration) netlink.Message {
	flags := []byte{tcpBeLiberal, tcpBeLiberal | tcpMaxAckSet} // struct nf_ct_tcp_flags: flags, mask
	tcp := appendAttribute(nil, ctaProtoInfoTCPFlagsOrig, flags)
	tcp = appendAttribute(tcp, ctaProtoInfoTCPFlagsRply, flags)
	m := entryRequest(ctMsgNew, netlink.Request|netlink.Acknowledge, origin)
	if timeout > 0 {
		m.Data = appendAttribute(m.Data, ctaTimeout, binary.BigEndian.AppendUint32(nil, uint32(timeout.Seconds())))
	}
	m.Data = appendAttribute(m.Data, ctaProtoInfo|unix.NLA_F_NESTED, appendAttribute(nil, ctaProtoInfoTCP|unix.NLA_F_NESTED, tcp))
	return m
}

// entryRequest returns a request for one TCP entry, named by its original direction.
func entryRequest(msg uint16, flags netlink.HeaderFlags, origin Tuple) netlink.Message {
	family, src, dst := byte(unix.AF_INET), uint16(ctaIPv4Src), uint16(ctaIPv4Dst)
	if origin.Src.Addr().Is6() {
		family, src, dst = unix.AF_INET6, ctaIPv6Src, ctaIPv6Dst
	}
	ip := appendAttribute(nil, src, origin.Src.Addr().AsSlice())
	ip = appendAttribute(ip, dst, origin.Dst.Addr().AsSlice())
	proto := appendAttribute(nil, ctaProtoNum, []byte{unix.IPPROTO_TCP})
	proto = appendAttribute(proto, ctaProtoSrcPort, binary.BigEndian.AppendUint16(nil, origin.Src.Port()))
	proto = appendAttribute(proto, ctaProtoDstPort, binary.BigEndian.AppendUint16(nil, origin.Dst.Port()))
	tuple := appendAttribute(nil, ctaTupleIP|unix.NLA_F_NESTED, ip)
	tuple = appendAttribute(tuple, ctaTupleProto|unix.NLA_F_NESTED, proto)
	return netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | msg),
			Flags: flags,
		},
		Data: appendAttribute([]byte{family, unix.NFNETLINK_V0, 0, 0}, ctaTupleOrig|unix.NLA_F_NESTED, tuple),
	}
}

func appendAttribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.NLA_HDRLEN+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	for len(b)%unix.NLA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}
