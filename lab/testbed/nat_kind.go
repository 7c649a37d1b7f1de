package testbed

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

// NATKind selects how a NAT maps and filters UDP, in the terms of RFC 3489, 5. With every kind, TCP
// connections get random ports.
type NATKind string

// The kinds. All but the first keep an inside host's port number, if no other host uses it.
const (
	// Symmetric gives every flow a port by chance, and lets in its answers only.
	Symmetric NATKind = ""
	// PortRestricted lets in what comes from where the port has sent to.
	PortRestricted NATKind = "port-restricted"
	// AddressRestricted lets in what comes from an address that the port has sent to.
	AddressRestricted NATKind = "address-restricted"
	// FullCone lets in everything, once the port has sent something.
	FullCone NATKind = "full-cone"
)

func (k NATKind) validate() error {
	switch k {
	case Symmetric, PortRestricted, AddressRestricted, FullCone:
		return nil
	}
	return fmt.Errorf("kind of NAT %q is unknown: use %q, %q, %q or none, for a symmetric one", k, PortRestricted, AddressRestricted, FullCone)
}

// remembered is the lifetime of a mapping after an inside host last used it (RFC 4787, 4.3).
const remembered = 2 * time.Minute

var (
	// cone maps inside ports to outside ports.
	cone = nft.Set{
		Name: "cone", Key: []nft.Type{nft.InetService}, Data: []nft.Type{nft.IPv4Addr, nft.InetService},
		Timeout: true, Dynamic: true, Size: 1 << 12,
	}
	// spoken is whom a port outside has sent to.
	spoken = nft.Set{
		Name: "spoken", Key: []nft.Type{nft.InetService, nft.IPv4Addr}, Timeout: true, Dynamic: true, Size: 1 << 14,
	}
)

// sets returns what the rules of the kind remember.
func (k NATKind) sets() []nft.Set {
	switch k {
	case FullCone:
		return []nft.Set{cone}
	case AddressRestricted:
		return []nft.Set{cone, spoken}
	}
	return nil
}

const (
	sourcePortAt = 0  // in UDP headers
	sourceAt     = 12 // in IPv4 headers
	targetAt     = 16

	stateNew = 1 << 3

	reg32 = unix.NFT_REG32_00 // the first 4 bytes of reg; the next ones follow
)

// letsIn sends on to the host inside what the kind lets in, of what asks for a new
// flow.
func (n natPlan) letsIn() [][]expr.Any {
	if len(n.kind.sets()) == 0 {
		return nil
	}
	rule := slices.Concat(n.outside(expr.MetaKeyIIFNAME), isUDP4(), []expr.Any{
		&expr.Fib{Register: reg, FlagDADDR: true, ResultADDRTYPE: true}, equal(binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)),
	})
	if n.kind == AddressRestricted {
		rule = append(rule, udpPort(portAt), addr4At(sourceAt), &expr.Lookup{SourceRegister: reg, SetName: spoken.Name})
	}
	return [][]expr.Any{append(rule,
		udpPort(portAt),
		&expr.Lookup{SourceRegister: reg, DestRegister: reg, IsDestRegSet: true, SetName: cone.Name},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg32, RegProtoMin: reg32 + 1, Specified: true},
	)}
}

// learn remembers what goes out, once its source is translated. What began
// outside is not learned from: there the sides are the other way round.
func (n natPlan) learn() nft.Chain {
	chain := nft.Chain{Name: "learn", Hook: &nft.Hook{Type: "filter", Number: unix.NF_INET_POST_ROUTING, Priority: 300}}
	for _, iface := range n.inside {
		begun := slices.Concat(
			isUDP4(), []expr.Any{meta(expr.MetaKeyIIFNAME), equal(ifname(iface))}, n.outside(expr.MetaKeyOIFNAME),
			[]expr.Any{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg}, equal([]byte{0})},
		)
		chain.Rules = append(chain.Rules, append(slices.Clone(begun),
			udpPort(sourcePortAt),
			&expr.Ct{Key: expr.CtKeySRCIP, Register: reg32 + 1},
			&expr.Ct{Key: expr.CtKeyPROTOSRC, Register: reg32 + 2},
			&expr.Dynset{SrcRegKey: reg32, SrcRegData: reg32 + 1, SetName: cone.Name, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: remembered},
		))
		if n.kind == AddressRestricted {
			chain.Rules = append(chain.Rules, append(slices.Clone(begun),
				udpPort(sourcePortAt), addr4At(targetAt),
				&expr.Dynset{SrcRegKey: reg32, SetName: spoken.Name, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: remembered},
			))
		}
	}
	return chain
}

// own drops unsolicited packets to the router itself, as home routers do. Otherwise the kernel would track
// them, and an inside host's reply would get another port.
func (n natPlan) own() nft.Chain {
	return nft.Chain{
		Name: "own", Hook: &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_IN},
		Rules: [][]expr.Any{slices.Concat(n.outside(expr.MetaKeyIIFNAME), isUDP4(), []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: reg}, bits(stateNew), notEqual(noBits),
			&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop},
		})},
	}
}

// keepsPort gives what a host inside sends the port that it has there.
func (n natPlan) keepsPort() [][]expr.Any {
	var rules [][]expr.Any
	for _, iface := range n.inside {
		rules = append(rules, slices.Concat(
			isUDP4(), []expr.Any{meta(expr.MetaKeyIIFNAME), equal(ifname(iface))}, n.outside(expr.MetaKeyOIFNAME), []expr.Any{&expr.Masq{}}))
	}
	return rules
}

func isUDP4() []expr.Any {
	return []expr.Any{
		meta(expr.MetaKeyNFPROTO), equal([]byte{unix.NFPROTO_IPV4}), meta(expr.MetaKeyL4PROTO), equal([]byte{unix.IPPROTO_UDP}),
	}
}

// udpPort loads a port, and addr4At the address that goes with it.
func udpPort(offset uint32) expr.Any {
	return &expr.Payload{DestRegister: reg32, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}
}

func addr4At(offset uint32) expr.Any {
	return &expr.Payload{DestRegister: reg32 + 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4}
}
