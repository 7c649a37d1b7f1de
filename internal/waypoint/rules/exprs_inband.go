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

// mayNameServer sends packets to this host that have an option of the in-band kind to a chain, whatever the option's
// experiment id is. The kernel's expression sees only the first option of a kind, and ours may be a later one. Such
// packets use no mapping. If they name no server correctly, they go to a local service, or are reset.
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

// markNamed marks a new connection whose SYN names a server. The mark is that of the member to which members maps the
// key.
func markNamed(s *schema, keyText string, key []expr.Any, members nft.Set) rule {
	return rule{
		text: fmt.Sprintf("meta nfproto %s %s %s %s %d tcp dport != @%s %s != @%s %s vmap @%s", s.four.proto, isSYNText, isOurOptionText,
			optionText(lengthAt, 1), optionLength, s.ports.Name, optionText(serverAt, 4), s.inBand.forbidden.Name, keyText, members.Name),
		exprs: slices.Concat(
			isTCP(s.four.nfproto), isSYN(), isOurOption(),
			[]expr.Any{option(lengthAt, 1), equal([]byte{optionLength})},
			toAllowedPort(s.ports),
			[]expr.Any{option(serverAt, 4), &expr.Lookup{SourceRegister: reg, SetName: s.inBand.forbidden.Name, Invert: true}},
			key,
			[]expr.Any{jumpBy(members)},
		),
	}
}

// translateNamed rewrites the destination of a connection that markNamed has marked: to the server that its SYN names,
// at the same port.
//
// From version 1.1 on, nft refuses a rule that translates to a part of an option, because such a part has no type. It
// also refuses any listing that has such a rule, so an operator who saved a listing would lose all of the host's
// firewall. Therefore this rule is written so that nft shows another one. The packet's destination is loaded into the
// register of the address. Then the whole option is loaded, beginning one register earlier, so that the server's address
// overwrites the destination. nft names a register by what was loaded at its beginning, and shows "dnat ip to ip daddr".
// If somebody saves a table and loads it with nft, the kernel has that rule instead of this one; see
// [Table.namesServers].
func translateNamed(s *schema) rule {
	m := s.options.Marks
	const address = reg32 + serverAt/4
	return rule{
		text: fmt.Sprintf("meta l4proto tcp ct mark & %#x == %#x dnat ip to ip daddr", m.kinds(), m.kind(wire.InBand)),
		exprs: slices.Concat(
			isTCP(s.four.nfproto),
			isMarked(m.kinds(), m.kind(wire.InBand)),
			[]expr.Any{
				&expr.Payload{DestRegister: address, Base: expr.PayloadBaseNetworkHeader, Offset: s.four.dest, Len: s.four.addr.Size()},
				option(0, optionLength),
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(s.four.nfproto), RegAddrMin: address, Specified: false},
			},
		),
	}
}

// inBandComment explains to readers of nft's listing what the rule really does.
const inBandComment = "'dnat ip to ip daddr' is how nft shows it: the address is that in TCP option 254"

// loadProof loads a packet's source address, and the bits of its mark that eBPF has set.
func (s *schema) loadProof() []expr.Any {
	mark := s.four.afterAddress()
	return append(s.four.loadSource(),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: mark},
		&expr.Bitwise{SourceRegister: mark, DestRegister: mark, Len: 4,
			Mask: binary.NativeEndian.AppendUint32(nil, uint32(s.options.Marks)), Xor: []byte(noBits)})
}

// unmark clears the bits that eBPF has set in packets' marks.
func unmark(m Marks) rule {
	others := ^uint32(m)
	return rule{
		text: fmt.Sprintf("meta mark & %#x == %#x meta mark set meta mark & %#x", m.kinds(), m.kind(wire.InBand), others),
		exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
			masked(m.kinds()),
			equal(binary.NativeEndian.AppendUint32(nil, m.kind(wire.InBand))),
			&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
			masked(others),
			&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg},
		},
	}
}

// stripOption removes the option before the SYN leaves: the server does not need it, and networks on the path may drop it.
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
