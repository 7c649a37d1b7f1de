package gateway

import (
	"net/netip"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/known"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

var (
	table = nft.Table{Name: "dcol_gateway"}
	lan   = nft.Set{Name: "lan", Key: []nft.Type{nft.IfName}}
	ports = nft.Set{Name: "excluded_ports", Key: []nft.Type{nft.InetService}}
)

// serversMost bounds each set of servers.
const serversMost = 1 << 16

// family holds what differs between IPv4 and IPv6.
type family struct {
	nfproto       byte
	source, dest  uint32 // offsets of the addresses in the header
	size          uint32 // of an address
	loopback      netip.Addr
	excluded      nft.Set
	speaks, plain nft.Set // address and port of servers
	unreached     nft.Set // likewise; connections to them pass
}

var families = [2]family{
	newFamily(family{nfproto: unix.NFPROTO_IPV4, source: 12, dest: 16, size: 4, loopback: netip.MustParseAddr("127.0.0.1")}, "4", nft.IPv4Addr),
	newFamily(family{nfproto: unix.NFPROTO_IPV6, source: 8, dest: 24, size: 16, loopback: netip.IPv6Loopback()}, "6", nft.IPv6Addr),
}

func newFamily(f family, suffix string, addr nft.Type) family {
	f.excluded = nft.Set{Name: "excluded" + suffix, Key: []nft.Type{addr}, Interval: true}
	server := []nft.Type{addr, nft.InetService}
	f.speaks = nft.Set{Name: "speaks" + suffix, Key: server, Timeout: true, Dynamic: true, Size: serversMost}
	f.plain = nft.Set{Name: "plain" + suffix, Key: server, Timeout: true, Dynamic: true, Size: serversMost}
	f.unreached = nft.Set{Name: "unreached" + suffix, Key: server, Timeout: true, Dynamic: true, Size: serversMost}
	return f
}

// of returns those of the prefixes that are of this family.
func (f family) of(prefixes []netip.Prefix) (list []netip.Prefix) {
	for _, p := range prefixes {
		if p.Addr().Is4() == (f.nfproto == unix.NFPROTO_IPV4) {
			list = append(list, p)
		}
	}
	return list
}

// Names of the chains that other chains lead to.
const (
	begins    = "begins"    // a LAN's host begins a connection
	multipath = "multipath" // which offers MPTCP
	single    = "single"    // which does not
	divert    = "divert"    // a connection that the relay gets
	learn     = "learn"     // the answer to a connection that is watched
)

// Priorities of the chains. Prerouting comes after the translation of destinations (-100) and the waypoint's removal of
// packets' marks (-99). Output comes after the waypoint's marking of connections (0).
const (
	preroutingPriority = -98
	outputPriority     = 10
)

// chains returns the chains that do not depend on what is wanted.
//
// A repeated SYN of a connection that the relay has goes to the relay again, while the relay listens. SYNs with MP_JOIN
// are left alone, because a join belongs to the connection that it names.
func (c Config) chains() []nft.Chain {
	m := c.marks()
	list := []nft.Chain{
		{
			Name: "prerouting",
			Hook: &nft.Hook{Type: "filter", Number: unix.NF_INET_PRE_ROUTING, Priority: preroutingPriority},
			Rules: [][]expr.Any{
				rule(tcp(), flags(syn|ack), connection(m.all, m.watched), m.markConnection(0), verdict(expr.VerdictGoto, learn)),
				rule(fromLAN(), connection(m.all, m.taken), tcp(), flags(syn), verdict(expr.VerdictGoto, divert)),
				rule(fromLAN(), connection(m.all, m.taken), m.markPacket(), verdict(expr.VerdictAccept, "")),
				rule(fromLAN(), tcp(), flags(syn), connection(m.all, 0), verdict(expr.VerdictGoto, begins)),
			},
		},
		{
			Name: begins,
			Rules: [][]expr.Any{
				rule(notUnicast(), verdict(expr.VerdictReturn, "")),
				rule(toLAN(), verdict(expr.VerdictReturn, "")),
				rule(destinationPort(reg), in(ports), verdict(expr.VerdictReturn, "")),
				rule(families[0].is(), families[0].destination(), in(families[0].excluded), verdict(expr.VerdictReturn, "")),
				rule(families[1].is(), families[1].destination(), in(families[1].excluded), verdict(expr.VerdictReturn, "")),
				rule(families[0].is(), families[0].called(), in(families[0].unreached), verdict(expr.VerdictReturn, "")),
				rule(families[1].is(), families[1].called(), in(families[1].unreached), verdict(expr.VerdictReturn, "")),
				rule(capable(), verdict(expr.VerdictGoto, multipath)),
				rule(withoutMPTCP(), verdict(expr.VerdictGoto, single)),
			},
		},
		{
			Name: "output",
			Hook: &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_OUT, Priority: outputPriority},
			Rules: [][]expr.Any{
				rule(tcp(), flags(syn), connection(m.all, 0), capable(), m.markConnection(m.watched)),
				rule(families[0].is(), tcp(), flags(rst|ack), packet(m.all, m.unreached()), families[0].answering(), put(families[0].unreached, choice.UnreachedFor)),
				rule(families[1].is(), tcp(), flags(rst|ack), packet(m.all, m.unreached()), families[1].answering(), put(families[1].unreached, choice.UnreachedFor)),
			},
		},
	}
	if c.KeepIPv6 {
		prerouting, output := &list[0], &list[2]
		prerouting.Rules = append([][]expr.Any{
			rule(tcp(), flags(syn|ack), connection(m.all, m.kept()), verdict(expr.VerdictJump, learn)),
			rule(connection(m.all, m.kept()), m.markPacket(), verdict(expr.VerdictAccept, "")),
		}, prerouting.Rules...)
		output.Rules = append([][]expr.Any{
			rule(families[1].is(), tcp(), flags(syn), connection(m.all, 0), notOwn(), m.markConnection(m.kept())),
		}, output.Rules...)
	}
	learning := nft.Chain{Name: learn}
	for _, f := range families {
		learning.Rules = append(learning.Rules,
			rule(f.is(), capable(), f.answering(), put(f.speaks, known.SpeaksFor), drop(f.plain)),
			rule(f.is(), withoutMPTCP(), f.answering(), put(f.plain, known.PlainFor), drop(f.speaks)))
	}
	return append(list, learning)
}

// decisions returns the chains that depend on what is wanted.
func decisions(m marks, w Want) []nft.Chain {
	mptcp, plain, diverting := nft.Chain{Name: multipath}, nft.Chain{Name: single}, nft.Chain{Name: divert}
	for i, port := range []uint16{w.Port4, w.Port6} {
		f := families[i]
		if port == 0 || w.Mode == choice.Never {
			continue
		}
		diverting.Rules = append(diverting.Rules,
			rule(f.is(), f.tproxy(port), m.markPacket(), m.markConnection(m.taken), verdict(expr.VerdictAccept, "")))
		toPlain := rule(f.is(), f.called(), in(f.plain), put(f.plain, known.PlainFor), verdict(expr.VerdictGoto, divert))
		// The relay connects to such a server by MPTCP, without a converter.
		toSpeaking := rule(f.is(), f.called(), in(f.speaks), verdict(expr.VerdictGoto, divert))
		switch {
		case !w.Converters:
			plain.Rules = append(plain.Rules, toSpeaking)
		case w.Mode == choice.Always:
			plain.Rules = append(plain.Rules, rule(f.is(), verdict(expr.VerdictGoto, divert)))
			mptcp.Rules = append(mptcp.Rules, toPlain)
		default:
			plain.Rules = append(plain.Rules, toSpeaking, toPlain)
			mptcp.Rules = append(mptcp.Rules, toPlain)
		}
	}
	mptcp.Rules = append(mptcp.Rules, rule(m.markConnection(m.watched)))
	return []nft.Chain{mptcp, plain, diverting}
}

// put adds the loaded server to a set, or renews its entry.
func put(s nft.Set, lasts time.Duration) []expr.Any {
	return []expr.Any{&expr.Dynset{SrcRegKey: reg, SetName: s.Name, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: lasts}}
}

// drop removes the loaded server from a set.
func drop(s nft.Set) []expr.Any {
	const remove = 2 // NFT_DYNSET_OP_DELETE
	return []expr.Any{&expr.Dynset{SrcRegKey: reg, SetName: s.Name, Operation: remove}}
}
