package gateway

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft/match"
)

func fromLAN() []expr.Any {
	return append([]expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: match.Reg}}, match.In(lan)...)
}

// toLAN matches packets that are routed to one of the LANs.
func toLAN() []expr.Any {
	return append([]expr.Any{&expr.Fib{Register: match.Reg, FlagDADDR: true, ResultOIFNAME: true}}, match.In(lan)...)
}

// notOwn matches packets from an address that is not this host's.
func notOwn() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: match.Reg, FlagSADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: match.Reg, Data: native(unix.RTN_LOCAL)},
	}
}

// connection matches connections whose mark has this value in the bits of mask.
func connection(mask, value uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyMARK, Register: match.Reg},
		&expr.Bitwise{SourceRegister: match.Reg, DestRegister: match.Reg, Len: 4, Mask: native(mask), Xor: native(0)},
		match.Equal(native(value)),
	}
}

// packet matches packets whose mark has this value in the bits of mask.
func packet(mask, value uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: match.Reg},
		&expr.Bitwise{SourceRegister: match.Reg, DestRegister: match.Reg, Len: 4, Mask: native(mask), Xor: native(0)},
		match.Equal(native(value)),
	}
}

// markConnection sets the gateway's bits of the connection's mark.
func (m marks) markConnection(to uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyMARK, Register: match.Reg},
		&expr.Bitwise{SourceRegister: match.Reg, DestRegister: match.Reg, Len: 4, Mask: native(^m.both()), Xor: native(to)},
		&expr.Ct{Key: expr.CtKeyMARK, Register: match.Reg, SourceRegister: true},
	}
}

// markPacket marks the packet so that it is delivered to this host.
func (m marks) markPacket() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: match.Reg},
		&expr.Bitwise{SourceRegister: match.Reg, DestRegister: match.Reg, Len: 4, Mask: native(^m.both()), Xor: native(m.taken)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: match.Reg, SourceRegister: true},
	}
}

// tproxy gives the packet to the transparent listener at a port of the loopback address. If nobody listens there, the
// rule ends, and the packet passes.
func (f family) tproxy(port uint16) []expr.Any {
	at := match.Reg32 + f.Size/4
	return []expr.Any{
		&expr.Immediate{Register: match.Reg, Data: f.loopback.AsSlice()},
		&expr.Immediate{Register: at, Data: bigEndian(port)},
		&expr.TProxy{Family: f.NFProto, TableFamily: unix.NFPROTO_INET, RegAddr: match.Reg, RegPort: at},
	}
}

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func bigEndian(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }

func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}
