package packet

import (
	"net/netip"
	"testing"
)

// checkSummary compares a Summary with the decoder's result. The decoder keeps every byte, and its own tests compare it
// with tshark.
func checkSummary(t *testing.T, b []byte) {
	t.Helper()
	var s Summary
	ok := s.Summarise(b, len(b))
	p, err := Parse(b)
	if err != nil || p.TCP == nil || p.Cut > 0 || p.Missing > 0 || !p.TCP.OptionsComplete() {
		return // Summarise may read more of the packet, or less
	}
	if p.V4 != nil && p.V4.Length == 0 || p.V6 != nil && p.V6.Length == 0 {
		return
	}
	if !ok {
		t.Fatalf("%x was not read", b)
	}
	address := func(a [16]byte) netip.Addr {
		if p.V4 != nil {
			return netip.AddrFrom16(a).Unmap()
		}
		return netip.AddrFrom16(a)
	}
	if address(s.Src) != p.Src() || address(s.Dst) != p.Dst() || s.SrcPort != p.TCP.SrcPort || s.DstPort != p.TCP.DstPort {
		t.Fatalf("endpoints: %+v, want %v to %v", s, p.From(), p.To())
	}
	if s.Seq != p.TCP.Seq || s.Ack != p.TCP.Ack || s.Flags != p.TCP.Flags || s.Window != p.TCP.Window || int(s.Payload) != len(p.Payload) {
		t.Fatalf("header: %+v, want %+v and %d bytes", s, p.TCP, len(p.Payload))
	}
	want := Summary{Scale: NoScale}
	for _, o := range p.TCP.Options {
		if value, echo, ok := o.Timestamps(); ok {
			want.HasStamps, want.Value, want.Echo = true, value, echo
		}
		if shift, ok := o.WindowScale(); ok {
			want.Scale = shift
		}
		want.HasSACK = want.HasSACK || o.Kind == KindSACK
		if o.Kind != KindMPTCP {
			continue
		}
		want.HasMPTCP = true
		if d, ok := o.DSS(); ok {
			want.HasDSS, want.DSS = true, d
			continue
		}
		if subtype, ok := o.Subtype(); !ok || subtype == SubtypeDSS {
			want.Malformed = true
			continue
		}
		want.OthersLen += uint8(len(o.Append(want.Others[:want.OthersLen])) - int(want.OthersLen))
	}
	got := Summary{
		Scale: s.Scale, Malformed: s.Malformed, HasStamps: s.HasStamps, HasSACK: s.HasSACK, HasMPTCP: s.HasMPTCP, HasDSS: s.HasDSS,
		OthersLen: s.OthersLen, Value: s.Value, Echo: s.Echo, DSS: s.DSS,
	}
	copy(got.Others[:], s.Others[:s.OthersLen])
	if got != want {
		t.Fatalf("options: %+v, want %+v", got, want)
	}
	for rest := s.Others[:s.OthersLen]; len(rest) > 0; {
		_, rest = s.Other(rest)
	}
}

func TestSummaryAsDecoder(t *testing.T) {
	for _, b := range append(readCapture(t), readPackets(t, "mptcp0", 64)...) {
		checkSummary(t, b)
		for n := range b { // cut by the capture's snap length
			var s, whole Summary
			if !whole.Summarise(b, len(b)) {
				t.Fatal("not read")
			}
			if s.Summarise(b[:n], len(b)) && (s.Payload != whole.Payload || s.Seq != whole.Seq || !s.Cut && s.HasDSS != whole.HasDSS) {
				t.Fatalf("cut to %d bytes: %+v, whole %+v", n, s, whole)
			}
		}
	}
}

func FuzzSummary(f *testing.F) {
	for _, b := range readCapture(f)[:20] {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { checkSummary(t, b) })
}

func BenchmarkSummary(b *testing.B) {
	packets := readCapture(b)
	var s Summary
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p := packets[i%len(packets)]
		s.Summarise(p, len(p))
	}
}
