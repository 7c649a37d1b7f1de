package gateway

import (
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/known"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft/match"
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
	match.Family
	loopback      netip.Addr
	excluded      nft.Set
	speaks, plain nft.Set // address and port of servers
	unreached     nft.Set // likewise; connections to them pass
}

var families = [2]family{
	newFamily(match.IPv4, "4", netip.MustParseAddr("127.0.0.1")),
	newFamily(match.IPv6, "6", netip.IPv6Loopback()),
}

func newFamily(of match.Family, suffix string, loopback netip.Addr) family {
	f := family{Family: of, loopback: loopback}
	f.excluded = nft.Set{Name: "excluded" + suffix, Key: []nft.Type{f.Addr}, Interval: true}
	server := []nft.Type{f.Addr, nft.InetService}
	f.speaks = nft.Set{Name: "speaks" + suffix, Key: server, Timeout: true, Dynamic: true, Size: serversMost}
	f.plain = nft.Set{Name: "plain" + suffix, Key: server, Timeout: true, Dynamic: true, Size: serversMost}
	f.unreached = nft.Set{Name: "unreached" + suffix, Key: server, Timeout: true, Dynamic: true, Size: serversMost}
	return f
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
// A repeated SYN of a connection that the relay has goes to the relay again, while the relay listens. Other SYNs with options
// of MPTCP are left alone: those of version 0, which this host does not speak, and joins, which belong to the connections
// that they name.
func (c Config) chains() []nft.Chain {
	m := c.marks()
	list := []nft.Chain{
		{
			Name: "prerouting",
			Hook: &nft.Hook{Type: "filter", Number: unix.NF_INET_PRE_ROUTING, Priority: preroutingPriority},
			Rules: [][]expr.Any{
				match.Rule(match.TCP(), match.Flags(match.SYN|match.ACK), connection(m.all, m.watched), m.markConnection(0), match.Verdict(expr.VerdictGoto, learn)),
				match.Rule(fromLAN(), connection(m.all, m.taken), match.TCP(), match.Flags(match.SYN), match.Verdict(expr.VerdictGoto, divert)),
				match.Rule(fromLAN(), connection(m.all, m.taken), m.markPacket(), match.Verdict(expr.VerdictAccept, "")),
				match.Rule(fromLAN(), match.TCP(), match.Flags(match.SYN), connection(m.all, 0), match.Verdict(expr.VerdictGoto, begins)),
				m.withdraws(),
			},
		},
		{
			Name: begins,
			Rules: [][]expr.Any{
				match.Rule(match.NotUnicast(), match.Verdict(expr.VerdictReturn, "")),
				match.Rule(toLAN(), match.Verdict(expr.VerdictReturn, "")),
				match.Rule(match.DestinationPort(), match.In(ports), match.Verdict(expr.VerdictReturn, "")),
				match.Rule(families[0].Is(), families[0].Destination(), match.In(families[0].excluded), match.Verdict(expr.VerdictReturn, "")),
				match.Rule(families[1].Is(), families[1].Destination(), match.In(families[1].excluded), match.Verdict(expr.VerdictReturn, "")),
				match.Rule(families[0].Is(), families[0].Called(), match.In(families[0].unreached), match.Verdict(expr.VerdictReturn, "")),
				match.Rule(families[1].Is(), families[1].Called(), match.In(families[1].unreached), match.Verdict(expr.VerdictReturn, "")),
				match.Rule(match.Capable(), match.Verdict(expr.VerdictGoto, multipath)),
				match.Rule(match.WithoutMPTCP(), match.Verdict(expr.VerdictGoto, single)),
			},
		},
		{
			Name: "output",
			Hook: &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_OUT, Priority: outputPriority},
			Rules: [][]expr.Any{
				match.Rule(match.TCP(), match.Flags(match.SYN), connection(m.all, 0), match.Capable(), m.markConnection(m.watched)),
				m.withdraws(),
				match.Rule(families[0].Is(), match.TCP(), match.Flags(match.RST|match.ACK), packet(m.all, m.unreached()), families[0].Answering(), match.Put(families[0].unreached, choice.UnreachedFor)),
				match.Rule(families[1].Is(), match.TCP(), match.Flags(match.RST|match.ACK), packet(m.all, m.unreached()), families[1].Answering(), match.Put(families[1].unreached, choice.UnreachedFor)),
			},
		},
	}
	if c.KeepIPv6 {
		prerouting, output := &list[0], &list[2]
		prerouting.Rules = append([][]expr.Any{
			match.Rule(match.TCP(), match.Flags(match.SYN|match.ACK), connection(m.all, m.kept()), match.Verdict(expr.VerdictJump, learn)),
			match.Rule(connection(m.all, m.kept()), m.markPacket(), match.Verdict(expr.VerdictAccept, "")),
		}, prerouting.Rules...)
		output.Rules = append([][]expr.Any{
			match.Rule(families[1].Is(), match.TCP(), match.Flags(match.SYN), connection(m.all, 0), notOwn(), m.markConnection(m.kept())),
		}, output.Rules...)
	}
	learning := nft.Chain{Name: learn}
	for _, f := range families {
		learning.Rules = append(learning.Rules,
			match.Rule(f.Is(), match.Capable(), f.Answering(), match.Put(f.speaks, known.SpeaksFor), match.Drop(f.plain)),
			match.Rule(f.Is(), match.WithoutMPTCP(), f.Answering(), match.Put(f.plain, known.PlainFor), match.Drop(f.speaks)))
	}
	return append(list, learning)
}

// withdraws ends the watch on a connection whose SYN is sent again without MPTCP, because the first ones were lost. The
// answer to that SYN does not show whether the server speaks MPTCP.
func (m marks) withdraws() []expr.Any {
	return match.Rule(match.TCP(), match.Flags(match.SYN), connection(m.all, m.watched), match.WithoutMPTCP(), m.markConnection(0))
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
			match.Rule(f.Is(), f.tproxy(port), m.markPacket(), m.markConnection(m.taken), match.Verdict(expr.VerdictAccept, "")))
		toPlain := match.Rule(f.Is(), f.Called(), match.In(f.plain), match.Put(f.plain, known.PlainFor), match.Verdict(expr.VerdictGoto, divert))
		// The relay connects to such a server by MPTCP, without a converter.
		toSpeaking := match.Rule(f.Is(), f.Called(), match.In(f.speaks), match.Verdict(expr.VerdictGoto, divert))
		switch {
		case !w.Converters:
			plain.Rules = append(plain.Rules, toSpeaking)
		case w.Mode == choice.Always:
			plain.Rules = append(plain.Rules, match.Rule(f.Is(), match.Verdict(expr.VerdictGoto, divert)))
			mptcp.Rules = append(mptcp.Rules, toPlain)
		default:
			plain.Rules = append(plain.Rules, toSpeaking, toPlain)
			mptcp.Rules = append(mptcp.Rules, toPlain)
		}
	}
	mptcp.Rules = append(mptcp.Rules, match.Rule(m.markConnection(m.watched)))
	return []nft.Chain{mptcp, plain, diverting}
}
