package rules

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

// Types of echo requests (RFC 792, RFC 4443).
const (
	echoRequest4 = 8
	echoRequest6 = 128
)

func tunnelGoto(interfaces nft.Set, chain string) rule {
	return rule{
		text: fmt.Sprintf("iifname @%s goto %s", interfaces.Name, chain),
		exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg},
			&expr.Lookup{SourceRegister: reg, SetName: interfaces.Name},
			&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain},
		},
	}
}

// admitTunnel marks a new connection out of a tunnel as belonging to the member with its source address.
func admitTunnel(f family, ports nft.Set) rule {
	return rule{
		text: fmt.Sprintf("meta nfproto %[1]s %[2]s ct state new %[3]s daddr != @%[4]s tcp dport != @%[5]s %[3]s saddr vmap @%[6]s",
			f.proto, isSYNText, f.name, f.forbidden.Name, ports.Name, f.tunnels.Name),
		exprs: slices.Concat(
			isTCP(f.nfproto), isSYN(),
			[]expr.Any{
				&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
				masked(stateNew),
				&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: []byte(noBits)},
			},
			f.toAllowed(ports),
			f.loadSource(),
			[]expr.Any{jumpBy(f.tunnels)},
		),
	}
}

// rejectTCP answers with a reset, so that a join fails at once.
func rejectTCP() rule {
	return rule{
		text: "meta l4proto tcp counter reject with tcp reset",
		exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
			equal([]byte{unix.IPPROTO_TCP}),
			&expr.Counter{},
			&expr.Reject{Type: unix.NFT_REJECT_TCP_RST},
		},
	}
}

func dropRest() rule {
	return rule{text: "counter drop", exprs: []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}}}
}

// dropIntoTunnels drops packets into a tunnel that are not answers to the member's connections.
func dropIntoTunnels(interfaces nft.Set) rule {
	return rule{
		text: fmt.Sprintf("oifname @%s counter drop", interfaces.Name),
		exprs: append(intoTunnels(interfaces),
			&expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictDrop},
		),
	}
}

// rejectIntoTunnels answers such packets of members' connections with a reset.
func rejectIntoTunnels(interfaces nft.Set) rule {
	return rule{
		text: fmt.Sprintf("oifname @%s meta l4proto tcp counter reject with tcp reset", interfaces.Name),
		exprs: append(intoTunnels(interfaces),
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
			equal([]byte{unix.IPPROTO_TCP}),
			&expr.Counter{},
			&expr.Reject{Type: unix.NFT_REJECT_TCP_RST},
		),
	}
}

// keepInTunnels drops answers to a member in a tunnel that would leave by another interface. When the tunnel's interface is
// gone, because the agent has ended, they would follow the host's routes unencrypted. Connections out of tunnels are
// recognised because they are the only ones of ours without a translated destination.
func keepInTunnels(interfaces nft.Set) rule {
	return rule{
		text: fmt.Sprintf("ct direction reply ct status ! dnat oifname != @%s counter drop", interfaces.Name),
		exprs: []expr.Any{
			&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg},
			equal([]byte{reply.number}),
			&expr.Ct{Key: expr.CtKeySTATUS, Register: reg},
			masked(statusDNAT),
			equal([]byte(noBits)),
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg},
			&expr.Lookup{SourceRegister: reg, SetName: interfaces.Name, Invert: true},
			&expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictDrop},
		},
	}
}

func intoTunnels(interfaces nft.Set) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg},
		&expr.Lookup{SourceRegister: reg, SetName: interfaces.Name},
	}
}

// acceptAnswers accepts answers to the host's own connections into tunnels. Packets of connections that a member began are
// not answers, even if they were established while the table was missing.
func acceptAnswers() rule {
	return rule{
		text: "ct direction reply ct state established,related accept",
		exprs: []expr.Any{
			&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg},
			equal([]byte{reply.number}),
			&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
			masked(stateEstablished | stateRelated),
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: []byte(noBits)},
			&expr.Verdict{Kind: expr.VerdictAccept},
		},
	}
}

// acceptPing4 and acceptPing6 accept a member's pings to the waypoint's end of its tunnel, so that the member can test
// the tunnel.
func acceptPing4() rule {
	return acceptPing("meta l4proto icmp icmp type echo-request", unix.NFPROTO_IPV4, unix.IPPROTO_ICMP, echoRequest4)
}

func acceptPing6() rule {
	return acceptPing("meta l4proto ipv6-icmp icmpv6 type echo-request", unix.NFPROTO_IPV6, unix.IPPROTO_ICMPV6, echoRequest6)
}

func acceptPing(text string, nfproto, proto, kind byte) rule {
	return rule{
		text: text + " fib daddr . iif type local accept",
		exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg},
			equal([]byte{nfproto}),
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
			equal([]byte{proto}),
			&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
			equal([]byte{kind}),
			&expr.Fib{Register: reg, FlagDADDR: true, FlagIIF: true, ResultADDRTYPE: true},
			equal(binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)),
			&expr.Verdict{Kind: expr.VerdictAccept},
		},
	}
}
