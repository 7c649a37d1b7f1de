// Package match has expressions for nftables rules that look at TCP handshakes: their flags, MPTCP's option, and which
// server they are with.
package match

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

// Reg is the register of 16 bytes that the expressions use. Reg32 is the first register of 4 bytes, in the same memory.
const (
	Reg   = unix.NFT_REG_1
	Reg32 = unix.NFT_REG32_00
)

// Flags of TCP, at offset 13 (RFC 9293, 3.1).
const (
	FIN = 1 << 0
	SYN = 1 << 1
	RST = 1 << 2
	ACK = 1 << 4

	flagsAt = 13
)

// Offsets of the ports in TCP's header.
const (
	sourcePortAt = 0
	destPortAt   = 2
)

// MPTCP's option (RFC 8684, 3.1). Its third byte has the subtype in the upper half. In MP_CAPABLE, subtype 0, the lower
// half is the version.
const (
	kindMPTCP   = 30
	subtypeAt   = 2
	mpCapableV1 = 0x01
	subtypeBits = 0xf0
	fastClose   = 0x70
)

// IPv6's fragment header (RFC 8200, 4.5).
const (
	kindFragment    = 44
	fragmentFlagsAt = 3
	moreFragments   = 0x01
)

// Rule joins expressions to a rule.
func Rule(parts ...[]expr.Any) []expr.Any { return slices.Concat(parts...) }

// Equal compares the register.
func Equal(b []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: Reg, Data: b} }

// Verdict counts the packets that get a verdict. chain is the chain that a jump or goto leads to.
func Verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: kind, Chain: chain}}
}

// TCP matches packets of TCP.
func TCP() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: Reg}, Equal([]byte{unix.IPPROTO_TCP})}
}

// Flags matches segments with exactly these of SYN, ACK, FIN and RST.
func Flags(set byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: Reg, Base: expr.PayloadBaseTransportHeader, Offset: flagsAt, Len: 1},
		&expr.Bitwise{SourceRegister: Reg, DestRegister: Reg, Len: 1, Mask: []byte{FIN | SYN | RST | ACK}, Xor: []byte{0}},
		Equal([]byte{set}),
	}
}

// Resets matches segments with RST, whatever their other flags.
func Resets() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: Reg, Base: expr.PayloadBaseTransportHeader, Offset: flagsAt, Len: 1},
		&expr.Bitwise{SourceRegister: Reg, DestRegister: Reg, Len: 1, Mask: []byte{RST}, Xor: []byte{0}},
		Equal([]byte{RST}),
	}
}

// Capable matches segments with the option MP_CAPABLE of version 1. Linux speaks no other version, so an answer with
// another one makes its connection plain TCP. If a segment has several options of MPTCP, nftables sees only the first. It
// also sees options behind the end of the list, which Linux does not.
func Capable() []expr.Any {
	return []expr.Any{
		&expr.Exthdr{DestRegister: Reg, Type: kindMPTCP, Offset: subtypeAt, Len: 1, Op: expr.ExthdrOpTcpopt},
		Equal([]byte{mpCapableV1}),
	}
}

// FastClose matches segments whose first option of MPTCP is MP_FASTCLOSE, which ends a connection (RFC 8684, 3.5).
func FastClose() []expr.Any {
	return []expr.Any{
		&expr.Exthdr{DestRegister: Reg, Type: kindMPTCP, Offset: subtypeAt, Len: 1, Op: expr.ExthdrOpTcpopt},
		&expr.Bitwise{SourceRegister: Reg, DestRegister: Reg, Len: 1, Mask: []byte{subtypeBits}, Xor: []byte{0}},
		Equal([]byte{fastClose}),
	}
}

// WithoutMPTCP matches segments without an option of MPTCP.
func WithoutMPTCP() []expr.Any {
	return []expr.Any{
		&expr.Exthdr{DestRegister: Reg, Type: kindMPTCP, Len: 1, Flags: unix.NFT_EXTHDR_F_PRESENT, Op: expr.ExthdrOpTcpopt},
		Equal([]byte{0}),
	}
}

// Cut matches IPv6 packets that are the first of several fragments, whose TCP options may be in another one. At the hooks
// for a host's own packets, those of IPv4 are whole again.
func Cut() []expr.Any {
	return []expr.Any{
		&expr.Exthdr{DestRegister: Reg, Type: kindFragment, Offset: fragmentFlagsAt, Len: 1, Op: expr.ExthdrOpIpv6},
		&expr.Bitwise{SourceRegister: Reg, DestRegister: Reg, Len: 1, Mask: []byte{moreFragments}, Xor: []byte{0}},
		Equal([]byte{moreFragments}),
	}
}

// NotUnicast matches packets to this host, to several hosts, and to IPv6 addresses without a route.
func NotUnicast() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: Reg, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: Reg, Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_UNICAST)},
	}
}

// DestinationPort loads the port that a segment goes to.
func DestinationPort() []expr.Any { return port(Reg, destPortAt) }

// SourcePort loads the port that a segment comes from.
func SourcePort() []expr.Any { return port(Reg, sourcePortAt) }

func port(to, offset uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: to, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}}
}

// In matches if the loaded key is in a set.
func In(s nft.Set) []expr.Any { return []expr.Any{&expr.Lookup{SourceRegister: Reg, SetName: s.Name}} }

// Put adds the loaded key to a set, or renews its entry.
func Put(s nft.Set, lasts time.Duration) []expr.Any {
	return []expr.Any{&expr.Dynset{SrcRegKey: Reg, SetName: s.Name, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: lasts}}
}

// Drop removes the loaded key from a set.
func Drop(s nft.Set) []expr.Any {
	const remove = 2 // NFT_DYNSET_OP_DELETE
	return []expr.Any{&expr.Dynset{SrcRegKey: Reg, SetName: s.Name, Operation: remove}}
}

// Family has what differs between IPv4 and IPv6.
type Family struct {
	NFProto byte
	Addr    nft.Type
	Size    uint32 // of an address

	source, dest uint32 // offsets of the addresses in the header
}

// IPv4 and IPv6 are the families.
var (
	IPv4 = Family{NFProto: unix.NFPROTO_IPV4, Addr: nft.IPv4Addr, Size: 4, source: 12, dest: 16}
	IPv6 = Family{NFProto: unix.NFPROTO_IPV6, Addr: nft.IPv6Addr, Size: 16, source: 8, dest: 24}
)

// Is matches packets of the family.
func (f Family) Is() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: Reg}, Equal([]byte{f.NFProto})}
}

// Destination loads the address that a packet goes to.
func (f Family) Destination() []expr.Any { return f.address(Reg, f.dest) }

func (f Family) address(to, offset uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: to, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.Size}}
}

// port is the register of the port behind the loaded address, and behind the register of another address and port.
func (f Family) port() uint32   { return Reg32 + f.Size/4 }
func (f Family) second() uint32 { return f.port() + 1 }

// Called loads the address and port of a segment's destination, the server.
func (f Family) Called() []expr.Any { return append(f.Destination(), port(f.port(), destPortAt)...) }

// Answering loads the address and port of a segment's source, the server.
func (f Family) Answering() []expr.Any {
	return append(f.address(Reg, f.source), port(f.port(), sourcePortAt)...)
}

// Calling loads the address and port of a segment's destination, the server, and then those of its source.
func (f Family) Calling() []expr.Any {
	return slices.Concat(f.Called(), f.address(f.second(), f.source), port(f.second()+f.Size/4, sourcePortAt))
}

// Answered loads the address and port of a segment's source, the server, and then those of its destination.
func (f Family) Answered() []expr.Any {
	return slices.Concat(f.Answering(), f.address(f.second(), f.dest), port(f.second()+f.Size/4, destPortAt))
}

// Of returns those of the prefixes that are of the family.
func (f Family) Of(prefixes []netip.Prefix) (list []netip.Prefix) {
	for _, p := range prefixes {
		if p.Addr().Is4() == (f.NFProto == unix.NFPROTO_IPV4) {
			list = append(list, p)
		}
	}
	return list
}

// Prefixes returns the elements of a set of intervals. These may not overlap, so a prefix in another one is left out.
func Prefixes(prefixes []netip.Prefix) (elements []nft.Element) {
	prefixes = slices.Clone(prefixes)
	slices.SortStableFunc(prefixes, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	var kept []netip.Prefix
	for _, p := range prefixes {
		if !slices.ContainsFunc(kept, p.Overlaps) {
			kept = append(kept, p.Masked())
		}
	}
	for _, p := range kept {
		first := p.Addr().AsSlice()
		last := slices.Clone(first)
		for i := p.Bits(); i < p.Addr().BitLen(); i++ {
			last[i/8] |= 0x80 >> (i % 8)
		}
		elements = append(elements, nft.Element{Key: first, Last: last})
	}
	return elements
}

// Ports returns the elements of a set of ports.
func Ports(ports []uint16) (elements []nft.Element) {
	for _, port := range ports {
		elements = append(elements, nft.Element{Key: binary.BigEndian.AppendUint16(nil, port)})
	}
	return elements
}
