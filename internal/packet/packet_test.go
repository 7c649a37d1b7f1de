package packet

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"pgregory.net/rapid"
)

func checkRoundTrip(t testing.TB, b []byte, p *Packet) {
	t.Helper()
	if got := p.Bytes(); !bytes.Equal(got, b) {
		t.Fatalf("encoded: %x\nwas:     %x\n%+v", got, b, p)
	}
}

var anyByte = rapid.Byte()

func someBytes(least, most int) *rapid.Generator[[]byte] { return rapid.SliceOfN(anyByte, least, most) }

func drawAddr(t *rapid.T, size int) netip.Addr {
	a, _ := netip.AddrFromSlice(someBytes(size, size).Draw(t, "address"))
	return a
}

// drawPacket returns a sealed packet as a host might send it.
func drawPacket(t *rapid.T) *Packet {
	p := &Packet{Payload: someBytes(0, 40).Draw(t, "payload"), Trailer: someBytes(0, 6).Draw(t, "trailer")}
	if rapid.Bool().Draw(t, "IPv4") {
		p.V4 = &IPv4{
			TOS: anyByte.Draw(t, "TOS"), ID: rapid.Uint16().Draw(t, "ID"), TTL: anyByte.Draw(t, "TTL"),
			Src: drawAddr(t, 4), Dst: drawAddr(t, 4), Options: padded(someBytes(0, 40).Draw(t, "IP options"), 4),
		}
		if rapid.Bool().Draw(t, "whole") {
			p.V4.Fragment = DontFragment
		}
	} else {
		p.V6 = &IPv6{
			Class: anyByte.Draw(t, "class"), FlowLabel: rapid.Uint32Range(0, 0xfffff).Draw(t, "flow label"), HopLimit: anyByte.Draw(t, "hop limit"),
			Src: drawAddr(t, 16), Dst: drawAddr(t, 16),
		}
		for _, kind := range rapid.SliceOfN(rapid.SampledFrom([]uint8{HopByHop, Routing, FragmentHeader, Authentication, DestinationOptions}), 0, 3).Draw(t, "extensions") {
			words := rapid.IntRange(1, 3).Draw(t, "words")
			e := Extension{Kind: kind, Data: make([]byte, 8*words)}
			e.Data[1] = uint8(words - 1)
			switch kind {
			case FragmentHeader: // an atomic fragment, RFC 6946
				e.Data = e.Data[:8]
			case Authentication:
				e.Data[1] = uint8(2*words - 2)
			}
			p.V6.Extensions = append(p.V6.Extensions, e)
		}
	}
	switch rapid.IntRange(0, 3).Draw(t, "protocol") {
	case 0:
		p.TCP = &TCP{
			SrcPort: rapid.Uint16().Draw(t, "source"), DstPort: rapid.Uint16().Draw(t, "destination"),
			Seq: rapid.Uint32().Draw(t, "seq"), Ack: rapid.Uint32().Draw(t, "ack"), Flags: Flags(rapid.Uint16Range(0, 0xfff).Draw(t, "flags")),
			Window: rapid.Uint16().Draw(t, "window"), Urgent: rapid.Uint16().Draw(t, "urgent"),
		}
		for room := 38; ; {
			o := drawOption(t)
			if room -= o.Size(); room < 0 {
				break
			}
			p.TCP.Options = append(p.TCP.Options, o)
		}
		if size := optionsSize(p.TCP.Options); size%4 != 0 {
			p.TCP.Options = append(p.TCP.Options, End)
			p.TCP.Rest = make([]byte, 3-size%4)
		}
	case 1:
		p.UDP = &UDP{SrcPort: rapid.Uint16().Draw(t, "source"), DstPort: rapid.Uint16().Draw(t, "destination")}
	case 2:
		p.ICMP = &ICMP{Type: anyByte.Draw(t, "type"), Code: anyByte.Draw(t, "code"), Data: [4]byte(someBytes(4, 4).Draw(t, "data"))}
	case 3:
		const experiment = 253
		if p.V4 != nil {
			p.V4.Protocol = experiment
		}
		p.setProtocol(experiment)
	}
	if err := p.Seal(); err != nil {
		t.Fatal(err)
	}
	return p
}

func drawOption(t *rapid.T) Option {
	switch kind := rapid.IntRange(0, 6).Draw(t, "option"); kind {
	case 0:
		return NOP
	case 1:
		return MSS(rapid.Uint16().Draw(t, "MSS"))
	case 2:
		return Timestamps(rapid.Uint32().Draw(t, "value"), rapid.Uint32().Draw(t, "echo"))
	case 3:
		return drawMPTCP(t).Option()
	default:
		return Option{rapid.Uint8Min(2).Draw(t, "kind"), someBytes(0, 20).Draw(t, "data")}
	}
}

func TestDecodeIsInverse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPacket(t)
		b := p.Bytes()
		got, err := Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(p, got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Fatalf("%x\n%s", b, diff)
		}
		if err := got.Verify(); err != nil {
			t.Fatal(err)
		}
		// Change one bit that a checksum covers.
		if got.checksumField() == nil || p.UDP != nil && p.V4 != nil {
			return
		}
		at := len(b) - len(p.Trailer) - 1
		b[at] ^= 1
		if got, err := Parse(b); err == nil && got.checksumField() != nil && !errors.Is(got.Verify(), ErrChecksum) {
			t.Fatalf("%x: its checksum is right", b)
		}
	})
}

// Wherever a quote ends, it encodes to the same bytes.
func TestQuoteEndsAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := drawPacket(t)
		b := whole.Bytes()
		b = b[:len(b)-len(whole.Trailer)]
		for end := range b {
			p, err := ParseQuote(b[:end])
			if p == nil {
				if whole.V4 != nil && end >= int(whole.V4.IHL)*4 || whole.V6 != nil && end >= ipv6Fixed {
					t.Fatalf("%d bytes: %v", end, err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%d bytes: %v", end, err)
			}
			if got := p.Bytes(); !bytes.Equal(got, b[:end]) {
				t.Fatalf("%d bytes: encoded: %x\nwas:     %x\n%+v", end, got, b[:end], p)
			}
			if p.Missing != len(b)-end {
				t.Fatalf("%d bytes: %d missing", end, p.Missing)
			}
		}
	})
}

// gopacket, an independent decoder, reads the same from our packets.
func TestAsGopacket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPacket(t)
		first := gopacket.Decoder(layers.LayerTypeIPv4)
		if p.V6 != nil {
			first = layers.LayerTypeIPv6
			p.V6.NextHeader, p.V6.Extensions = p.V6.protocol(), nil // gopacket does not know some of them
		} else {
			p.V4.Options = bytes.Repeat([]byte{KindNOP}, len(p.V4.Options)) // gopacket rejects malformed ones
		}
		p.Trailer = nil
		if err := p.Seal(); err != nil {
			t.Fatal(err)
		}
		theirs := gopacket.NewPacket(p.Bytes(), first, gopacket.Default)
		if l, ok := theirs.NetworkLayer().(*layers.IPv4); ok {
			if l.SrcIP.String() != p.Src().String() || l.TTL != p.V4.TTL || l.Length != p.V4.Length || l.Checksum != p.V4.Checksum {
				t.Fatalf("%+v, want %+v", l, p.V4)
			}
		}
		for _, l := range theirs.Layers() {
			if sums, ok := l.(interface {
				SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
			}); ok {
				if err := sums.SetNetworkLayerForChecksum(theirs.NetworkLayer()); err != nil {
					t.Fatal(err)
				}
			}
		}
		err, mismatches := theirs.VerifyChecksums()
		if err != nil || len(mismatches) > 0 {
			t.Fatalf("%x: checksums %+v, %v", p.Bytes(), mismatches, err)
		}
		if p.TCP == nil {
			return
		}
		l, ok := theirs.TransportLayer().(*layers.TCP)
		if !ok {
			t.Fatalf("%x: %v", p.Bytes(), theirs.ErrorLayer())
		}
		if l.Seq != p.TCP.Seq || l.Ack != p.TCP.Ack || l.Window != p.TCP.Window || l.SYN != p.TCP.Flags.Has(SYN) || l.DataOffset != p.TCP.Offset || !bytes.Equal(l.Payload, p.Payload) {
			t.Fatalf("%+v, want %+v", l, p.TCP)
		}
		for i, o := range l.Options {
			if ours := p.TCP.Options[i]; uint8(o.OptionType) != ours.Kind || !bytes.Equal(o.OptionData, ours.Data) {
				t.Fatalf("option %v, want %v", o, ours)
			}
		}
	})
}

func TestOptions(t *testing.T) {
	o := []Option{MSS(1460), WindowScale(7), SACKPermitted, SACK(Block{1, 2}, Block{3, 4}), NOP, Timestamps(5, 6), FastOpen([]byte{1, 2, 3, 4}),
		MD5([16]byte{9}), AO(1, 2, []byte{3}), Experiment(0xdc01, []byte{10, 0, 0, 1}), End}
	var b []byte
	for _, o := range o {
		b = o.Append(b)
	}
	got, rest := ParseOptions(append(b, 0, 0))
	if diff := cmp.Diff(o, got, cmpopts.EquateEmpty()); diff != "" || !bytes.Equal(rest, []byte{0, 0}) {
		t.Fatalf("rest %x\n%s", rest, diff)
	}
	if v, ok := got[0].MSS(); !ok || v != 1460 {
		t.Error(v)
	}
	if v, ok := got[1].WindowScale(); !ok || v != 7 {
		t.Error(v)
	}
	if v, ok := got[3].SACK(); !ok || !slices.Equal(v, []Block{{1, 2}, {3, 4}}) {
		t.Error(v)
	}
	if a, b, ok := got[5].Timestamps(); !ok || a != 5 || b != 6 {
		t.Error(a, b)
	}
	if v, ok := got[6].FastOpen(); !ok || !bytes.Equal(v, []byte{1, 2, 3, 4}) {
		t.Error(v)
	}
	if v, ok := got[7].MD5(); !ok || v != [16]byte{9} {
		t.Error(v)
	}
	if a, b, mac, ok := got[8].AO(); !ok || a != 1 || b != 2 || !bytes.Equal(mac, []byte{3}) {
		t.Error(a, b, mac)
	}
	if id, data, ok := got[9].Experiment(); !ok || id != 0xdc01 || !bytes.Equal(data, []byte{10, 0, 0, 1}) {
		t.Error(id, data)
	}
	for _, o := range []Option{{KindMSS, []byte{1}}, {KindWindowScale, nil}, {KindSACK, make([]byte, 9)}, {KindTimestamps, nil}, {KindFastOpen, make([]byte, 3)},
		{KindMD5, nil}, {KindAO, []byte{1}}, {KindExperiment1, []byte{1}}} {
		if readable(o) {
			t.Errorf("option %d of %d bytes is read", o.Kind, o.Size())
		}
	}
}

func readable(o Option) bool {
	_, mss := o.MSS()
	_, scale := o.WindowScale()
	_, sack := o.SACK()
	_, _, timestamps := o.Timestamps()
	_, fastOpen := o.FastOpen()
	_, md5 := o.MD5()
	_, _, _, ao := o.AO()
	_, _, experiment := o.Experiment()
	return mss || scale || sack || timestamps || fastOpen || md5 || ao || experiment
}

// Bytes that are not an option are kept, and the packet is still valid.
func TestBrokenOptions(t *testing.T) {
	for name, broken := range map[string][]byte{
		"length 0": {254, 0, 0, 0}, "length 1": {254, 1, 0, 0}, "too long": {254, 5, 0, 0}, "no length": {1, 1, 1, 254},
	} {
		p := &Packet{V4: &IPv4{}, TCP: &TCP{Options: []Option{MSS(1)}, Rest: broken}}
		if err := p.Seal(); err != nil {
			t.Fatal(err)
		}
		got, err := Parse(p.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		checkRoundTrip(t, p.Bytes(), got)
		if mss, _ := got.TCP.Options[0].MSS(); mss != 1 || len(got.TCP.Rest) == 0 || got.TCP.OptionsComplete() {
			t.Errorf("%s: %+v", name, got.TCP)
		}
	}
}

func TestMalformed(t *testing.T) {
	sealed := func(p *Packet) []byte {
		if err := p.Seal(); err != nil {
			t.Fatal(err)
		}
		return p.Bytes()
	}
	v4 := sealed(&Packet{V4: &IPv4{}, TCP: &TCP{}})
	v6 := sealed(&Packet{V6: &IPv6{}, UDP: &UDP{}})
	with := func(b []byte, at int, value byte) []byte {
		b = bytes.Clone(b)
		b[at] = value
		return b
	}
	for name, b := range map[string][]byte{
		"nothing": nil, "version 5": with(v4, 0, 0x55), "half a header": v4[:19], "short IHL": with(v4, 0, 0x44), "long IHL": with(v4, 0, 0x4f),
		"length below the header's": with(v4, 3, 19), "half a TCP header": with(v4, 3, 39), "short offset": with(v4, 32, 0x40), "long offset": with(v4, 32, 0x60),
		"half an IPv6 header": v6[:39], "half a UDP header": with(v6, 5, 7),
		"half an extension": with(with(v6, 6, HopByHop), 5, 7), "a long extension": with(with(v6, 6, HopByHop), 41, 1),
	} {
		p, err := Parse(b)
		if !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
		if p != nil {
			checkRoundTrip(t, b, p)
		}
	}
}

// A length of 0 means a length that does not fit into the header, except if no bytes follow.
func TestLengthZero(t *testing.T) {
	from, to := netip.MustParseAddrPort("[fd00::1]:1"), netip.MustParseAddrPort("[fd00::2]:2")
	big := Segment(from, to, TCP{Offset: 5}, make([]byte, 70_000))
	big.V6.NextHeader = ProtocolTCP
	empty := &Packet{V6: &IPv6{NextHeader: 59}, Trailer: make([]byte, 6)}
	for _, p := range []*Packet{big, empty} {
		got, err := Parse(p.Bytes())
		if err != nil || len(got.Payload) != len(p.Payload) || len(got.Trailer) != len(p.Trailer) {
			t.Errorf("%d bytes of payload, %d behind, %v", len(got.Payload), len(got.Trailer), err)
		}
	}
}

func TestFragments(t *testing.T) {
	whole := &Packet{V4: &IPv4{}, TCP: &TCP{SrcPort: 1, DstPort: 2}, Payload: make([]byte, 12)}
	if err := whole.Seal(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		fragment uint16
		tcp      bool
		offset   int
		more     bool
	}{{MoreFragments, true, 0, true}, {MoreFragments | 2, false, 16, true}, {3, false, 24, false}, {DontFragment, true, 0, false}} {
		whole.V4.Fragment = c.fragment
		b := whole.Bytes()
		p, err := Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		offset, more := p.Fragment()
		if (p.TCP != nil) != c.tcp || offset != c.offset || more != c.more {
			t.Errorf("fragment %#x: offset %d, more %v: %+v", c.fragment, offset, more, p)
		}
		checkRoundTrip(t, b, p)
	}
	v6 := &Packet{V6: &IPv6{Extensions: []Extension{{FragmentHeader, []byte{0, 0, 0, 17, 0, 0, 0, 1}}}}, TCP: &TCP{}}
	if err := v6.Seal(); err != nil {
		t.Fatal(err)
	}
	p, err := Parse(v6.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if offset, more := p.Fragment(); offset != 16 || !more || p.TCP != nil || p.Protocol() != ProtocolTCP {
		t.Errorf("offset %d, more %v: %+v", offset, more, p)
	}
	if err := p.Verify(); !errors.Is(err, ErrIncomplete) {
		t.Error(err)
	}
}

func TestSealRefuses(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	for name, p := range map[string]*Packet{
		"no IP header":            {TCP: &TCP{}},
		"two IP headers":          {V4: &IPv4{}, V6: &IPv6{}},
		"41 bytes of TCP options": {V4: &IPv4{}, TCP: &TCP{Rest: make([]byte, 41)}},
		"41 bytes of IP options":  {V4: &IPv4{Options: make([]byte, 41)}},
		"64 KiB":                  {V6: &IPv6{}, Payload: make([]byte, 1<<16)},
		"mixed":                   {V4: &IPv4{Src: v6, Dst: v4}},
		"mixed, IPv6":             {V6: &IPv6{Src: v4, Dst: v6}},
		"a short extension":       {V6: &IPv6{Extensions: []Extension{{Kind: Routing}}}},
	} {
		if err := p.Seal(); err == nil {
			t.Errorf("%s: sealed", name)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, b := range readCapture(f) {
		f.Add(b)
	}
	for _, p := range []*Packet{
		{V4: &IPv4{Options: []byte{7, 4, 4, 0}}, ICMP: &ICMP{Type: Unreachable}},
		{V6: &IPv6{Extensions: []Extension{{HopByHop, make([]byte, 8)}, {FragmentHeader, make([]byte, 8)}}}, ICMP: &ICMP{Type: V6TimeExceeded}},
	} {
		if err := errors.Join(p.SetQuote(readCapture(f)[0], ExtensionObject{ClassMPLS, 1, make([]byte, 4)}), p.Seal()); err != nil {
			f.Fatal(err)
		}
		f.Add(p.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var d Decoder
		for _, quote := range []bool{false, true} {
			p, _ := d.decode(b, quote)
			if p == nil {
				continue
			}
			checkRoundTrip(t, b, p)
			_ = p.Verify()
			p.From()
			p.To()
			if q, err := p.Quote(); err == nil {
				if inner, _ := ParseQuote(q.Bytes); inner != nil {
					checkRoundTrip(t, q.Bytes, inner)
				}
			}
			if p.TCP == nil {
				continue
			}
			for _, o := range p.TCP.Options {
				readable(o)
				if m, err := o.MPTCP(); err == nil && !bytes.Equal(m.Option().Data, o.Data) {
					t.Fatalf("%+v was %x", m, o.Data)
				}
			}
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	packets := readCapture(b)
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		var d Decoder
		for i := 0; b.Loop(); i++ {
			p, err := d.Decode(packets[i%len(packets)])
			if err != nil {
				b.Fatal(err)
			}
			for _, o := range p.TCP.Options {
				o.DSS()
			}
		}
	})
	b.Run("gopacket", func(b *testing.B) {
		b.ReportAllocs()
		var v4 layers.IPv4
		var v6 layers.IPv6
		var tcp layers.TCP
		var payload gopacket.Payload
		parser4 := gopacket.NewDecodingLayerParser(layers.LayerTypeIPv4, &v4, &tcp, &payload)
		parser6 := gopacket.NewDecodingLayerParser(layers.LayerTypeIPv6, &v6, &tcp, &payload)
		parser4.IgnoreUnsupported, parser6.IgnoreUnsupported = true, true
		var found []gopacket.LayerType
		for i := 0; b.Loop(); i++ {
			packet := packets[i%len(packets)]
			parser := parser4
			if packet[0]>>4 == 6 {
				parser = parser6
			}
			if err := parser.DecodeLayers(packet, &found); err != nil {
				b.Fatal(err)
			}
		}
	})
}
