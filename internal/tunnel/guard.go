package tunnel

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/netstate/nft"
)

// OpenGuard keeps waypoints out of a client: through a tunnel come answers to what
// this host began, and nothing else, until the guard is closed. Without it a
// waypoint could reach services that a NAT or firewall elsewhere protects, and what
// is behind this host. The interfaces, of the calling thread's network namespace,
// need not exist yet; they must be down when the guard is closed.
//
// It is an nftables table. In the words of nft, for input and forward:
//
//	iifname @interfaces ct state ! established,related counter drop
func OpenGuard(interfaces []string) (*nft.Kept, error) {
	elements := make([]nft.Element, len(interfaces))
	for i, name := range interfaces {
		elements[i].Key = make([]byte, unix.IFNAMSIZ)
		copy(elements[i].Key, name)
	}
	table, err := nft.Keep(guardTable, func(tx *nft.Tx) {
		tx.AddSet(guardTable, guardInterfaces)
		tx.AddElements(guardTable, guardInterfaces, elements)
		tx.AddChains(guardTable, []nft.Chain{
			guardChain("input", unix.NF_INET_LOCAL_IN), guardChain("forward", unix.NF_INET_FORWARD),
		})
	})
	if err != nil {
		return nil, fmt.Errorf("guard this host against what comes out of tunnels: %w", err)
	}
	return table, nil
}

var (
	guardTable      = nft.Table{Name: "dcol_client"}
	guardInterfaces = nft.Set{Name: "interfaces", Key: []nft.Type{nft.IfName}}
)

// Bits of ct state, from include/uapi/linux/netfilter/nf_conntrack_common.h.
const answers = 1<<1 | 1<<2 // established, related

func guardChain(name string, hook uint32) nft.Chain {
	const reg = unix.NFT_REG_1
	return nft.Chain{
		Name: name, Hook: &nft.Hook{Type: "filter", Number: hook, Priority: -10},
		Rules: [][]expr.Any{{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg},
			&expr.Lookup{SourceRegister: reg, SetName: guardInterfaces.Name},
			&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
			&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, answers), Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: make([]byte, 4)},
			&expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}},
	}
}
