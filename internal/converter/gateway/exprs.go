package gateway

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

// reg is a register of 16 bytes. reg32 is the first register of 4 bytes, in the same memory.
const (
	reg   = unix.NFT_REG_1
	reg32 = unix.NFT_REG32_00
)

// Flags of TCP, at offset 13 (RFC 9293, 3.1).
const (
	flagsAt = 13
	fin     = 1 << 0
	syn     = 1 << 1
	rst     = 1 << 2
	ack     = 1 << 4
)

// Offsets of the ports in TCP's header.
const (
	sourcePortAt = 0
	destPortAt   = 2
)

// MPTCP's option. The upper half of its third byte is the subtype (RFC 8684, 3.1).
const (
	kindMPTCP   = 30
	subtypeAt   = 2
	subtypeMask = 0xf0
	mpCapable   = 0x00
)

func rule(parts ...[]expr.Any) []expr.Any { return slices.Concat(parts...) }

func equal(b []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: b} }

func verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: kind, Chain: chain}}
}

func tcp() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}, equal([]byte{unix.IPPROTO_TCP})}
}

// flags matches segments with exactly these of SYN, ACK, FIN and RST.
func flags(set byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: flagsAt, Len: 1},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{fin | syn | rst | ack}, Xor: []byte{0}},
		equal([]byte{set}),
	}
}

// capable matches segments with MPTCP's option MP_CAPABLE.
func capable() []expr.Any {
	return []expr.Any{
		&expr.Exthdr{DestRegister: reg, Type: kindMPTCP, Offset: subtypeAt, Len: 1, Op: expr.ExthdrOpTcpopt},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{subtypeMask}, Xor: []byte{0}},
		equal([]byte{mpCapable}),
	}
}

// withoutMPTCP matches segments without an option of MPTCP.
func withoutMPTCP() []expr.Any {
	return []expr.Any{
		&expr.Exthdr{DestRegister: reg, Type: kindMPTCP, Len: 1, Flags: unix.NFT_EXTHDR_F_PRESENT, Op: expr.ExthdrOpTcpopt},
		equal([]byte{0}),
	}
}

func in(s nft.Set) []expr.Any { return []expr.Any{&expr.Lookup{SourceRegister: reg, SetName: s.Name}} }

func fromLAN() []expr.Any {
	return append([]expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg}}, in(lan)...)
}

// toLAN matches packets that are routed to one of the LANs.
func toLAN() []expr.Any {
	return append([]expr.Any{&expr.Fib{Register: reg, FlagDADDR: true, ResultOIFNAME: true}}, in(lan)...)
}

// notUnicast matches packets to this host, to several hosts, and to IPv6 addresses without a route.
func notUnicast() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: native(unix.RTN_UNICAST)},
	}
}

// notOwn matches packets from an address that is not this host's.
func notOwn() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg, FlagSADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: native(unix.RTN_LOCAL)},
	}
}

func destinationPort(to uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: to, Base: expr.PayloadBaseTransportHeader, Offset: destPortAt, Len: 2}}
}

// connection matches connections whose mark has this value in the bits of mask.
func connection(mask, value uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: native(mask), Xor: native(0)},
		equal(native(value)),
	}
}

// packet matches packets whose mark has this value in the bits of mask.
func packet(mask, value uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: native(mask), Xor: native(0)},
		equal(native(value)),
	}
}

// markConnection sets the gateway's bits of the connection's mark.
func (m marks) markConnection(to uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: native(^m.both()), Xor: native(to)},
		&expr.Ct{Key: expr.CtKeyMARK, Register: reg, SourceRegister: true},
	}
}

// markPacket marks the packet so that it is delivered to this host.
func (m marks) markPacket() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: native(^m.both()), Xor: native(m.taken)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg, SourceRegister: true},
	}
}

func (f family) is() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg}, equal([]byte{f.nfproto})}
}

func (f family) destination() []expr.Any { return f.address(f.dest) }

func (f family) address(offset uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.size}}
}

// called loads the address and port of a packet's destination, the server.
func (f family) called() []expr.Any {
	return append(f.destination(), destinationPort(reg32+f.size/4)...)
}

// answering loads the address and port of a packet's source, the server.
func (f family) answering() []expr.Any {
	return append(f.address(f.source),
		&expr.Payload{DestRegister: reg32 + f.size/4, Base: expr.PayloadBaseTransportHeader, Offset: sourcePortAt, Len: 2})
}

// tproxy gives the packet to the transparent listener at a port of the loopback address. If nobody listens there, the
// rule ends, and the packet passes.
func (f family) tproxy(port uint16) []expr.Any {
	at := reg32 + f.size/4
	return []expr.Any{
		&expr.Immediate{Register: reg, Data: f.loopback.AsSlice()},
		&expr.Immediate{Register: at, Data: bigEndian(port)},
		&expr.TProxy{Family: f.nfproto, TableFamily: unix.NFPROTO_INET, RegAddr: reg, RegPort: at},
	}
}

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func bigEndian(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }

func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}
