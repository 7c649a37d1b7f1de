package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

// OpenGuard protects a client from its waypoints until the guard is closed: only answers to
// connections that this host opened from the tunnel's own address are accepted from a tunnel.
// Otherwise a waypoint could reach services that a NAT or firewall elsewhere protects, and hosts
// behind this one, and could forge answers to packets that never went into the tunnel. The
// interfaces are those of the calling thread's network namespace. They need not exist yet, and must
// be down when the guard is closed.
//
// The guard is an nftables table. In nft's syntax:
//
//	chain input {
//		type filter hook input priority filter - 10; policy accept;
//		iifname @interfaces fib daddr . iif type != local counter drop
//		iifname @interfaces ct direction original counter drop
//		iifname @interfaces ct state ! established,related counter drop
//	}
//	chain forward {
//		type filter hook forward priority filter - 10; policy accept;
//		iifname @interfaces counter drop
//	}
//	chain output {
//		type filter hook output priority filter - 10; policy accept;
//		oifname != @interfaces meta mark & MASK == MARK counter drop
//		oifname @interfaces meta mark & MASK == MARK accept
//		oifname @interfaces meta nfproto ipv6 meta l4proto != tcp counter reject with icmpx no-route
//		oifname @interfaces meta nfproto ipv6 tcp flags syn / fin,syn,rst,ack tcp option mptcp subtype mp-join accept
//		oifname @interfaces meta nfproto ipv6 tcp flags syn / fin,syn,rst,ack counter reject with tcp reset
//	}
//
// The direction is checked because a connection that a waypoint opened may be established: the
// table may have been missing at that moment.
//
// The rules with a mark exist if packets are reserved. Such packets leave by a tunnel or not at all, even if a tunnel
// ends while a connection uses it. A routing rule does the same, in case a firewall is reloaded while no agent runs that
// restores the table. It stays when the guard is closed. The other rules of the output chain are for hosts without an IPv6
// route. There the kernel would choose the tunnel's address for programs' connections, and route them into the tunnel. In
// IPv4 it looks for a route before it chooses the address.
func OpenGuard(interfaces []string, reserved Reserved) (*Guard, error) {
	elements := make([]nft.Element, len(interfaces))
	for i, name := range interfaces {
		elements[i].Key = ifname(name)
	}
	if err := reserved.route(); err != nil {
		return nil, fmt.Errorf("protect this host from packets out of tunnels: %w", err)
	}
	table, err := nft.Keep(guardTable, func(tx *nft.Tx) {
		tx.AddSet(guardTable, guardInterfaces)
		tx.AddElements(guardTable, guardInterfaces, elements)
		tx.AddChains(guardTable, []nft.Chain{
			guardChain("input", unix.NF_INET_LOCAL_IN,
				rule(fromTunnels(), toOthers(), drop()),
				rule(fromTunnels(), inDirection(original), drop()),
				rule(fromTunnels(), inState(expr.CmpOpEq, 0), drop()),
			),
			guardChain("forward", unix.NF_INET_FORWARD, rule(fromTunnels(), drop())),
			guardChain("output", unix.NF_INET_LOCAL_OUT, append(reserved.rules(),
				rule(intoTunnels(), isIPv6(), protocol(expr.CmpOpNeq, unix.IPPROTO_TCP),
					reject(unix.NFT_REJECT_ICMPX_UNREACH, unix.NFT_REJECT_ICMPX_NO_ROUTE)),
				rule(intoTunnels(), isIPv6(), opensTCP(), joins(), []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}),
				rule(intoTunnels(), isIPv6(), opensTCP(), reject(unix.NFT_REJECT_TCP_RST, 0)),
			)...),
		})
	})
	if err != nil {
		return nil, fmt.Errorf("protect this host from packets out of tunnels: %w", err)
	}
	return &Guard{table, reserved}, nil
}

// Guard is a client's protection from its waypoints: the table of OpenGuard, and the routing rule for reserved packets. It
// is not safe for concurrent use.
type Guard struct {
	*nft.Kept
	reserved Reserved
}

// Check restores what another program has removed. It reports whether that was the table or some of its rules.
func (g *Guard) Check() (restored bool, err error) {
	restored, err = g.Kept.Check()
	if g.reserved != (Reserved{}) {
		err = errors.Join(err, g.reserved.route())
	}
	return restored, err
}

// Reserved describes packets of this host's sockets that may leave by tunnels only: their mark equals Mark in the bits
// of Mask. The zero value matches none.
type Reserved struct{ Mask, Mark uint32 }

func (r Reserved) route() error {
	if r == (Reserved{}) {
		return netstate.RemoveTunnelsOnly() // those of an earlier agent
	}
	return netstate.SetTunnelsOnly(r.Mark, r.Mask)
}

func (r Reserved) rules() [][]expr.Any {
	if r == (Reserved{}) {
		return nil
	}
	marked := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, r.Mask), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: binary.NativeEndian.AppendUint32(nil, r.Mark)},
	}
	outside := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg},
		&expr.Lookup{SourceRegister: reg, SetName: guardInterfaces.Name, Invert: true},
	}
	return [][]expr.Any{
		rule(outside, marked, drop()),
		rule(intoTunnels(), marked, []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}),
	}
}

// openOutputGuard keeps the waypoint's own traffic out of its members' tunnels until the guard is
// closed: only answers to members leave by the interface, whatever this host's routes are. It is an
// nftables table with the interface's name. In nft's syntax:
//
//	chain output {
//		type filter hook output priority filter - 10; policy accept;
//		oifname IFACE ct direction reply ct state established,related accept
//		oifname IFACE counter drop
//	}
func openOutputGuard(iface string) (*nft.Kept, error) {
	t := outputGuardTable(iface)
	into := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: ifname(iface)},
	}
	table, err := nft.Keep(t, func(tx *nft.Tx) {
		tx.AddChains(t, []nft.Chain{guardChain("output", unix.NF_INET_LOCAL_OUT,
			rule(into, inDirection(reply), inState(expr.CmpOpNeq, 0), []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}),
			rule(into, drop()),
		)})
	})
	if err != nil {
		return nil, fmt.Errorf("keep this host's own traffic out of %s: %w", iface, err)
	}
	return table, nil
}

var (
	guardTable      = nft.Table{Name: "dcol_client"}
	guardInterfaces = nft.Set{Name: "interfaces", Key: []nft.Type{nft.IfName}}
)

func outputGuardTable(iface string) nft.Table { return nft.Table{Name: iface + "_out"} }

const reg = unix.NFT_REG_1

// Bits of ct state, from include/uapi/linux/netfilter/nf_conntrack_common.h.
const answers = 1<<1 | 1<<2 // established, related

func guardChain(name string, hook uint32, rules ...[]expr.Any) nft.Chain {
	return nft.Chain{Name: name, Hook: &nft.Hook{Type: "filter", Number: hook, Priority: -10}, Rules: rules}
}

func rule(parts ...[]expr.Any) []expr.Any { return slices.Concat(parts...) }

func fromTunnels() []expr.Any { return byTunnels(expr.MetaKeyIIFNAME) }

func intoTunnels() []expr.Any { return byTunnels(expr.MetaKeyOIFNAME) }

// byTunnels matches packets whose input or output interface is a tunnel's.
func byTunnels(interfaceName expr.MetaKey) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: interfaceName, Register: reg},
		&expr.Lookup{SourceRegister: reg, SetName: guardInterfaces.Name},
	}
}

func isIPv6() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{unix.NFPROTO_IPV6}},
	}
}

func protocol(op expr.CmpOp, number byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Cmp{Op: op, Register: reg, Data: []byte{number}},
	}
}

// opensTCP matches segments with SYN and without FIN, RST and ACK.
func opensTCP() []expr.Any {
	const flagsAt, syn, others = 13, 1 << 1, 1<<0 | 1<<2 | 1<<4
	return slices.Concat(protocol(expr.CmpOpEq, unix.IPPROTO_TCP), []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: flagsAt, Len: 1},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{syn | others}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{syn}},
	})
}

// joins matches segments with MPTCP's option MP_JOIN (RFC 8684, 3.2).
func joins() []expr.Any {
	const kind, subtypeAt, subtypeMask, mpJoin = 30, 2, 0xf0, 0x10
	return []expr.Any{
		&expr.Exthdr{DestRegister: reg, Type: kind, Offset: subtypeAt, Len: 1, Op: expr.ExthdrOpTcpopt},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{subtypeMask}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{mpJoin}},
	}
}

func reject(kind uint32, code uint8) []expr.Any {
	return []expr.Any{&expr.Counter{}, &expr.Reject{Type: kind, Code: code}}
}

// toOthers matches packets whose destination is not an address of their input interface.
func toOthers() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg, FlagDADDR: true, FlagIIF: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
	}
}

// inState compares the connection's state with the bits in answers.
func inState(op expr.CmpOp, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, answers), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: reg, Data: binary.NativeEndian.AppendUint32(nil, bits)},
	}
}

// Directions of a packet: that in which its connection was opened, and the other.
const original, reply byte = 0, 1

func inDirection(d byte) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{d}},
	}
}

func drop() []expr.Any {
	return []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}}
}

func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}
