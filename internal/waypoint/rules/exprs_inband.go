package rules

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/netstate/nft"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// The option that names a SYN's server: kind and length, an experiment's id (RFC 6994), the server's
// IPv4 address.
const (
	optionKind   = 254
	optionLength = 8
	experiment   = 0xdc01

	lengthAt     = 1
	experimentAt = 2
	serverAt     = 4
)

func option(at, size uint32) expr.Any {
	return &expr.Exthdr{DestRegister: reg, Type: optionKind, Offset: at, Len: size, Op: expr.ExthdrOpTcpopt}
}

func optionText(at, size uint32) string {
	return fmt.Sprintf("tcp option @%d,%d,%d", optionKind, 8*at, 8*size)
}

func isOurOption() []expr.Any {
	return []expr.Any{option(experimentAt, 2), equal(binary.BigEndian.AppendUint16(nil, experiment))}
}

var isOurOptionText = fmt.Sprintf("%s %#x", optionText(experimentAt, 2), experiment)

// mayNameServer takes packets to this host aside that carry an option of the kind, whatever experiment it is of: an
// expression sees the first such option only, and ours may stand behind it. They come to no mapping: what is wrong
// with them is for a local service, or its absence, to answer.
func mayNameServer(f family, chain string) rule {
	return rule{
		text: fmt.Sprintf("meta nfproto %s meta l4proto tcp tcp option %d exists fib daddr type local goto %s", f.proto, optionKind, chain),
		exprs: slices.Concat(isTCP(f.nfproto), hasOption(), toThisHost(),
			[]expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}),
	}
}

func hasOption() []expr.Any {
	return []expr.Any{
		&expr.Exthdr{DestRegister: reg, Type: optionKind, Len: 1, Flags: unix.NFT_EXTHDR_F_PRESENT, Op: expr.ExthdrOpTcpopt},
		equal([]byte{1}),
	}
}

// translateNamed sends a new connection on to the server that its SYN names, at the same port. mark
// passes those of members and marks them.
func translateNamed(s *schema, markText string, mark []expr.Any) rule {
	return rule{
		text: fmt.Sprintf("meta nfproto %s %s %s %s %d tcp dport != @%s %s != @%s %s dnat ip to %s", s.four.proto, isSYNText,
			isOurOptionText, optionText(lengthAt, 1), optionLength, s.ports.Name, optionText(serverAt, 4), s.inBand.forbidden.Name,
			markText, optionText(serverAt, 4)),
		exprs: slices.Concat(
			isTCP(s.four.nfproto), isSYN(), isOurOption(),
			[]expr.Any{option(lengthAt, 1), equal([]byte{optionLength})},
			toAllowedPort(s.ports),
			[]expr.Any{option(serverAt, 4), &expr.Lookup{SourceRegister: reg, SetName: s.inBand.forbidden.Name, Invert: true}},
			mark,
			[]expr.Any{
				option(serverAt, 4),
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(s.four.nfproto), RegAddrMin: reg, Specified: false},
			},
		),
	}
}

// markByProof passes a packet that eBPF marked as a member's who is admitted from there.
func markByProof(s *schema) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: s.four.source, Len: s.four.addr.Size()},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: s.four.afterAddress()},
		&expr.Lookup{SourceRegister: reg, SetName: s.inBand.keyed.Name},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		&expr.Ct{Key: expr.CtKeyMARK, Register: reg, SourceRegister: true},
	}
}

// unmark clears the marks of packets that eBPF set.
func unmark() rule {
	const mask = oursMask | kindMask
	return rule{
		text: fmt.Sprintf("meta mark & %#x == %#x meta mark set 0x0", mask, markOf(wire.InBand)),
		exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
			masked(mask),
			equal(binary.NativeEndian.AppendUint32(nil, markOf(wire.InBand))),
			&expr.Immediate{Register: reg, Data: []byte(noBits)},
			&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg},
		},
	}
}

// stripOption lets the server see a SYN without the option, which is none of its business and which
// some network on the way may not like.
func stripOption() rule {
	return rule{
		text: fmt.Sprintf("meta l4proto tcp %s reset tcp option %d", isOurOptionText, optionKind),
		exprs: slices.Concat(
			[]expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}, equal([]byte{unix.IPPROTO_TCP})},
			isOurOption(),
			[]expr.Any{&nft.ResetTCPOption{Kind: optionKind}},
		),
	}
}
