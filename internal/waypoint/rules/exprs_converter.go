package rules

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// convertedGoto sends packets of the converter's sockets to a chain. The converter gives each socket the mark of the
// member for which it connects.
func convertedGoto(m Marks, chain string) rule {
	return rule{
		text: fmt.Sprintf("meta l4proto tcp meta mark & %#x == %#x goto %s", m.kinds(), m.kind(wire.Converter), chain),
		exprs: slices.Concat(isTransportTCP(), loadMetaMark(m.kinds()), []expr.Any{
			equal(binary.NativeEndian.AppendUint32(nil, m.kind(wire.Converter))),
			&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain},
		}),
	}
}

// admitConverted marks the connection of a socket that has the mark of an admitted member, unless the server is
// forbidden. Packets of an established connection without a mark come here, too: when a member is expelled, its
// connections are forgotten, and their next packet is rejected.
func admitConverted(s *schema, f family) rule {
	m := s.options.Marks
	return rule{
		text: fmt.Sprintf("meta nfproto %[1]s meta l4proto tcp %[2]s daddr != @%[3]s tcp dport != @%[4]s meta mark & %#[5]x vmap @%[6]s",
			f.proto, f.name, f.forbidden.Name, s.ports.Name, uint32(m), s.converted.Name),
		exprs: slices.Concat(isTCP(f.nfproto), f.toAllowed(s.ports), loadMetaMark(uint32(m)), []expr.Any{jumpBy(s.converted)}),
	}
}

// acceptInvalid accepts packets of an admitted member's connection that conntrack calls invalid. After the table or
// conntrack's entry was lost, a FIN is such a packet, because conntrack begins no entry with a FIN. Rejecting it would
// reset the connection.
func acceptInvalid() rule {
	return rule{
		text: "ct state invalid accept",
		exprs: []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
			masked(expr.CtStateBitINVALID),
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: []byte(noBits)},
			&expr.Verdict{Kind: expr.VerdictAccept},
		},
	}
}

// resumedJump sends packets of a connection that has just been marked, although it is not new, to a chain. Conntrack had
// forgotten the connection, and begins anew with the server's next packet. The chain keeps members from continuing in
// this way who may open no connection now.
func resumedJump(m Marks, chain string) rule {
	return rule{
		text: fmt.Sprintf("ct mark & %#x == %#x ct state != new jump %s", m.ours(), m.ours(), chain),
		exprs: slices.Concat(isMarked(m.ours(), m.ours()), []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: binary.NativeEndian.AppendUint32(nil, stateNew)},
			&expr.Verdict{Kind: expr.VerdictJump, Chain: chain},
		}),
	}
}

// acceptToHost accepts packets to this host's own sockets, which are the converter's. What the sockets answer is
// rejected, which resets them. If the server's packets were rejected instead, a socket that only receives would wait for
// ever. The resets come through this rule, too.
func acceptToHost() rule {
	return rule{
		text:  "fib daddr type local accept",
		exprs: append(toThisHost(), &expr.Verdict{Kind: expr.VerdictAccept}),
	}
}

// dropAwaited drops packets of the converter's open connections for members whose leases are awaited. TCP sends these
// packets again.
func dropAwaited(awaited nft.Set, m Marks) rule {
	return rule{
		text: fmt.Sprintf("%s meta mark & %#x @%s counter drop", isNoSYNText, uint32(m), awaited.Name),
		exprs: slices.Concat(isTransportTCP(), isNoSYN(), loadMetaMark(uint32(m)), []expr.Any{
			&expr.Lookup{SourceRegister: reg, SetName: awaited.Name},
			&expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}),
	}
}

// answersGoto sends packets from servers to the converter to a chain.
func answersGoto(m Marks, chain string) rule {
	return rule{
		text:  fmt.Sprintf("ct mark & %#x == %#x goto %s", m.kinds(), m.kind(wire.Converter), chain),
		exprs: append(isMarked(m.kinds(), m.kind(wire.Converter)), &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}),
	}
}

// toConverterGoto sends packets from tunnels to the converter's port to a chain. Everybody may connect to that port, but
// the converter serves members only.
func toConverterGoto(port uint16, chain string) rule {
	return rule{
		text: fmt.Sprintf("meta l4proto tcp tcp dport %d fib daddr type local goto %s", port, chain),
		exprs: slices.Concat(isTransportTCP(), []expr.Any{
			&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: destPort, Len: 2},
			equal(binary.BigEndian.AppendUint16(nil, port)),
		}, toThisHost(), []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}),
	}
}

// setTunnelled marks a connection that came to the converter from a tunnel.
func setTunnelled(m Marks) rule { return setMark(m, m.tunnelled()) }

func acceptAll() rule {
	return rule{text: "accept", exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}}
}

// keepConverterInTunnels drops packets from the converter to a member in a tunnel that would leave by another interface.
// When the tunnel's interface is gone, because the agent has ended, these packets would follow the host's routes
// unencrypted.
func keepConverterInTunnels(interfaces nft.Set, m Marks) rule {
	return rule{
		text: fmt.Sprintf("ct mark & %#x == %#x oifname != @%s counter drop", m.kinds(), m.tunnelled(), interfaces.Name),
		exprs: append(isMarked(m.kinds(), m.tunnelled()),
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg},
			&expr.Lookup{SourceRegister: reg, SetName: interfaces.Name, Invert: true},
			&expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictDrop},
		),
	}
}

func loadMetaMark(mask uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg}, masked(mask)}
}

// always sends all packets to a chain.
func always(chain string) rule {
	return rule{text: "goto " + chain, exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}}
}
