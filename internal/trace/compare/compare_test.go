package compare

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/packet"
)

var (
	alice = netip.MustParseAddrPort("192.0.2.1:40000")
	bob   = netip.MustParseAddrPort("198.51.100.9:80")
)

// syn is a SYN as the thesis sends it.
func syn(t testing.TB, options ...packet.Option) *packet.Packet {
	t.Helper()
	p := packet.Segment(alice, bob, packet.TCP{Seq: 1000, Flags: packet.SYN, Window: 5840, Options: options}, nil)
	p.V4.ID = 0x1234
	return sealed(t, p)
}

func sealed(t testing.TB, p *packet.Packet) *packet.Packet {
	t.Helper()
	if err := p.Seal(); err != nil {
		t.Fatal(err)
	}
	return p
}

func sentOf(t testing.TB, p *packet.Packet) *Sent {
	t.Helper()
	s, err := NewSent(p.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// describe is a comparison's changes in words.
func describe(changes []Change) string {
	var parts []string
	for _, c := range changes {
		parts = append(parts, fmt.Sprintf("%s %s %s>%s", c.Kind(), c.Field, c.Sent.Text, c.Seen.Text))
	}
	return strings.Join(parts, ", ")
}

var (
	mss     = packet.MSS(1460)
	scale   = packet.WindowScale(7)
	capable = packet.Capable{Version: 1, Flags: packet.CapableHMAC}.Option()
)

func TestQuote(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(p *packet.Packet)
		quote  int // bytes behind the IP header; 0 all
		want   string
		full   bool
	}{
		{"nothing", func(*packet.Packet) {}, 0, "", true},
		{"time to live", func(p *packet.Packet) { p.V4.TTL = 1 }, 0, "", true},
		{"sequence number in 8 bytes", func(p *packet.Packet) { p.TCP.Seq = 2000 }, 8, "changed tcp.seq 1000>2000", false},
		{"window is not in 8 bytes", func(p *packet.Packet) { p.TCP.Window = 1 }, 8, "", false},
		{"window", func(p *packet.Packet) { p.TCP.Window = 1 }, 0, "changed tcp.window 5840>1, changed tcp.checksum", true},
		{"size", func(p *packet.Packet) { p.TCP.Options[0] = packet.MSS(1380) }, 0, "changed tcp.checksum, changed tcp.option.mss 1460>1380", true},
		{"size that is cut", func(p *packet.Packet) { p.TCP.Options[0] = packet.MSS(1380) }, 22, "changed tcp.checksum", false},
		{"first option of a cut quote", func(p *packet.Packet) { p.TCP.Options[0] = packet.MSS(1380) }, 24, "changed tcp.checksum, changed tcp.option.mss 1460>1380", false},
		{"clean removal", func(p *packet.Packet) { p.TCP.Options = p.TCP.Options[:2] }, 0,
			"changed ip.length 52>48, changed tcp.offset 8>7, changed tcp.checksum, removed tcp.option.mpcapable 0101>", true},
		{"added", func(p *packet.Packet) {
			p.TCP.Options = append(p.TCP.Options, packet.Option{Kind: 77, Data: []byte{1, 2}})
		}, 0,
			"changed ip.length 52>56, changed tcp.offset 8>9, changed tcp.checksum, added tcp.option.kind77 >0102", true},
		{"padding", func(p *packet.Packet) {
			p.TCP.Options = []packet.Option{mss, scale, packet.NOP, packet.NOP, packet.NOP, packet.NOP}
		}, 0, "changed tcp.checksum, removed tcp.option.mpcapable 0101>", true},
		{"flags", func(p *packet.Packet) { p.TCP.Flags |= packet.ECE | packet.PSH }, 0,
			"changed tcp.flags SYN>SYN+PSH, changed tcp.ecn none>ECE, changed tcp.checksum", true},
		{"class", func(p *packet.Packet) { p.V4.TOS = 46<<2 | 3 }, 8, "changed ip.dscp 0>46, changed ip.ecn not capable>congestion", false},
		{"source", func(p *packet.Packet) { p.V4.Src = netip.MustParseAddr("203.0.113.7"); p.TCP.SrcPort = 7 }, 8,
			"changed ip.source 192.0.2.1>203.0.113.7, changed tcp.source 40000>7", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := sentOf(t, syn(t, mss, scale, capable))
			p := syn(t, mss, scale, capable)
			test.change(p)
			b := sealed(t, p).Bytes()
			if test.quote > 0 {
				b = b[:20+test.quote]
			}
			c, err := s.Quote(b)
			if err != nil {
				t.Fatal(err)
			}
			got := describe(c.Changes)
			// Checksums' values are noise here.
			for _, ch := range c.Changes {
				if ch.Field == TCPChecksum {
					got = strings.Replace(got, fmt.Sprintf("changed tcp.checksum %s>%s", ch.Sent.Text, ch.Seen.Text), "changed tcp.checksum", 1)
				}
			}
			if got != test.want || c.Full != test.full {
				t.Errorf("got %q, full %v; want %q, %v", got, c.Full, test.want, test.full)
			}
			if c.Mismatch {
				t.Error("the checksum fits, but it is said not to")
			}
			if want := test.name == "padding"; c.Padded != want {
				t.Errorf("padded: %v", c.Padded)
			}
		})
	}
}

// What routers do wrong in the IP header of quotes is no change of the packet.
func TestOddQuotes(t *testing.T) {
	s := sentOf(t, syn(t, mss, scale, capable))
	for name, change := range map[string]func(b []byte) []byte{
		"length without header": func(b []byte) []byte { binary.BigEndian.PutUint16(b[2:], uint16(len(b)-20)); return b },
		"swapped length":        func(b []byte) []byte { binary.LittleEndian.PutUint16(b[2:], uint16(len(b))); return b },
		"length 0, cut":         func(b []byte) []byte { b[2], b[3] = 0, 0; return b[:28] },
		"any length, whole":     func(b []byte) []byte { binary.BigEndian.PutUint16(b[2:], uint16(len(b)+7)); return b },
		"swapped ID":            func(b []byte) []byte { b[4], b[5] = b[5], b[4]; return b },
		"no checksum":           func(b []byte) []byte { b[10], b[11] = 0, 0; return b },
	} {
		t.Run(name, func(t *testing.T) {
			c, err := s.Quote(change(syn(t, mss, scale, capable).Bytes()))
			if err != nil || len(c.Changes) > 0 {
				t.Fatalf("%v, %v", describe(c.Changes), err)
			}
			if (len(c.Odd) == 0) != (name == "no checksum") {
				t.Errorf("noted: %q", c.Odd)
			}
		})
	}
	padded := slices.Concat(syn(t, mss, scale, capable).Bytes()[:28], make([]byte, 100))
	if c, err := s.Quote(padded); err != nil || len(c.Changes) > 0 {
		t.Errorf("8 bytes padded with zeros: %v, %v", describe(c.Changes), err)
	}
	six := packet.Packet{V6: &packet.IPv6{Src: netip.IPv6LinkLocalAllNodes(), Dst: netip.IPv6Loopback()}}
	if _, err := s.Quote(six.Bytes()); !errors.Is(err, ErrOther) {
		t.Errorf("a quote of IPv6: %v", err)
	}
	for _, bad := range []string{"", "\x45", "\x99 no packet at all, surely"} {
		if c, err := s.Quote([]byte(bad)); err == nil {
			t.Errorf("%q: %+v", bad, c)
		}
	}
}

func TestRevertedQuote(t *testing.T) {
	s := sentOf(t, syn(t, mss))
	b := syn(t, mss).Bytes()
	b[36]++ // the checksum is that of another source
	c, err := s.Quote(b)
	if err != nil || !c.Mismatch {
		t.Fatalf("%+v, %v", c, err)
	}
	findings, _ := Locate(s, []Sight{{Hop: 2, Comparison: c}})
	if len(findings) != 1 || !findings[0].Reverted || findings[0].Field != TCPChecksum {
		t.Errorf("%+v", findings)
	}
}

// path makes the sights of a path. Each letter of hops is the quote of one hop: '8' for 8 bytes, 'a' for all, '-' for
// none. The change applies to hop at and those behind it.
func path(t testing.TB, s *Sent, original func() *packet.Packet, hops string, at int, change func(p *packet.Packet)) (sights []Sight) {
	t.Helper()
	for i, kind := range hops {
		p := original()
		if i+1 >= at {
			change(p)
		}
		b := sealed(t, p).Bytes()
		switch kind {
		case '-':
			continue
		case '8':
			b = b[:28]
		}
		c, err := s.Quote(b)
		if err != nil {
			t.Fatal(err)
		}
		sights = append(sights, Sight{Hop: i + 1, Comparison: c})
	}
	return sights
}

func TestLocate(t *testing.T) {
	window := func(p *packet.Packet) { p.TCP.Window = 1 }
	seq := func(p *packet.Packet) { p.TCP.Seq = 77 }
	clean := func(p *packet.Packet) { p.TCP.Options = p.TCP.Options[:2] }
	padding := func(p *packet.Packet) {
		p.TCP.Options = []packet.Option{mss, scale, packet.NOP, packet.NOP, packet.NOP, packet.NOP}
	}
	for _, test := range []struct {
		hops   string
		at     int
		change func(p *packet.Packet)
		want   string
	}{
		{"aaaaaa", 4, window, "tcp.window (3,4]"},
		{"8a8888", 4, window, ""},
		{"8a88a8", 4, window, "tcp.window (2,5]"},
		{"888888", 4, window, ""},
		{"888888", 4, seq, "tcp.seq (3,4]"},
		{"8--8-8", 3, seq, "tcp.seq (1,4]"},
		{"a8888a", 4, clean, "tcp.option.mpcapable (3,4]"},
		{"a8888a", 4, padding, "tcp.option.mpcapable (1,6]"},
		{"888888", 4, clean, "ip.length (3,4] unexplained"},
		{"aaaaaa", 1, seq, "tcp.seq (0,1]"},
		{"aaaaaa", 9, seq, ""},
		{"-a-a-a", 5, clean, "tcp.option.mpcapable (4,6]"},
	} {
		original := func() *packet.Packet { return syn(t, mss, scale, capable) }
		s := sentOf(t, original())
		findings, doubts := Locate(s, path(t, s, original, test.hops, test.at, test.change))
		var got []string
		for _, f := range findings {
			text := fmt.Sprintf("%s (%d,%d]", f.Field, f.After, f.By)
			if f.Unexplained {
				text += " unexplained"
			}
			got = append(got, text)
		}
		if diff := cmp.Diff(test.want, strings.Join(got, ", ")); diff != "" || len(doubts) > 0 {
			t.Errorf("%s, change before hop %d (-want +got):\n%s%v", test.hops, test.at, diff, doubts)
		}
	}
}

// A router whose quote nobody confirms is doubted, and two changes of one field are two findings.
func TestLocateContradictions(t *testing.T) {
	original := func() *packet.Packet { return syn(t, mss, scale, capable) }
	s := sentOf(t, original())
	sight := func(hop int, size uint16) Sight {
		p := original()
		p.TCP.Options[0] = packet.MSS(size)
		c, err := s.Quote(sealed(t, p).Bytes())
		if err != nil {
			t.Fatal(err)
		}
		return Sight{Hop: hop, Comparison: c}
	}
	findings, doubts := Locate(s, []Sight{sight(3, 1460), sight(1, 1460), sight(2, 666)}) // in no order
	if len(findings) != 0 || len(doubts) != 2 || doubts[0].Hop != 2 {
		t.Errorf("a router that lies: %+v, %+v", findings, doubts)
	}
	findings, doubts = Locate(s, []Sight{sight(1, 1460), sight(2, 1400), sight(3, 1400), sight(4, 1380), sight(4, 1380)})
	if len(findings) != 2 || len(doubts) != 0 || findings[0].By != 2 || findings[1].By != 4 || findings[1].After != 3 || findings[1].Sent.Text != "1400" {
		t.Errorf("two boxes: %+v, %+v", findings, doubts)
	}
	findings, doubts = Locate(s, []Sight{sight(2, 1460), sight(2, 1400), sight(3, 1400)})
	if len(findings) != 1 || findings[0].After != 0 || findings[0].By != 3 || len(doubts) == 0 {
		t.Errorf("a hop that quotes two values: %+v, %+v", findings, doubts)
	}
}

func FuzzQuote(f *testing.F) {
	p := syn(f, mss, scale, capable)
	f.Add(p.Bytes())
	f.Add(p.Bytes()[:28])
	f.Add([]byte("\x46\x00\x00\x00"))
	six := packet.Segment(netip.MustParseAddrPort("[2001:db8::1]:5"), netip.MustParseAddrPort("[2001:db8::2]:6"), packet.TCP{Flags: packet.SYN, Options: []packet.Option{mss}}, []byte("data"))
	f.Add(sealed(f, six).Bytes())
	four, v6 := sentOf(f, p), sentOf(f, six)
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, s := range []*Sent{four, v6} {
			c, err := s.Quote(b)
			if err != nil {
				continue
			}
			findings, _ := Locate(s, []Sight{{Hop: 1, Comparison: c}, {Hop: 2, Comparison: c}})
			for _, found := range findings {
				if found.After >= found.By {
					t.Errorf("%+v", found)
				}
			}
		}
	})
}
