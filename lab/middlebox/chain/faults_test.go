package chain

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/compare"
	"github.com/detour-collective/dcol/lab/middlebox"
)

// tampered traces a path of five routers whose answers are changed on the way back, with a box at hop 3.
func tampered(t *testing.T, box middlebox.Kind, tamper func(b []byte, p *packet.Packet) [][]byte) *trace.Path {
	t.Helper()
	hops := make([]Hop, 5)
	hops[2].Box = box
	return run(t, func() *Chain {
		c := New(hops, time.Millisecond, Linux())
		c.Tamper = func(b []byte) [][]byte {
			p, err := packet.Parse(slices.Clone(b))
			if err != nil {
				return [][]byte{b}
			}
			return tamper(b, p)
		}
		return c
	}, synProbe(t), trace.Options{})
}

// requote changes the quote in an ICMP error.
func requote(t *testing.T, p *packet.Packet, change func(quoted []byte) []byte) []byte {
	t.Helper()
	q, err := p.Quote()
	if err != nil {
		t.Fatal(err)
	}
	p.ICMP.Data = [4]byte{}
	if err := p.SetQuote(change(slices.Clone(q.Bytes))); err != nil {
		t.Fatal(err)
	}
	if err := p.Seal(); err != nil {
		t.Fatal(err)
	}
	return p.Bytes()
}

func isQuote(p *packet.Packet) bool { _, err := p.Quote(); return err == nil }

// wantOne wants the finding of a box at hop 3 and nothing else.
func wantOne(t *testing.T, path *trace.Path, field compare.Field, after, by int) {
	t.Helper()
	if len(path.Findings) != 1 || path.Findings[0].Field != field || path.Findings[0].After != after || path.Findings[0].By != by {
		t.Errorf("found %+v, want %s (%d,%d]", path.Findings, field, after, by)
	}
}

func TestCutQuotes(t *testing.T) {
	for cut := range 60 {
		path := tampered(t, middlebox.PadMPTCP, func(b []byte, p *packet.Packet) [][]byte {
			if !isQuote(p) || p.Src() == Address(5)[0] {
				return [][]byte{b}
			}
			return [][]byte{requote(t, p, func(q []byte) []byte { return q[:min(cut, len(q))] })}
		})
		// Only hop 5 quotes enough; a cut quote shows the checksum, or nothing.
		for _, f := range path.Findings {
			if f.Field != compare.Capable || f.After > 3 || f.By < 4 {
				t.Errorf("quotes of %d bytes: %+v", cut, f)
			}
		}
		if len(path.Findings) != 1 {
			t.Errorf("quotes of %d bytes: %d findings", cut, len(path.Findings))
		}
	}
}

// Routers write a length of the quote (RFC 4884) that cannot be right.
func TestWrongQuoteLengths(t *testing.T) {
	for _, length := range []byte{1, 5, 7, 15, 20, 31, 33, 255} {
		path := tampered(t, middlebox.PadMPTCP, func(b []byte, p *packet.Packet) [][]byte {
			if !isQuote(p) {
				return [][]byte{b}
			}
			p.ICMP.Data[1] = length
			if err := p.Seal(); err != nil {
				t.Fatal(err)
			}
			return [][]byte{p.Bytes()}
		})
		wantOne(t, path, compare.Capable, 3, 4)
		if len(path.Silent()) > 0 || path.Strays > 0 {
			t.Errorf("length %d: silent %v, %d strays", length, path.Silent(), path.Strays)
		}
	}
}

// Forged quotes name our destination, but were made by someone who has not seen the probes.
func TestForgedQuotes(t *testing.T) {
	forged := 0
	path := tampered(t, middlebox.PadMPTCP, func(b []byte, p *packet.Packet) [][]byte {
		if !isQuote(p) {
			return [][]byte{b}
		}
		all := [][]byte{b}
		for _, change := range []func(q []byte) []byte{
			func(q []byte) []byte { q[4], q[20], q[24] = q[4]+40, q[20]+1, q[24]+1; return q }, // identification, port, number
			func(q []byte) []byte { q[5] += 77; q[24]++; return q },                            // our flow, another packet
			func(q []byte) []byte { q[16]++; q[4]++; return q },                                // another destination
			func(q []byte) []byte { return q[:10] },
			func([]byte) []byte { return []byte("no packet") },
			func([]byte) []byte { return nil },
		} {
			again, err := packet.Parse(slices.Clone(b))
			if err != nil {
				t.Fatal(err)
			}
			again.V4.Src = netip.MustParseAddr("203.0.113.66")
			all = append(all, requote(t, again, change))
			forged++
		}
		return all
	})
	wantOne(t, path, compare.Capable, 3, 4)
	if forged == 0 || path.Strays == 0 {
		t.Errorf("%d forged quotes, %d strays", forged, path.Strays)
	}
	for _, h := range path.Hops {
		for _, q := range h.Quotes {
			if q.From == netip.MustParseAddr("203.0.113.66") {
				t.Errorf("a forged quote counts as one of hop %d", h.Distance)
			}
		}
	}
}

// A router that lies about a field is contradicted by those behind it.
func TestRouterLies(t *testing.T) {
	path := tampered(t, middlebox.PadMPTCP, func(b []byte, p *packet.Packet) [][]byte {
		if isQuote(p) && p.Src() == Address(2)[0] {
			b = requote(t, p, func(q []byte) []byte { q[34]++; return q }) // the window
		}
		return [][]byte{b}
	})
	wantOne(t, path, compare.Capable, 3, 4)
	if len(path.Doubts) != 1 || path.Doubts[0].Hop != 2 || path.Doubts[0].Field != compare.Window {
		t.Errorf("doubts: %+v", path.Doubts)
	}
}

// Answers come out of order, and twice.
func TestOrderOfAnswers(t *testing.T) {
	var held [][]byte
	path := tampered(t, middlebox.ClampMSS, func(b []byte, _ *packet.Packet) [][]byte {
		if held = append(held, b, b); len(held) < 8 {
			return nil
		}
		all := held
		held = nil
		slices.Reverse(all)
		return all
	})
	wantOne(t, path, compare.MSS, 3, 4)
	for i, h := range path.Hops[:5] {
		if from, ok := h.From(); !ok || from != Address(i + 1)[0] {
			t.Errorf("hop %d: %v", i+1, from)
		}
	}
}

// A path that goes in a circle has no end.
func TestLoop(t *testing.T) {
	hops := make([]Hop, 30)
	path := run(t, func() *Chain {
		c := New(hops, time.Millisecond, Linux())
		for i, h := range c.hops {
			h.address = Address(1 + i%3)
		}
		return c
	}, synProbe(t), trace.Options{})
	if at, ok := path.Loops(); !ok || at != Address(1)[0] || path.Distance != 0 || len(path.Findings) > 0 {
		t.Errorf("loops at %v (%v), distance %d, %+v", at, ok, path.Distance, path.Findings)
	}
}

// A router that floods adds nothing, and the trace ends.
func TestFlood(t *testing.T) {
	path := tampered(t, middlebox.ClampMSS, func(b []byte, _ *packet.Packet) [][]byte {
		return slices.Repeat([][]byte{b}, 10_000)
	})
	wantOne(t, path, compare.MSS, 3, 4)
}

// Nothing answers at all: the trace ends by itself, soon.
func TestSilence(t *testing.T) {
	path := run(t, func() *Chain {
		return New(slices.Repeat([]Hop{{ICMP: middlebox.ICMPSilent}}, 20), time.Millisecond, nil)
	}, synProbe(t), trace.Options{})
	if path.Distance != 0 || len(path.Findings) > 0 || path.Took > 5*time.Second || path.Answer != nil {
		t.Errorf("%+v", path)
	}
}

// Routers whose answers come later than the server's are waited for.
func TestSlowRouters(t *testing.T) {
	var quotes [][]byte
	path := tampered(t, middlebox.ClampMSS, func(b []byte, p *packet.Packet) [][]byte {
		if isQuote(p) {
			quotes = append(quotes, b)
			return nil
		}
		all := append([][]byte{b}, quotes...) // behind the server's answer
		quotes = nil
		return all
	})
	wantOne(t, path, compare.MSS, 3, 4)
	if len(path.Silent()) > 0 || path.Distance != 6 {
		t.Errorf("silent: %v, distance %d", path.Silent(), path.Distance)
	}
}
