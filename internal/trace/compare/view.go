package compare

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/detour-collective/dcol/internal/packet"
)

// View has the fields of a packet that are visible, whole.
type View struct {
	order  []Field // as they are in the packet
	values []Value // of order
	// allOptions is set if every TCP option is visible: one that is not there is absent.
	allOptions bool
	// allPayload is set if the payload is visible to its end.
	allPayload bool
	padding    int // NOPs and bytes behind the end of the options
	// prefix is the payload as far as it is visible.
	prefix string
}

func (v *View) set(f Field, value Value) {
	for i := 2; ; i++ {
		if !slices.Contains(v.order, f) {
			break
		}
		base, _, _ := cutHash(f)
		f = Field(fmt.Sprintf("%s#%d", base, i))
	}
	v.order, v.values = append(v.order, f), append(v.values, value)
}

// cutHash splits the number off a repeated field.
func cutHash(f Field) (base Field, number string, repeated bool) {
	for i := range f {
		if f[i] == '#' {
			return f[:i], string(f[i+1:]), true
		}
	}
	return f, "", false
}

// Of returns the visible fields of a packet.
func Of(p *packet.Packet) *View {
	const usual = 24 // fields
	v := &View{order: make([]Field, 0, usual), values: make([]Value, 0, usual)}
	v.ip(p)
	if offset, _ := p.Fragment(); offset > 0 {
		return v // what follows is not the beginning of the transport header
	}
	switch {
	case p.TCP != nil:
		v.tcp(p)
	case p.UDP != nil:
		v.udp(p)
	case p.ICMP != nil:
		v.icmp(p)
	default:
		v.payload(p)
	}
	return v
}

func (v *View) ip(p *packet.Packet) {
	if h := p.V4; h != nil {
		v.set(DSCP, number(h.TOS>>2))
		v.set(ECN, ecnValue(h.TOS&3))
		v.set(Length, number(h.Length))
		v.set(ID, text(fmt.Sprint(h.ID), fmt.Sprintf("%#04x", h.ID)))
		v.set(Fragment, text(fmt.Sprint(h.Fragment), fmt.Sprintf("%#04x", h.Fragment)))
		v.set(Protocol, number(h.Protocol))
		if len(h.Options) > 0 {
			v.set(IPOptions, text(string(h.Options), showBytes(h.Options)))
		}
	} else if h := p.V6; h != nil {
		v.set(DSCP, number(h.Class>>2))
		v.set(ECN, ecnValue(h.Class&3))
		v.set(FlowLabel, number(h.FlowLabel))
		v.set(Length, number(h.Length))
		v.set(Protocol, number(p.Protocol()))
		var ext []byte
		for _, e := range h.Extensions {
			ext = append(append(ext, e.Kind), e.Data...)
		}
		if len(ext) > 0 {
			v.set(IPOptions, text(string(ext), showBytes(ext)))
		}
	}
	v.set(Source, text(p.Src().String(), p.Src().String()))
	v.set(Destination, text(p.Dst().String(), p.Dst().String()))
}

func ecnValue(bits uint8) Value {
	name := [...]string{"not capable", "capable (1)", "capable (0)", "congestion"}[bits]
	return text(name, name)
}

func (v *View) tcp(p *packet.Packet) {
	h, there := p.TCP, p.Cut
	if there == 0 {
		there = 20
	}
	if h.Offset == 0 {
		// No header has that: some routers pad a short quote with zeros.
		there = min(there, 8)
	}
	seen := func(end int, f Field, value Value) {
		if there >= end {
			v.set(f, value)
		}
	}
	const ecn = packet.ECE | packet.CWR | packet.AE
	const control = packet.FIN | packet.SYN | packet.RST | packet.PSH | packet.ACK | packet.URG
	seen(2, TCPSource, number(h.SrcPort))
	seen(4, TCPDestination, number(h.DstPort))
	seen(8, Seq, number(h.Seq))
	seen(12, Ack, number(h.Ack))
	seen(14, Offset, number(h.Offset))
	seen(14, Reserved, number(uint16(h.Flags)>>9))
	seen(14, FlagsField, text(fmt.Sprint(uint16(h.Flags&control)), flagsText(h.Flags&control)))
	seen(14, ECNFlags, text(fmt.Sprint(uint16(h.Flags&ecn)), flagsText(h.Flags&ecn)))
	seen(16, Window, number(h.Window))
	seen(18, TCPChecksum, text(fmt.Sprint(h.Checksum), fmt.Sprintf("%#04x", h.Checksum)))
	seen(20, Urgent, number(h.Urgent))
	if there < 20 {
		return
	}
	for _, o := range h.Options {
		if o.Kind == packet.KindNOP || o.Kind == packet.KindEnd {
			v.padding++
			continue
		}
		v.set(FieldOf(o), optionValue(o))
	}
	v.allOptions = h.OptionsComplete()
	if v.allOptions {
		v.padding += len(h.Rest)
		v.payload(p)
	}
}

func (v *View) udp(p *packet.Packet) {
	there := p.Cut
	if there == 0 {
		there = 8
	}
	h := p.UDP
	if there >= 4 {
		v.set(UDPSource, number(h.SrcPort))
		v.set(UDPDestination, number(h.DstPort))
	}
	if there >= 8 {
		v.set(UDPLength, number(h.Length))
		v.set(UDPChecksum, text(fmt.Sprint(h.Checksum), fmt.Sprintf("%#04x", h.Checksum)))
		v.payload(p)
	}
}

func (v *View) icmp(p *packet.Packet) {
	if p.Cut > 0 && p.Cut < 8 {
		return
	}
	h := p.ICMP
	v.set(ICMPType, number(h.Type))
	v.set(ICMPCode, number(h.Code))
	v.set(ICMPChecksum, text(fmt.Sprint(h.Checksum), fmt.Sprintf("%#04x", h.Checksum)))
	v.set(ICMPRest, number(binary.BigEndian.Uint32(h.Data[:])))
	v.payload(p)
}

func (v *View) payload(p *packet.Packet) {
	v.prefix = string(p.Payload)
	v.allPayload = p.Missing == 0
	if v.allPayload && len(p.Payload) > 0 {
		v.set(Payload, text(string(p.Payload), showBytes(p.Payload)))
	}
}

// Value returns a field's value. ok is false if the field is not visible. Present is false if an option or a
// payload is visibly absent.
func (v *View) Value(f Field) (value Value, ok bool) {
	if i := slices.Index(v.order, f); i >= 0 {
		return v.values[i], true
	}
	switch {
	case f.IsOption():
		return absent, v.allOptions
	case f == Payload:
		return absent, v.allPayload
	case f == IPOptions:
		return absent, true
	}
	return absent, false
}
