package cflb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/detour-collective/dcol/internal/packet"
)

// Field selects the controlled fields of a packet (section 5.6.1). The others that identify its flow are
// uncontrolled.
type Field int

// The controlled fields, each with its width.
const (
	PortsOnly      Field = iota // both ports: 32 bits
	PortsID                     // and the identification, IPv4 only: 48 (CFLB-48)
	PortsSource                 // and the last 24 bits of the source, IPv4 only: 56 (CFLB-56)
	PortsLabel                  // and the flow label, IPv6 only: 52
	PortsAddresses              // and the last 64 bits of both addresses, IPv6 only: 160
)

// Bits returns the width of the controlled fields.
func (f Field) Bits() int { return [...]int{32, 48, 56, 52, MaxBits}[f] }

// Header has the parts of a packet that CFLB reads.
type Header struct {
	Controlled   Number
	Uncontrolled Uncontrolled
	TTL          uint8 // or hop limit
}

// Errors of packets that have no such fields. Routers hash them.
var (
	ErrNoPorts = errors.New("the packet has no ports: it is a later fragment, or neither TCP nor UDP")
	ErrVersion = errors.New("packets of this IP version do not have these fields")
)

// Flow returns the uncontrolled fields of a flow whose ports are controlled. Both addresses are of one IP version.
func Flow(src, dst netip.Addr, protocol uint8) Uncontrolled {
	return Uncontrolled{}.with(words(src, 0)...).with(words(dst, 0)...).with(uint32(protocol))
}

// words returns an address as words, with its last bits cleared.
func words(a netip.Addr, cleared int) []uint32 {
	if p, err := a.Prefix(a.BitLen() - cleared); err == nil {
		a = p.Addr()
	}
	b := a.AsSlice()
	var all []uint32
	for ; len(b) >= 4; b = b[4:] {
		all = append(all, binary.BigEndian.Uint32(b))
	}
	return all
}

// check reports the packet's ports, if it has the fields.
func (f Field) check(p *packet.Packet) (src, dst *uint16, err error) {
	if six := p.V6 != nil; f != PortsOnly && six != (f == PortsLabel || f == PortsAddresses) {
		return nil, nil, ErrVersion
	}
	switch {
	case p.TCP != nil && (p.Cut == 0 || p.Cut >= 4):
		return &p.TCP.SrcPort, &p.TCP.DstPort, nil
	case p.UDP != nil && (p.Cut == 0 || p.Cut >= 4):
		return &p.UDP.SrcPort, &p.UDP.DstPort, nil
	}
	return nil, nil, ErrNoPorts
}

// Read returns the fields of a packet that CFLB reads. A quote that is cut after the ports is enough.
func (f Field) Read(p *packet.Packet) (h Header, err error) {
	src, dst, err := f.check(p)
	if err != nil {
		return h, err
	}
	h.Controlled = OfPorts(*src, *dst)
	cleared, clearedDst := 0, 0
	switch f {
	case PortsID:
		h.Controlled = h.Controlled.join(uint64(p.V4.ID), 16)
	case PortsSource:
		b := p.V4.Src.As4()
		h.Controlled = h.Controlled.join(uint64(binary.BigEndian.Uint32(b[:])), 24)
		cleared = 24
	case PortsLabel:
		h.Controlled = h.Controlled.join(uint64(p.V6.FlowLabel), 20)
	case PortsAddresses:
		for _, a := range []netip.Addr{p.V6.Src, p.V6.Dst} {
			b := a.As16()
			h.Controlled = h.Controlled.join(binary.BigEndian.Uint64(b[8:]), 64)
		}
		cleared, clearedDst = 64, 64
	}
	h.TTL = ttl(p)
	h.Uncontrolled = Uncontrolled{}.with(words(p.Src(), cleared)...).with(words(p.Dst(), clearedDst)...).
		with(uint32(p.Protocol()))
	return h, nil
}

func ttl(p *packet.Packet) uint8 {
	if p.V4 != nil {
		return p.V4.TTL
	}
	return p.V6.HopLimit
}

// Write puts controlled fields into a packet. Seal it afterwards.
func (f Field) Write(p *packet.Packet, controlled Number) error {
	src, dst, err := f.check(p)
	if err != nil {
		return err
	}
	if !controlled.fits(f.Bits()) {
		return fmt.Errorf("the controlled fields have %d bits: the number is larger", f.Bits())
	}
	var v uint64
	switch f {
	case PortsID:
		controlled, v = controlled.split(16)
		p.V4.ID = uint16(v)
	case PortsSource:
		controlled, v = controlled.split(24)
		b := p.V4.Src.As4()
		b[1], b[2], b[3] = byte(v>>16), byte(v>>8), byte(v)
		p.V4.Src = netip.AddrFrom4(b)
	case PortsLabel:
		controlled, v = controlled.split(20)
		p.V6.FlowLabel = uint32(v)
	case PortsAddresses:
		for _, a := range []*netip.Addr{&p.V6.Dst, &p.V6.Src} {
			controlled, v = controlled.split(64)
			b := a.As16()
			binary.BigEndian.PutUint64(b[8:], v)
			*a = netip.AddrFrom16(b)
		}
	}
	*src, *dst = Ports(controlled)
	return nil
}
