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
	peerNumber = nft.TransportBits(72, 24) // behind the UDP header and the opcode

	clients4 = nft.Set{Name: "clients4", Key: []nft.Type{nft.IPv4Addr, nft.InetService, peerNumber}}
	clients6 = nft.Set{Name: "clients6", Key: []nft.Type{nft.IPv6Addr, nft.InetService, peerNumber}}
)

// noPeer is the peer number of a client that has none (OpenVPN: MAX_PEER_ID).
const noPeer = 1<<24 - 1

// source is where a client's data packets come from, and the peer number that they carry.
type source struct {
	remote netip.AddrPort
	peer   uint32
}

// guardTable returns the table that guards an interface. It has the interface's name.
func guardTable(iface string) nft.Table { return nft.Table{Name: iface} }

// openGuard creates the nftables table that lets data packets in only from the clients' addresses and
// ports, each with the client's own peer number. It is installed again whenever these change. Packets of
// version 1 have no peer number and are dropped; dcol's clients send none. In the words of nft:
//
//	chain input {
//		type filter hook input priority filter - 10; policy accept;
//		udp dport PORT @th,64,8 & 0xf8 == 0x30 goto refused
//		udp dport PORT @th,64,8 & 0xf8 == 0x48 goto data
//	}
//	chain data {
//		ip saddr . udp sport . @th,72,24 @clients4 accept
//		ip6 saddr . udp sport . @th,72,24 @clients6 accept
//		goto refused
//	}
//	chain refused {
//		counter drop
//	}
func openGuard(iface string, port uint16, clients func() []source) (*nft.Kept, error) {
	t := guardTable(iface)
	chains := []nft.Chain{
		{
			Name:  "input",
			Hook:  &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_IN, Priority: -10},
			Rules: [][]expr.Any{lead(port, dataV1, "refused"), lead(port, dataV2, "data")},
		},
		{
			Name: "data",
			Rules: [][]expr.Any{
				fromClient(unix.NFPROTO_IPV4, 12, clients4),
				fromClient(unix.NFPROTO_IPV6, 8, clients6),
				{&expr.Verdict{Kind: expr.VerdictGoto, Chain: "refused"}},
			},
		},
		{
			Name:  "refused",
			Rules: [][]expr.Any{{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}}},
		},
	}
	return nft.Keep(t, func(tx *nft.Tx) {
		tx.AddSet(t, clients4)
		tx.AddSet(t, clients6)
		tx.AddChains(t, chains)
		for _, c := range clients() {
			set := clients6
			if c.remote.Addr().Is4() {
				set = clients4
			}
			key := binary.BigEndian.AppendUint16(c.remote.Addr().AsSlice(), c.remote.Port())
			key = append(key, 0, 0)                             // Each part fills whole registers
			key = binary.BigEndian.AppendUint32(key, c.peer<<8) // from their first byte on.
			tx.AddElements(t, set, []nft.Element{{Key: key}})
		}
	})
}

// sources lists the connected members' sources, as far as their peer numbers are known.
func (s *Server) sources() []source {
	var list []source
	for _, have := range s.sessions {
		if have.peer != noPeer {
			list = append(list, source{have.remote, have.peer})
		}
	}
	return list
}

const (
	reg   = unix.NFT_REG_1
	reg32 = unix.NFT_REG32_00 // the same memory in pieces of four bytes
)

// lead leads data packets of one kind to the port into a chain.
func lead(port uint16, code byte, chain string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		equal(unix.IPPROTO_UDP),
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		equal(binary.BigEndian.AppendUint16(nil, port)...),
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 8, Len: 1},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{opcode}, Xor: []byte{0}},
		equal(code),
		&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain},
	}
}

// fromClient accepts packets whose source and peer number are in a set. saddr is the source address's
// offset in the IP header.
func fromClient(nfproto byte, saddr uint32, set nft.Set) []expr.Any {
	addr := set.Key[0].Size()
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg},
		equal(nfproto),
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: saddr, Len: addr},
		&expr.Payload{DestRegister: reg32 + addr/4, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2},
		&expr.Payload{DestRegister: reg32 + addr/4 + 1, Base: expr.PayloadBaseTransportHeader, Offset: 9, Len: peerNumber.Size()},
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
