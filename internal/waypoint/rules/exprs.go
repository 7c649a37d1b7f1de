package rules

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/netstate/nft"
)

// A register of 16 bytes, and the four of 4 bytes that are the same memory.
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

// translate sends a new connection to this host's port on to the server, if the client has a
// mapping there. Only packets to this host's own addresses are looked at, so on a router the
// traffic of others passes through untouched.
func translate(f family) rule {
	key := []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: f.source, Len: f.addr.Size()},
		&expr.Payload{DestRegister: f.afterAddress(), Base: expr.PayloadBaseTransportHeader, Offset: destPort, Len: 2},
	}
	return rule{
		text: fmt.Sprintf("meta l4proto tcp fib daddr type local"+
			" ct mark set %[1]s saddr . tcp dport map @%[2]s dnat %[1]s to %[1]s saddr . tcp dport map @%[3]s",
			f.name, f.marks.Name, f.servers.Name),
		exprs: slices.Concat(
			isTCP(f.nfproto),
			toThisHost(),
			key,
			[]expr.Any{
				&expr.Lookup{SourceRegister: reg, DestRegister: reg, IsDestRegSet: true, SetName: f.marks.Name},
				&expr.Ct{Key: expr.CtKeyMARK, Register: reg, SourceRegister: true},
			},
			key,
			[]expr.Any{
				&expr.Lookup{SourceRegister: reg, DestRegister: reg, IsDestRegSet: true, SetName: f.servers.Name},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.nfproto), RegAddrMin: reg, RegProtoMin: f.afterAddress(), Specified: true},
			},
		),
	}
}

// afterAddress is the 4-byte register that follows an address in reg.
func (f family) afterAddress() uint32 { return reg32 + f.addr.Size()/4 }

// oursGoto sends packets of our connections, both directions, to what concerns only these.
func oursGoto(chain string) rule {
	return rule{
		text:  fmt.Sprintf("ct mark & %#x == %#x goto %s", oursMask, markOurs, chain),
		exprs: append(isOurs(), &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}),
	}
}

// dropStrangers drops what would be forwarded only because we switched forwarding on: packets that
// begin a connection nobody asked this host to pass on. What other software translates or has
// accepted before (containers, a VPN) goes on.
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

// newJump takes the packets that open a connection aside.
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

func masquerade() rule {
	return rule{
		text:  fmt.Sprintf("ct mark & %#x == %#x masquerade", oursMask, markOurs),
		exprs: append(isOurs(), &expr.Masq{}),
	}
}

func toThisHost() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg, FlagDADDR: true, ResultADDRTYPE: true},
		equal(binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)),
	}
}

// isSYN passes what asks for a connection and nothing else.
func isSYN() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: tcpFlags, Len: 1},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{flagFIN | flagSYN | flagRST | flagACK}, Xor: []byte{0}},
		equal([]byte{flagSYN}),
	}
}

const isSYNText = "tcp flags & (fin | syn | rst | ack) == syn"

// toAllowed passes what is to none of the servers and ports of two sets.
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

// markBySource marks a connection as the member's that its source is mapped to, if it is to one.
func (f family) markBySource(marks nft.Set) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: f.source, Len: f.addr.Size()},
		&expr.Lookup{SourceRegister: reg, DestRegister: reg, IsDestRegSet: true, SetName: marks.Name},
		&expr.Ct{Key: expr.CtKeyMARK, Register: reg, SourceRegister: true},
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

func isOurs() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyMARK, Register: reg},
		masked(oursMask),
		equal(binary.NativeEndian.AppendUint32(nil, markOurs)),
	}
}

func equal(data []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: data}
}

func masked(bits uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4,
		Mask: binary.NativeEndian.AppendUint32(nil, bits), Xor: []byte(noBits)}
}
