package chain

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/compare"
	"github.com/detour-collective/dcol/lab/middlebox"
)

var (
	alice  = netip.MustParseAddrPort("198.51.100.1:40000")
	bob    = netip.MustParseAddrPort("203.0.113.80:80")
	alice6 = netip.MustParseAddrPort("[2001:db8:a::1]:40000")
	bob6   = netip.MustParseAddrPort("[2001:db8:b::80]:80")
)

// options of a SYN that every box of the matrix has something to do with.
var options = []packet.Option{
	packet.MSS(1460), packet.SACKPermitted, packet.Timestamps(1, 0), packet.NOP, packet.WindowScale(7),
	packet.Capable{Version: 1, Flags: packet.CapableHMAC}.Option(),
}

func probe(t testing.TB, from, to netip.AddrPort, h packet.TCP, payload string) *packet.Packet {
	t.Helper()
	h.Seq, h.Window = 1000, 5840
	p := packet.Segment(from, to, h, []byte(payload))
	if p.V4 != nil {
		p.V4.ID = 0x4321
	}
	if err := p.Seal(); err != nil {
		t.Fatal(err)
	}
	return p
}

func synProbe(t testing.TB) *packet.Packet {
	return probe(t, alice, bob, packet.TCP{Flags: packet.SYN, Options: options}, "")
}

// run traces in virtual time.
func run(t *testing.T, c func() *Chain, p *packet.Packet, o trace.Options) (path *trace.Path) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		net := c()
		defer net.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var err error
		if path, err = trace.Run(ctx, net, p, o); err != nil {
			t.Fatal(err)
		}
	})
	return path
}

// visibility classifies a kind by the quotes that show its change.
type visibility int

const (
	full   visibility = iota // only whole ones
	sized                    // whole ones; the packet's length, which all quotes have, locates it
	always                   // 8 bytes, too
)

// matrix lists the boxes, and the field and the probe by which each is found.
var matrix = []struct {
	kind  middlebox.Kind
	field compare.Field
	seen  visibility
	probe func(t testing.TB) *packet.Packet
}{
	{middlebox.PadMPTCP, compare.Capable, full, synProbe},
	{middlebox.RemoveMPTCP, compare.Capable, sized, synProbe},
	{middlebox.RemoveUnknown, compare.Capable, full, synProbe},
	{middlebox.RemoveScale, compare.WindowScale, full, synProbe},
	{middlebox.RemoveTimestamps, compare.Timestamps, full, synProbe},
	{middlebox.ClampMSS, compare.MSS, full, synProbe},
	{middlebox.AddMSS, compare.MSS, sized, func(t testing.TB) *packet.Packet {
		return probe(t, alice, bob, packet.TCP{Flags: packet.SYN, Options: options[1:]}, "")
	}},
	{middlebox.RandomiseSeq, compare.Seq, always, synProbe},
	{middlebox.ClearECN, compare.ECN, always, func(t testing.TB) *packet.Packet {
		p := synProbe(t)
		p.V4.TOS = 2
		if err := p.Seal(); err != nil {
			t.Fatal(err)
		}
		return p
	}},
	{middlebox.NATOpaque, compare.TCPSource, always, synProbe},
	{middlebox.NAT, compare.TCPChecksum, full, synProbe},
	{middlebox.FTPGateway, compare.Payload, sized, func(t testing.TB) *packet.Packet {
		to := netip.AddrPortFrom(bob.Addr(), 21)
		return probe(t, alice, to, packet.TCP{Flags: packet.ACK, Ack: 5}, "PORT 198,51,100,100,189,68\r\n")
	}},
}

// fullQuotes are the distances at which routers quote all, for a number of them. The others quote 8 bytes.
var fullQuotes = map[int][]int{0: nil, 1: {5}, 3: {2, 5, 7}, 8: {1, 2, 3, 4, 5, 6, 7, 8}}

// smallest is the smallest interval that the quotes allow for a change behind hop at. by is 0 if none shows it, and
// the field is the length if that is all they show.
func smallest(field compare.Field, seen visibility, at int, quoting []int) (shown compare.Field, after, by int) {
	const hops = 9
	confirmed := quoting != nil && quoting[len(quoting)-1] > at
	for d := 1; d <= hops; d++ {
		if seen == full && !slices.Contains(quoting, d) {
			continue
		}
		if d <= at {
			after = d
		} else if by == 0 {
			by = d
		}
	}
	if seen == sized && !confirmed {
		field = compare.Length
	}
	return field, after, by
}

// whole runs all cases; it takes a minute with the race detector.
var whole = flag.Bool("whole", false, "run the whole matrix, and 1,000 traces for false findings")

func TestMatrix(t *testing.T) {
	places := []int{1, 5, 8}
	if *whole {
		places = []int{1, 2, 3, 4, 5, 6, 7, 8}
	}
	for _, box := range matrix {
		for _, at := range places {
			for n, full := range fullQuotes {
				hops := make([]Hop, 9) // the last shows the effect of the eighth
				for i := range hops {
					hops[i].Quotes = middlebox.Quote8
					if slices.Contains(full, i+1) || n == 8 && i == 8 {
						hops[i].Quotes = middlebox.QuoteAll
					}
				}
				if n == 8 {
					full = append(slices.Clone(full), 9)
				}
				hops[at-1].Box = box.kind
				p := box.probe(t)
				path := run(t, func() *Chain { return New(hops, time.Millisecond, Linux()) }, p, trace.Options{})
				field, after, by := smallest(box.field, box.seen, at, full)
				want := ""
				if by > 0 {
					want = fmt.Sprintf("%s (%d,%d]", field, after, by)
				}
				var got []string
				for _, f := range path.Findings {
					got = append(got, fmt.Sprintf("%s (%d,%d]", f.Field, f.After, f.By))
				}
				if strings.Join(got, ", ") != want || len(path.Doubts) > 0 || path.Strays > 0 {
					t.Errorf("%s at %d, %d full quotes: found %q, want %q; doubts %v, %d strays", box.kind, at, n, got, want, path.Doubts, path.Strays)
				}
			}
		}
	}
}

// A path without middleboxes has no findings, whatever its routers are.
func TestNoFalseFindings(t *testing.T) {
	seed := rand.New(rand.NewPCG(1, 2))
	quotes, icmp := middlebox.AllQuotes(), append(middlebox.AllICMP(), middlebox.ICMPAlways, middlebox.ICMPAlways)
	traces := 150
	if *whole {
		traces = 1000
	}
	for n := range traces {
		hops := make([]Hop, 1+seed.IntN(14))
		for i := range hops {
			hops[i] = Hop{Quotes: quotes[seed.IntN(len(quotes))], ICMP: icmp[seed.IntN(len(icmp))]}
		}
		from, to := alice, bob
		if n%2 == 1 {
			from, to = alice6, bob6
		}
		p := probe(t, from, to, packet.TCP{Flags: packet.SYN, Options: options}, "")
		delay := time.Duration(seed.IntN(20)) * time.Millisecond
		path := run(t, func() *Chain { return New(hops, delay, Linux(options...)) }, p, trace.Options{})
		if len(path.Findings) > 0 || len(path.Doubts) > 0 || path.Strays > 0 {
			t.Errorf("%+v: %+v, %+v, %d strays", hops, path.Findings, path.Doubts, path.Strays)
		}
		if path.Distance != len(hops)+1 || !path.Sure {
			var kinds []string
			for _, h := range hops {
				kinds = append(kinds, string(h.ICMP))
			}
			t.Errorf("distance %d (%v), want %d behind routers %s", path.Distance, path.Sure, len(hops)+1, strings.Join(kinds, ","))
		}
	}
}

// Twelve hops with 20 ms of round trip more at each.
func TestTwelveHops(t *testing.T) {
	path := run(t, func() *Chain { return New(make([]Hop, 11), 10*time.Millisecond, Linux()) }, synProbe(t), trace.Options{})
	if path.Distance != 12 || path.Took > 1500*time.Millisecond {
		t.Errorf("%d hops in %v", path.Distance, path.Took)
	}
	t.Log(path.Took)
}
