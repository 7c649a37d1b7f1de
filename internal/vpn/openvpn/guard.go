package openvpn

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

// Opcodes of data packets, in the upper five bits of the first byte (OpenVPN: ssl_pkt.h). All
// others belong to the control channel, which TLS protects.
const (
	dataV1 = 6 << 3
	dataV2 = 9 << 3
	opcode = 0xf8
)

// guard is the nftables table that lets data packets in only from clients, by address and port. In
// the words of nft:
//
//	chain input {
//		type filter hook input priority filter - 10; policy accept;
//		udp dport PORT @th,64,8 & 0xf8 == { 0x30, 0x48 } goto data   (two rules)
//	}
//	chain data {
//		ip saddr . udp sport @clients4 accept
//		ip6 saddr . udp sport @clients6 accept
//		counter drop
//	}
type guard struct {
	port uint16

	mu      sync.Mutex
	table   *nft.Kept
	clients map[netip.AddrPort]struct{}
}

var (
	clients4 = nft.Set{Name: "clients4", Key: []nft.Type{nft.IPv4Addr, nft.InetService}}
	clients6 = nft.Set{Name: "clients6", Key: []nft.Type{nft.IPv6Addr, nft.InetService}}
)

// guardTable returns the table that guards an interface. It has the interface's name.
func guardTable(iface string) nft.Table { return nft.Table{Name: iface} }

// newGuard creates the table in the calling thread's network namespace, replacing one left by a
// crash. It admits no client yet.
func newGuard(iface string, port uint16) (g *guard, err error) {
	g = &guard{port: port, clients: map[netip.AddrPort]struct{}{}}
	t := guardTable(iface)
	g.table, err = nft.Keep(t, func(tx *nft.Tx) {
		tx.AddSet(t, clients4)
		tx.AddSet(t, clients6)
		tx.AddChains(t, g.chains())
		four, six := elements(slices.Collect(maps.Keys(g.clients)))
		tx.AddElements(t, clients4, four)
		tx.AddElements(t, clients6, six)
	})
	return g, err
}

const (
	reg   = unix.NFT_REG_1
	reg32 = unix.NFT_REG32_00 // the same memory in pieces of four bytes
)

func (g *guard) chains() []nft.Chain {
	toData := func(code byte) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
			equal(unix.IPPROTO_UDP),
			&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			equal(binary.BigEndian.AppendUint16(nil, g.port)...),
			&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 8, Len: 1},
			&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{opcode}, Xor: []byte{0}},
			equal(code),
			&expr.Verdict{Kind: expr.VerdictGoto, Chain: "data"},
		}
	}
	known := func(nfproto byte, source uint32, set nft.Set) []expr.Any {
		addr := set.Key[0].Size()
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg},
			equal(nfproto),
			&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: source, Len: addr},
			&expr.Payload{DestRegister: reg32 + addr/4, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2},
			&expr.Lookup{SourceRegister: reg, SetName: set.Name},
			&expr.Verdict{Kind: expr.VerdictAccept},
		}
	}
	return []nft.Chain{
		{
			Name:  "input",
			Hook:  &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_IN, Priority: -10},
			Rules: [][]expr.Any{toData(dataV1), toData(dataV2)},
		},
		{
			Name: "data",
			Rules: [][]expr.Any{
				known(unix.NFPROTO_IPV4, 12, clients4),
				known(unix.NFPROTO_IPV6, 8, clients6),
				{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}},
			},
		},
	}
}

func equal(data ...byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: data}
}

// elements sorts clients by family.
func elements(clients []netip.AddrPort) (four, six []nft.Element) {
	for _, c := range clients {
		key := c.Addr().AsSlice()
		key = binary.BigEndian.AppendUint16(key, c.Port())
		key = append(key, 0, 0) // a whole register
		if c.Addr().Is4() {
			four = append(four, nft.Element{Key: key})
		} else {
			six = append(six, nft.Element{Key: key})
		}
	}
	return four, six
}

// admit accepts a client's data packets.
func (g *guard) admit(client netip.AddrPort) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.clients[client]; ok {
		return nil
	}
	g.clients[client] = struct{}{}
	err := g.table.Commit(fmt.Sprintf("let in packets from %v", client), func(tx *nft.Tx) {
		four, six := elements([]netip.AddrPort{client})
		tx.AddElements(g.table.Table, clients4, four)
		tx.AddElements(g.table.Table, clients6, six)
	})
	if err != nil {
		delete(g.clients, client)
	}
	return err
}

// keep makes clients the only ones admitted.
func (g *guard) keep(clients map[netip.AddrPort]struct{}) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if maps.Equal(clients, g.clients) {
		return nil
	}
	g.clients = map[netip.AddrPort]struct{}{}
	maps.Copy(g.clients, clients)
	return g.table.Install()
}

// check restores the table if it was removed, for example by flushing all tables.
func (g *guard) check() (restored bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.table.Check()
}

// close removes the table.
func (g *guard) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.table.Close()
}

// CleanUp removes the guard that a crashed agent's server for this interface has left in the
// calling thread's network namespace. netstate removes the interface itself.
func CleanUp(iface string) error { return nft.RemoveTable(guardTable(iface)) }
