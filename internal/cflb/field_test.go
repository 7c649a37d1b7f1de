package cflb

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/packet"
)

func segment(t interface{ Fatal(...any) }, from, to string) *packet.Packet {
	p := packet.Segment(netip.MustParseAddrPort(from), netip.MustParseAddrPort(to), packet.TCP{Flags: packet.SYN}, nil)
	if err := p.Seal(); err != nil {
		t.Fatal(err)
	}
	return p
}

// fieldsOf lists the fields of each IP version.
var fieldsOf = map[bool][]Field{false: {PortsOnly, PortsID, PortsSource}, true: {PortsOnly, PortsLabel, PortsAddresses}}

func drawPacket(t *rapid.T) (*packet.Packet, Field) {
	six := rapid.Bool().Draw(t, "IPv6")
	f := rapid.SampledFrom(fieldsOf[six]).Draw(t, "field")
	if six {
		return segment(t, "[2001:db8::1]:1", "[2001:db8:1::2]:443"), f
	}
	return segment(t, "192.0.2.1:1", "198.51.100.2:443"), f
}

// TestFieldsSurviveThePacket: what is written is read again from the packet's bytes, and the uncontrolled fields do
// not depend on it.
func TestFieldsSurviveThePacket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, f := drawPacket(t)
		before, err := f.Read(p)
		if err != nil {
			t.Fatal(err)
		}
		want := drawNumber(t, f.Bits())
		if err := f.Write(p, want); err != nil {
			t.Fatal(err)
		}
		if err := p.Seal(); err != nil {
			t.Fatal(err)
		}
		again, err := packet.Parse(p.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		h, err := f.Read(again)
		if err != nil {
			t.Fatal(err)
		}
		if h.Controlled != want || h.Uncontrolled != before.Uncontrolled || h.TTL != 64 {
			t.Fatalf("%v with %v at %d, not %v with %v at 64", h.Controlled, h.Uncontrolled, h.TTL, want, before.Uncontrolled)
		}
	})
}

func TestPacketsWithoutFields(t *testing.T) {
	four, six := segment(t, "192.0.2.1:1", "192.0.2.2:2"), segment(t, "[2001:db8::1]:1", "[2001:db8::2]:2")
	for _, c := range []struct {
		p    *packet.Packet
		f    Field
		want error
	}{
		{four, PortsLabel, ErrVersion},
		{four, PortsAddresses, ErrVersion},
		{six, PortsID, ErrVersion},
		{six, PortsSource, ErrVersion},
		{&packet.Packet{V4: four.V4, ICMP: &packet.ICMP{}}, PortsOnly, ErrNoPorts},
	} {
		if _, err := c.f.Read(c.p); !errors.Is(err, c.want) {
			t.Errorf("field %d: %v, not %v", c.f, err, c.want)
		}
		if err := c.f.Write(c.p, Number{}); !errors.Is(err, c.want) {
			t.Errorf("field %d: %v, not %v", c.f, err, c.want)
		}
	}
	if err := PortsOnly.Write(four, Number{1 << 32}); err == nil {
		t.Error("33 bits are written into 32")
	}
}

func label(value uint32, ttl uint8, bottom bool) []byte {
	entry := value<<12 | uint32(ttl)
	if bottom {
		entry |= mplsBottom
	}
	return binary.BigEndian.AppendUint32(nil, entry)
}

func TestMPLS(t *testing.T) {
	p := segment(t, "192.0.2.1:1000", "192.0.2.2:443")
	plain := append(append(label(300, 61, false), label(301, 9, true)...), p.Bytes()...)
	h, err := ReadMPLS(plain, PortsOnly)
	if err != nil {
		t.Fatal(err)
	}
	if h.Controlled != OfPorts(1000, 443) || h.TTL != 61 {
		t.Errorf("fields of the packet inside: %v at %d", h.Controlled, h.TTL)
	}
	entropy := append(append(append(label(300, 61, false), label(entropyIndicator, 9, false)...), label(0, 0, true)...), 0xff)
	if err := WriteEntropy(entropy, NumberOf(0xabcde)); err != nil {
		t.Fatal(err)
	}
	if h, err = ReadMPLS(entropy, PortsOnly); err != nil || h.Controlled != NumberOf(0xabcde) || h.TTL != 61 {
		t.Errorf("entropy label: %v at %d, %v", h.Controlled, h.TTL, err)
	}
	if err := WriteEntropy(entropy, NumberOf(1<<20)); err == nil {
		t.Error("21 bits are written into 20")
	}
	if err := WriteEntropy(plain, NumberOf(1)); err == nil {
		t.Error("a packet without entropy label takes one")
	}
}

func trill(hops uint8, options int, kind uint16, tagged bool, inside []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(options)<<6|uint16(hops))
	b = append(b, make([]byte, 4+4*options+12)...)
	if tagged {
		b = append(b, 0x81, 0, 0, 5)
	}
	return append(binary.BigEndian.AppendUint16(b, kind), inside...)
}

func TestTRILL(t *testing.T) {
	p := segment(t, "[2001:db8::1]:1000", "[2001:db8::2]:443").Bytes()
	for _, tagged := range []bool{false, true} {
		h, err := ReadTRILL(trill(33, 2, etherTypeIPv6, tagged, p), PortsOnly)
		if err != nil || h.Controlled != OfPorts(1000, 443) || h.TTL != 33 {
			t.Errorf("tagged %v: %v at %d, %v", tagged, h.Controlled, h.TTL, err)
		}
	}
	if _, err := ReadTRILL(trill(33, 0, 0x0806, false, nil), PortsOnly); !errors.Is(err, ErrNoPorts) {
		t.Errorf("ARP: %v", err)
	}
	if _, err := ReadTRILL([]byte{0x40, 0, 0, 0, 0, 0}, PortsOnly); err == nil {
		t.Error("version 1 is accepted")
	}
}

// FuzzFrames: nothing that arrives breaks the readers.
func FuzzFrames(f *testing.F) {
	p := segment(f, "192.0.2.1:1", "192.0.2.2:2").Bytes()
	f.Add(append(label(1, 2, true), p...))
	f.Add(trill(3, 1, etherTypeIPv4, true, p))
	f.Add(p)
	f.Fuzz(func(_ *testing.T, b []byte) {
		for field := PortsOnly; field <= PortsAddresses; field++ {
			_, _ = ReadMPLS(b, field)
			_, _ = ReadTRILL(b, field)
			if p, err := packet.Parse(b); err == nil {
				_, _ = field.Read(p)
				_ = field.Write(p, Number{1})
			}
		}
		_ = WriteEntropy(b, Number{1})
	})
}
