package tunnel

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/netstate/nft"
)

// OpenGuard keeps waypoints out of a client until the guard is closed: through a
// tunnel come answers to what this host began from the tunnel's own address, and
// nothing else. Without it a waypoint could reach services that a NAT or firewall
// elsewhere protects, and what is behind this host, and forge answers to what
// never went into the tunnel. The interfaces, of the calling thread's network
// namespace, need not exist yet; they must be down when the guard is closed.
//
// It is an nftables table. In the words of nft:
//
//	chain input {
//		type filter hook input priority filter - 10; policy accept;
//		iifname @interfaces fib daddr . iif type != local counter drop
//		iifname @interfaces ct state ! established,related counter drop
//	}
//	chain forward {
//		type filter hook forward priority filter - 10; policy accept;
//		iifname @interfaces counter drop
//	}
func OpenGuard(interfaces []string) (*nft.Kept, error) {
	elements := make([]nft.Element, len(interfaces))
	for i, name := range interfaces {
		elements[i].Key = ifname(name)
	}
	table, err := nft.Keep(guardTable, func(tx *nft.Tx) {
		tx.AddSet(guardTable, guardInterfaces)
		tx.AddElements(guardTable, guardInterfaces, elements)
		tx.AddChains(guardTable, []nft.Chain{
			guardChain("input", unix.NF_INET_LOCAL_IN,
				rule(fromTunnels(), toOthers(), drop()),
				rule(fromTunnels(), inState(expr.CmpOpEq, 0), drop()),
			),
			guardChain("forward", unix.NF_INET_FORWARD, rule(fromTunnels(), drop())),
		})
	})
	if err != nil {
		return nil, fmt.Errorf("guard this host against what comes out of tunnels: %w", err)
	}
	return table, nil
}

// openOutputGuard keeps the waypoint's own traffic out of its members' tunnels
// until the guard is closed: by the interface leave answers to members, and
// nothing that this host began, whatever its routes say. It is an nftables table
// with the interface's name. In the words of nft:
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
			rule(into, isReply(), inState(expr.CmpOpNeq, 0), []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}),
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

func fromTunnels() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg},
		&expr.Lookup{SourceRegister: reg, SetName: guardInterfaces.Name},
	}
}

// toOthers matches packets to addresses that the interface they came in by does
// not have.
func toOthers() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg, FlagDADDR: true, FlagIIF: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
	}
}

// inState compares the bits of answers in the connection's state.
func inState(op expr.CmpOp, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, answers), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: reg, Data: binary.NativeEndian.AppendUint32(nil, bits)},
	}
}

// isReply matches packets against the direction in which their connection began.
func isReply() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{1}},
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
