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

// translate sends a new connection to this host's port on to the server, if the client has a
// mapping there. Only packets to this host's own addresses are looked at, so on a router the
// traffic of others passes through untouched.
func translate(f family) rule {
	key := []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: f.source, Len: f.addr.Size()},
		&expr.Payload{DestRegister: f.afterAddress(), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
	return rule{
		text: fmt.Sprintf("meta l4proto tcp fib daddr type local"+
			" ct mark set %[1]s saddr . tcp dport map @%[2]s dnat %[1]s to %[1]s saddr . tcp dport map @%[3]s",
			f.name, f.marks.Name, f.servers.Name),
		exprs: slices.Concat(
			isTCP(f.nfproto),
			[]expr.Any{
				&expr.Fib{Register: reg, FlagDADDR: true, ResultADDRTYPE: true},
				equal(binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)),
			},
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

// oursGoto sends packets of our connections, both directions, to the limits.
func oursGoto(chain string) rule {
	return rule{
		text:  fmt.Sprintf("ct mark & %#x == %#x goto %s", markMask, markOurs, chain),
		exprs: append(isOurs(), &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}),
	}
}

// dropStrangers drops what would be forwarded only because we switched forwarding on: packets that
// begin a connection nobody asked this host to pass on. What other software translates or has
// accepted before (containers, a VPN) goes on.
func dropStrangers(f family) rule {
	return rule{
		text: fmt.Sprintf("meta nfproto %s iifname @%s ct state ! established,related ct status ! dnat counter drop",
			map[byte]string{unix.NFPROTO_IPV4: "ipv4", unix.NFPROTO_IPV6: "ipv6"}[f.nfproto], f.guarded.Name),
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

// limitConnections answers a connection over the member's quota with a reset, so that the client
// learns at once and its direct path simply goes on.
func limitConnections(set nft.Set, count int) rule {
	return rule{
		text: fmt.Sprintf("meta l4proto tcp ct state new add @%s { ct mark ct count over %d }"+
			" counter reject with tcp reset", set.Name, count),
		exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
			equal([]byte{unix.IPPROTO_TCP}),
			&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
			masked(stateNew),
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: []byte(noBits)},
			&expr.Ct{Key: expr.CtKeyMARK, Register: reg},
			&expr.Dynset{SrcRegKey: reg, SetName: set.Name, Operation: unix.NFT_DYNSET_OP_ADD,
				Exprs: []expr.Any{&expr.Connlimit{Count: uint32(count), Flags: expr.NFT_CONNLIMIT_F_INV}}},
			&expr.Counter{},
			&expr.Reject{Type: unix.NFT_REJECT_TCP_RST},
		},
	}
}

// minBurst lets at least two of the largest packets through that segmentation offload makes.
const minBurst = 128 << 10

// limitBandwidth drops what a member sends or gets over its rate; TCP takes that as congestion.
func limitBandwidth(set nft.Set, rate int64) rule {
	burst := max(rate/10, minBurst) // a tenth of a second
	return rule{
		text: fmt.Sprintf("update @%s { ct mark limit rate over %d bytes/second burst %d bytes } counter drop",
			set.Name, rate, burst),
		exprs: []expr.Any{
			&expr.Ct{Key: expr.CtKeyMARK, Register: reg},
			&expr.Dynset{SrcRegKey: reg, SetName: set.Name, Operation: unix.NFT_DYNSET_OP_UPDATE,
				Exprs: []expr.Any{&expr.Limit{Type: expr.LimitTypePktBytes, Rate: uint64(rate), Unit: expr.LimitTimeSecond,
					Burst: uint32(burst), Over: true}}},
			&expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictDrop},
		},
	}
}

func masquerade() rule {
	return rule{
		text:  fmt.Sprintf("ct mark & %#x == %#x masquerade", markMask, markOurs),
		exprs: append(isOurs(), &expr.Masq{}),
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
		masked(markMask),
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
