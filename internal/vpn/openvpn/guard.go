package openvpn

import (
	"encoding/binary"
	"net/netip"

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

var (
	clients4 = nft.Set{Name: "clients4", Key: []nft.Type{nft.IPv4Addr, nft.InetService}}
	clients6 = nft.Set{Name: "clients6", Key: []nft.Type{nft.IPv6Addr, nft.InetService}}
)

// guardTable returns the table that guards an interface. It has the interface's name.
func guardTable(iface string) nft.Table { return nft.Table{Name: iface} }

// openGuard creates the nftables table that lets data packets in only from the clients' addresses and
// ports. It is installed again whenever these change. In the words of nft:
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
func openGuard(iface string, port uint16, clients func() []netip.AddrPort) (*nft.Kept, error) {
	t := guardTable(iface)
	chains := []nft.Chain{
		{
			Name:  "input",
			Hook:  &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_IN, Priority: -10},
			Rules: [][]expr.Any{toData(port, dataV1), toData(port, dataV2)},
		},
		{
			Name: "data",
			Rules: [][]expr.Any{
				fromClient(unix.NFPROTO_IPV4, 12, clients4),
				fromClient(unix.NFPROTO_IPV6, 8, clients6),
				{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}},
			},
		},
	}
	return nft.Keep(t, func(tx *nft.Tx) {
		tx.AddSet(t, clients4)
		tx.AddSet(t, clients6)
		tx.AddChains(t, chains)
		for _, c := range clients() {
			set := clients6
			if c.Addr().Is4() {
				set = clients4
			}
			key := binary.BigEndian.AppendUint16(c.Addr().AsSlice(), c.Port())
			tx.AddElements(t, set, []nft.Element{{Key: append(key, 0, 0)}}) // a whole register
		}
	})
}

// remotes lists the addresses and ports of the connected members.
func (s *Server) remotes() []netip.AddrPort {
	var list []netip.AddrPort
	for _, have := range s.sessions {
		list = append(list, have.remote)
	}
	return list
}

const (
	reg   = unix.NFT_REG_1
	reg32 = unix.NFT_REG32_00 // the same memory in pieces of four bytes
)

// toData leads data packets of one kind to the port into the chain data.
func toData(port uint16, code byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		equal(unix.IPPROTO_UDP),
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		equal(binary.BigEndian.AppendUint16(nil, port)...),
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 8, Len: 1},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{opcode}, Xor: []byte{0}},
		equal(code),
		&expr.Verdict{Kind: expr.VerdictGoto, Chain: "data"},
	}
}

// fromClient accepts packets whose source is in a set. source is the address's offset in the IP header.
func fromClient(nfproto byte, source uint32, set nft.Set) []expr.Any {
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

func equal(data ...byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: data}
}

// CleanUp removes the guard that a crashed agent's server for this interface has left in the
// calling thread's network namespace. netstate removes the interface itself.
func CleanUp(iface string) error { return nft.RemoveTable(guardTable(iface)) }
