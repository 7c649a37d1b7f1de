package testbed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

// NAT makes a host a home router. IPv4 packets from an inside link that leave by another link get the host's
// address and a port that the kind chooses. IPv6 passes unchanged. From outside, only forwarded ports and
// what the kind allows get in. The zero NAT does nothing.
type NAT struct {
	Inside   []string // links
	Kind     NATKind
	Forwards []PortForward
}

// PortForward forwards a port from outside: for IPv4 on the host's own address, for IPv6 on that of the
// inside host.
type PortForward struct {
	Protocol string // "tcp" or "udp"
	Port     uint16
	To       string // a host; the port is the same there
}

func (n NAT) isZero() bool { return len(n.Inside) == 0 && len(n.Forwards) == 0 && n.Kind == Symmetric }

var protocols = map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}

// validate checks the NAT of host at.
func (n NAT) validate(at string, links []LinkSpec) error {
	if n.isZero() {
		return nil
	}
	if len(n.Inside) == 0 {
		return errors.New("it is a NAT, and no link is inside: say which are")
	}
	if err := n.Kind.validate(); err != nil {
		return err
	}
	var own, others []string
	for _, l := range links {
		if l.A == at || l.B == at {
			own = append(own, l.Name)
		}
		others = append(others, l.A, l.B)
	}
	for i, name := range n.Inside {
		if !slices.Contains(own, name) {
			return fmt.Errorf("inside link %q is none of its links", name)
		}
		if slices.Contains(n.Inside[:i], name) {
			return fmt.Errorf("link %q is inside twice", name)
		}
	}
	if len(n.Inside) == len(own) {
		return errors.New("all its links are inside: there is nobody to translate addresses for")
	}
	taken := map[PortForward]bool{}
	for _, f := range n.Forwards {
		if protocols[f.Protocol] == 0 {
			return fmt.Errorf("port forward: protocol %q is unknown: use \"tcp\" or \"udp\"", f.Protocol)
		}
		if f.Port == 0 {
			return fmt.Errorf("port forward to %q: no port", f.To)
		}
		if f.To == at || !slices.Contains(others, f.To) {
			return fmt.Errorf("port forward of %s/%d: no link leads to another host %q", f.Protocol, f.Port, f.To)
		}
		key := PortForward{Protocol: f.Protocol, Port: f.Port}
		if taken[key] {
			return fmt.Errorf("%s/%d is forwarded twice", f.Protocol, f.Port)
		}
		taken[key] = true
	}
	return nil
}

var natTable = nft.Table{Name: "home"}

// natPlan is a NAT in terms of what is on its host.
type natPlan struct {
	kind     NATKind
	inside   []string // interfaces
	forwards []forwardPlan
}

type forwardPlan struct {
	protocol     byte
	port         uint16
	addr4, addr6 netip.Addr
}

func (p plan) nat(h hostPlan) natPlan {
	n := natPlan{kind: h.NAT.Kind}
	for _, iface := range h.ifaces {
		if slices.Contains(h.NAT.Inside, p.links[iface.link].Name) {
			n.inside = append(n.inside, iface.name)
		}
	}
	for _, f := range h.NAT.Forwards {
		for _, to := range p.hosts {
			if to.Name == f.To {
				n.forwards = append(n.forwards, forwardPlan{protocols[f.Protocol], f.Port, to.addr4(), to.addr6()})
			}
		}
	}
	return n
}

// Bits of ct state and ct status, from include/uapi/linux/netfilter/nf_conntrack_common.h.
const (
	stateEstablished = 1 << 1
	stateRelated     = 1 << 2
	statusDNAT       = 1 << 5
)

const portAt = 2 // of the destination port, in TCP and UDP headers

// chains returns the rules; what they are in nft's words is in testdata.
func (n natPlan) chains() []nft.Chain {
	in := nft.Chain{Name: "in", Hook: &nft.Hook{Type: "nat", Number: unix.NF_INET_PRE_ROUTING, Priority: -100}}   // dstnat
	out := nft.Chain{Name: "out", Hook: &nft.Hook{Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: 100}} // srcnat
	forward := nft.Chain{Name: "forward", Hook: &nft.Hook{Type: "filter", Number: unix.NF_INET_FORWARD}}
	guard := nft.Chain{Name: "guard", Rules: [][]expr.Any{
		{&expr.Ct{Key: expr.CtKeySTATE, Register: reg}, bits(stateEstablished | stateRelated), notEqual(noBits), accept()},
		{&expr.Ct{Key: expr.CtKeySTATUS, Register: reg}, bits(statusDNAT), notEqual(noBits), accept()},
	}}
	for _, f := range n.forwards {
		in.Rules = append(in.Rules, slices.Concat(
			n.outside(expr.MetaKeyIIFNAME), f.is(unix.NFPROTO_IPV4),
			[]expr.Any{
				&expr.Fib{Register: reg, FlagDADDR: true, ResultADDRTYPE: true},
				equal(binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)),
				&expr.Immediate{Register: reg, Data: f.addr4.AsSlice()},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg},
			}))
		guard.Rules = append(guard.Rules, slices.Concat(
			f.is(unix.NFPROTO_IPV6),
			[]expr.Any{
				&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: 24, Len: 16}, // the destination (RFC 8200, 3)
				equal(f.addr6.AsSlice()),
				accept(),
			}))
	}
	in.Rules = append(in.Rules, n.letsIn()...)
	guard.Rules = append(guard.Rules, []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}})
	if n.kind != Symmetric {
		out.Rules = n.keepsPort()
	}
	for _, iface := range n.inside {
		forward.Rules = append(forward.Rules, slices.Concat(
			[]expr.Any{meta(expr.MetaKeyOIFNAME), equal(ifname(iface))}, n.outside(expr.MetaKeyIIFNAME),
			[]expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: guard.Name}}))
		out.Rules = append(out.Rules, slices.Concat(
			[]expr.Any{meta(expr.MetaKeyNFPROTO), equal([]byte{unix.NFPROTO_IPV4}), meta(expr.MetaKeyIIFNAME), equal(ifname(iface))},
			n.outside(expr.MetaKeyOIFNAME),
			[]expr.Any{&expr.Masq{FullyRandom: true}}))
	}
	chains := []nft.Chain{in, guard, forward, out}
	if n.kind != Symmetric {
		chains = append(chains, n.own())
	}
	if len(n.kind.sets()) > 0 {
		chains = append(chains, n.learn())
	}
	return chains
}

// outside passes packets whose interface is not one of those inside.
func (n natPlan) outside(key expr.MetaKey) []expr.Any {
	exprs := []expr.Any{meta(key)}
	for _, iface := range n.inside {
		exprs = append(exprs, notEqual(ifname(iface)))
	}
	return exprs
}

func (f forwardPlan) is(family byte) []expr.Any {
	return []expr.Any{
		meta(expr.MetaKeyNFPROTO), equal([]byte{family}),
		meta(expr.MetaKeyL4PROTO), equal([]byte{f.protocol}),
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: portAt, Len: 2},
		equal(binary.BigEndian.AppendUint16(nil, f.port)),
	}
}

var noBits = []byte{0, 0, 0, 0}

func bits(mask uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, mask), Xor: noBits}
}

func notEqual(data []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: data}
}

func accept() expr.Any { return &expr.Verdict{Kind: expr.VerdictAccept} }

// ifname returns a name as the kernel compares it.
func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}
