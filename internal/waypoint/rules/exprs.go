package rules

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// Registers: one of 16 bytes, and the four of 4 bytes in the same memory.
const (
	reg    = unix.NFT_REG_1
	reg32  = unix.NFT_REG32_00
	noBits = "\x00\x00\x00\x00"
)

// Bits of ct state and ct status, from include/uapi/linux/netfilter/nf_conntrack_common.h.
const (
	stateEstablished = 1 << 1
	stateRelated     = 1 << 2
	stateNew         = 1 << 3
	statusDNAT       = 1 << 5
)

// Offsets in the TCP header, and flags of its offset 13 (RFC 9293, 3.1).
const (
	destPort = 2
	tcpFlags = 13
	flagFIN  = 1 << 0
	flagSYN  = 1 << 1
	flagRST  = 1 << 2
	flagACK  = 1 << 4
)

// markMapped marks a new connection to a mapping's port as belonging to the mapping's member. It matches only packets to
// this host's own addresses, so on a router it does not affect other traffic.
func markMapped(f family) rule {
	return rule{
		text:  fmt.Sprintf("meta l4proto tcp fib daddr type local %s saddr . tcp dport vmap @%s", f.name, f.marks.Name),
		exprs: slices.Concat(isTCP(f.nfproto), toThisHost(), f.loadMapping(), []expr.Any{jumpBy(f.marks)}),
	}
}

// translate rewrites the destination of a connection that markMapped has marked to the server.
func translate(f family, m Marks) rule {
	return rule{
		text: fmt.Sprintf("meta l4proto tcp ct mark & %#x == %#x dnat %[3]s to %[3]s saddr . tcp dport map @%[4]s",
			m.kinds(), m.kind(wire.Mapped), f.name, f.servers.Name),
		exprs: slices.Concat(
			isTCP(f.nfproto),
			isMarked(m.kinds(), m.kind(wire.Mapped)),
			f.loadMapping(),
			[]expr.Any{
				&expr.Lookup{SourceRegister: reg, DestRegister: reg, IsDestRegSet: true, SetName: f.servers.Name},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.nfproto), RegAddrMin: reg, RegProtoMin: f.afterAddress(), Specified: true},
			},
		),
	}
}

// loadMapping loads the key of mappings.
func (f family) loadMapping() []expr.Any {
	return append(f.loadSource(),
		&expr.Payload{DestRegister: f.afterAddress(), Base: expr.PayloadBaseTransportHeader, Offset: destPort, Len: 2})
}

// loadSource loads a packet's source address.
func (f family) loadSource() []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: f.source, Len: f.addr.Size()}}
}

// jumpBy jumps to the chain that a map of verdicts has for the loaded key. If the map has none, the rule ends.
func jumpBy(set nft.Set) expr.Any {
	return &expr.Lookup{SourceRegister: reg, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: set.Name}
}

// afterAddress returns the 4-byte register after an address in reg.
func (f family) afterAddress() uint32 { return reg32 + f.addr.Size()/4 }

// oursGoto sends packets of our connections, in both directions, to a chain.
func oursGoto(m Marks, chain string) rule {
	return rule{
		text:  fmt.Sprintf("ct mark & %#x == %#x goto %s", m.ours(), m.ours(), chain),
		exprs: append(isMarked(m.ours(), m.ours()), &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}),
	}
}

// dropStrangers drops packets that would be forwarded only because we turned on forwarding: those that begin a connection
// which no rule of this host allows. Connections that other software translates or has accepted (containers, a VPN) are not
// affected.
func dropStrangers(f family) rule {
	return rule{
		text: fmt.Sprintf("meta nfproto %s iifname @%s ct state ! established,related ct status ! dnat counter drop",
			f.proto, f.guarded.Name),
		exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg},
			equal([]byte{f.nfproto}),
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg},
			&expr.Lookup{SourceRegister: reg, SetName: f.guarded.Name},
			&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
			masked(stateEstablished | stateRelated),
			equal([]byte(noBits)),
			&expr.Ct{Key: expr.CtKeySTATUS, Register: reg},
			masked(statusDNAT),
			equal([]byte(noBits)),
			&expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictDrop},
		},
	}
}

// newJump sends the packets that open a connection to a chain.
func newJump(chain string) rule {
	return rule{
		text: fmt.Sprintf("meta l4proto tcp ct state new jump %s", chain),
		exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
			equal([]byte{unix.IPPROTO_TCP}),
			&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
			masked(stateNew),
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: []byte(noBits)},
			&expr.Verdict{Kind: expr.VerdictJump, Chain: chain},
		},
	}
}

func masquerade(m Marks) rule {
	return rule{
		text:  fmt.Sprintf("ct mark & %#x == %#x masquerade", m.ours(), m.ours()),
		exprs: append(isMarked(m.ours(), m.ours()), &expr.Masq{}),
	}
}

func toThisHost() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg, FlagDADDR: true, ResultADDRTYPE: true},
		equal(binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)),
	}
}

// isSYN matches packets that open a connection.
func isSYN() []expr.Any { return compareFlags(expr.CmpOpEq) }

// isNoSYN matches all other packets.
func isNoSYN() []expr.Any { return compareFlags(expr.CmpOpNeq) }

const (
	isSYNText   = "tcp flags & (fin | syn | rst | ack) == syn"
	isNoSYNText = "tcp flags & (fin | syn | rst | ack) != syn"
)

func compareFlags(op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: tcpFlags, Len: 1},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{flagFIN | flagSYN | flagRST | flagACK}, Xor: []byte{0}},
		&expr.Cmp{Op: op, Register: reg, Data: []byte{flagSYN}},
	}
}

// toAllowed matches packets to servers and ports that are not in the two sets.
func (f family) toAllowed(ports nft.Set) []expr.Any {
	return append([]expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: f.dest, Len: f.addr.Size()},
		&expr.Lookup{SourceRegister: reg, SetName: f.forbidden.Name, Invert: true},
	}, toAllowedPort(ports)...)
}

func toAllowedPort(ports nft.Set) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: destPort, Len: 2},
		&expr.Lookup{SourceRegister: reg, SetName: ports.Name, Invert: true},
	}
}

func isTCP(nfproto byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg},
		equal([]byte{nfproto}),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		equal([]byte{unix.IPPROTO_TCP}),
	}
}

// isMarked matches connections whose mark has a value in the bits of a mask.
func isMarked(mask, value uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyMARK, Register: reg},
		masked(mask),
		equal(binary.NativeEndian.AppendUint32(nil, value)),
	}
}

// setMark sets a connection's mark, but leaves the bits that are not ours.
func setMark(m Marks, mark uint32) rule {
	others := ^uint32(m)
	return rule{
		text: fmt.Sprintf("ct mark set ct mark & %#x | %#x", others, mark),
		exprs: []expr.Any{
			&expr.Ct{Key: expr.CtKeyMARK, Register: reg},
			&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4,
				Mask: binary.NativeEndian.AppendUint32(nil, others), Xor: binary.NativeEndian.AppendUint32(nil, mark)},
			&expr.Ct{Key: expr.CtKeyMARK, Register: reg, SourceRegister: true},
		},
	}
}

func equal(data []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: data}
}

func masked(bits uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4,
		Mask: binary.NativeEndian.AppendUint32(nil, bits), Xor: []byte(noBits)}
}
