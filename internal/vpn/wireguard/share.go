package wireguard

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

// sharing makes a device answer at the UDP port of a QUIC server of this host, so that a firewall or a NAT before it needs
// to let in that port only. A WireGuard message begins with its type, 1 to 4, and three zero bytes (WireGuard paper,
// section 5.4). A QUIC packet has one of the two upper bits of its first byte set (RFC 9000, section 17; RFC 8999, section
// 6). RFC 9443 distinguishes other protocols on a shared port in the same way. In the syntax of nft:
//
//	chain in {
//		type filter hook input priority 200; policy accept;
//		udp dport PUBLIC @th,64,8 >= 1 @th,64,8 <= 4 @th,72,24 0 udp dport set OWN
//	}
//	chain out {
//		type filter hook output priority raw; policy accept;
//		udp sport OWN udp sport set PUBLIC
//	}
//
// On input, the port is changed after the host's own firewall, which so sees the port that it lets in, and after connection
// tracking. A redirection by connection tracking would remember where a flow led while the table was missing, for as long
// as a client keeps sending.
type sharing struct {
	public netip.AddrPort
	own    uint16
}

var sharedTable = nft.Table{Name: "dcolwg"}

const (
	afterFirewalls     = 200  // theirs are at 0, SELinux is at 50, NAT at 100
	beforeConnTracking = -300 // which is at -200
)

// SharePort makes a device reachable at the UDP port of a QUIC server, in the calling thread's
// network namespace, until the table is closed. public is QUIC's address; without an IP address it
// means all of the host's. own is the device's port.
func SharePort(public netip.AddrPort, own int) (*nft.Kept, error) {
	addr := public.Addr().Unmap()
	if addr.IsUnspecified() {
		addr = netip.Addr{}
	}
	s := sharing{public: netip.AddrPortFrom(addr, public.Port()), own: uint16(own)}
	table, err := nft.Keep(sharedTable, func(tx *nft.Tx) { tx.AddChains(sharedTable, s.chains()) })
	if err != nil {
		return nil, fmt.Errorf("share UDP port %d with WireGuard: %w", public.Port(), err)
	}
	return table, nil
}

// CleanUpSharedPort removes port sharing left by a crash in the calling thread's network namespace.
func CleanUpSharedPort() error { return nft.RemoveTable(sharedTable) }

// Offsets in a UDP header and of the first byte after it.
const (
	sourcePort      = 0
	destinationPort = 2
	checksum        = 6
	payload         = 8
)

const reg = unix.NFT_REG_1

func (s sharing) chains() []nft.Chain {
	public, own := portBytes(s.public.Port()), portBytes(s.own)
	in := append(s.toAddress(), udp()...)
	in = append(in,
		load(destinationPort, 2), compare(expr.CmpOpEq, public...),
		load(payload, 1), compare(expr.CmpOpGte, 1), compare(expr.CmpOpLte, 4),
		load(payload+1, 3), compare(expr.CmpOpEq, 0, 0, 0),
	)
	out := append(udp(), load(sourcePort, 2), compare(expr.CmpOpEq, own...))
	return []nft.Chain{
		{
			Name:  "in",
			Hook:  &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_IN, Priority: afterFirewalls},
			Rules: [][]expr.Any{append(in, setPort(destinationPort, own)...)},
		},
		{
			Name:  "out",
			Hook:  &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_OUT, Priority: beforeConnTracking},
			Rules: [][]expr.Any{append(out, setPort(sourcePort, public)...)},
		},
	}
}

// toAddress matches packets to QUIC's address, if it listens on a single one.
func (s sharing) toAddress() []expr.Any {
	addr := s.public.Addr()
	if !addr.IsValid() {
		return nil
	}
	family, offset := byte(unix.NFPROTO_IPV4), uint32(16)
	if addr.Is6() {
		family, offset = unix.NFPROTO_IPV6, 24
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg}, compare(expr.CmpOpEq, family),
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(addr.BitLen() / 8)},
		compare(expr.CmpOpEq, addr.AsSlice()...),
	}
}

func udp() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}, compare(expr.CmpOpEq, unix.IPPROTO_UDP)}
}

// load reads a part of the UDP packet. Shorter packets do not match.
func load(offset, size uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: size}
}

func compare(op expr.CmpOp, data ...byte) expr.Any {
	return &expr.Cmp{Op: op, Register: reg, Data: data}
}

func setPort(offset uint32, port []byte) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: reg, Data: port},
		&expr.Payload{
			OperationType: expr.PayloadWrite, SourceRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2,
			CsumType: expr.CsumTypeInet, CsumOffset: checksum,
		},
	}
}

func portBytes(port uint16) []byte { return binary.BigEndian.AppendUint16(nil, port) }
