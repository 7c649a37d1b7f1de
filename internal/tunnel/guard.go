package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/netstate/nft"
)

// Guard keeps waypoints out of a client: through a tunnel come answers to what
// this host began, and nothing else. Without it a waypoint could reach services
// that a NAT or firewall elsewhere protects, and what is behind this host.
//
// It is an nftables table. In the words of nft, for input and forward:
//
//	iifname @interfaces ct state ! established,related counter drop
type Guard struct {
	conn       *nft.Conn
	interfaces []string
}

var (
	guardTable      = nft.Table{Name: "dcol_client"}
	guardInterfaces = nft.Set{Name: "interfaces", Key: []nft.Type{nft.IfName}}
)

// OpenGuard guards interfaces of the calling thread's network namespace, which
// need not exist yet. It takes the place of one that a crash has left.
func OpenGuard(interfaces []string) (*Guard, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	g := &Guard{conn: conn, interfaces: interfaces}
	if err := g.install(); err != nil {
		return nil, errors.Join(fmt.Errorf("guard this host against what comes out of tunnels: %w", err), conn.Close())
	}
	return g, nil
}

func (g *Guard) install() error {
	return g.conn.Commit("install nftables table "+guardTable.Name, func(tx *nft.Tx) {
		tx.DeleteTable(guardTable)
		tx.AddTable(guardTable)
		tx.AddSet(guardTable, guardInterfaces)
		elements := make([]nft.Element, len(g.interfaces))
		for i, name := range g.interfaces {
			elements[i].Key = make([]byte, unix.IFNAMSIZ)
			copy(elements[i].Key, name)
		}
		tx.AddElements(guardTable, guardInterfaces, elements)
		tx.AddChains(guardTable, []nft.Chain{
			guardChain("input", unix.NF_INET_LOCAL_IN), guardChain("forward", unix.NF_INET_FORWARD),
		})
	})
}

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

// Check puts the table back when somebody has flushed all tables, as a reloaded
// firewall does.
func (g *Guard) Check() (restored bool, err error) {
	there, err := g.conn.HasTable(guardTable)
	if err != nil || there {
		return false, err
	}
	return true, g.install()
}

// Close removes the table. The tunnels must be down.
func (g *Guard) Close() error {
	return errors.Join(g.conn.DeleteTable(guardTable), g.conn.Close())
}

// cleanUpGuard removes the table that an agent has left.
func cleanUpGuard() error {
	conn, err := nft.Open()
	if err != nil {
		return err
	}
	return errors.Join(conn.DeleteTable(guardTable), conn.Close())
}
