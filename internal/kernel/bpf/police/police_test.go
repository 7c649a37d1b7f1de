package police

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/detour-collective/dcol/internal/kernel/bpf/tcfilter/tcfiltertest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/packet"
)

func flow(src, dst string) Flow {
	return Flow{netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)}
}

var (
	flow4 = flow("10.1.0.1:443", "10.2.0.1:40000")
	flow6 = flow("[fd01::1]:443", "[fd02::1]:40000")
)

const (
	goesUp  = -1
	dropped = 2 // TC_ACT_SHOT
	notECT  = 0
	ect1    = 1
	ect0    = 2
	ce      = 3
)

func newPolicer(t *testing.T) *Policer {
	t.Helper()
	var p *Policer
	netnstest.New(t).Must(t, func() (err error) {
		p, err = Open()
		return err
	})
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// frame returns an Ethernet frame of the flow with that ECN field and so many bytes of data.
func frame(f Flow, ecn byte, size int, change func(*packet.Packet)) []byte {
	built := packet.Segment(f.Src, f.Dst, packet.TCP{Seq: 1, Ack: 1, Flags: packet.ACK}, make([]byte, size))
	etherType := []byte{0x86, 0xdd}
	if built.V4 != nil {
		etherType = []byte{8, 0}
		built.V4.TOS = 0xb8 | ecn
	} else {
		built.V6.Class = 0xb8 | ecn
	}
	if change != nil {
		change(built)
	}
	if err := built.Seal(); err != nil {
		panic(err)
	}
	return slices.Concat(make([]byte, 12), etherType, built.Bytes())
}

// run has the kernel run the program over a frame.
func (p *Policer) run(t *testing.T, in []byte) (verdict int32, out []byte) {
	t.Helper()
	options := &ebpf.RunOptions{Data: in, DataOut: make([]byte, len(in)+64)}
	got, err := p.objects.Enter.Run(options)
	if err != nil {
		t.Fatal(err)
	}
	return int32(got), options.DataOut
}

// empty bounds the flow and uses up what it may send at once.
func (p *Policer) empty(t *testing.T, f Flow) {
	t.Helper()
	if err := p.Bound(f, 8); err != nil { // a byte a second
		t.Fatal(err)
	}
	for range leastBurst / 1000 {
		if verdict, _ := p.run(t, frame(f, notECT, 1000, nil)); verdict == dropped {
			return
		}
	}
	t.Fatal("the bucket is never empty")
}

// Above the bound, data is marked if its sender does ECN, and dropped otherwise. All else passes as it came.
func TestVerdicts(t *testing.T) {
	p := newPolicer(t)
	for _, f := range []Flow{flow4, flow6} {
		p.empty(t, f)
		other := f
		other.Dst = netip.AddrPortFrom(f.Dst.Addr(), 40001)
		for _, tc := range []struct {
			name    string
			frame   []byte
			verdict int32
			marked  byte // the ECN field that it had
		}{
			{"no ECN", frame(f, notECT, 1000, nil), dropped, 0},
			{"ECN, 10", frame(f, ect0, 1000, nil), goesUp, ect0},
			{"ECN, 01", frame(f, ect1, 1000, nil), goesUp, ect1},
			{"CE", frame(f, ce, 1000, nil), goesUp, 0},
			{"what a sender with ECN repeats", frame(f, notECT, 1000, nil), goesUp, 0},
			{"a segment without data", frame(f, notECT, 0, nil), goesUp, 0},
			{"another connection", frame(other, notECT, 1000, nil), goesUp, 0},
			{"the other direction", frame(Flow{f.Dst, f.Src}, notECT, 1000, nil), goesUp, 0},
		} {
			verdict, after := p.run(t, tc.frame)
			want := tc.frame
			if tc.marked != 0 {
				want = frame(f, ce, 1000, nil) // with its checksum
			}
			if verdict != tc.verdict || verdict == goesUp && !slices.Equal(after, want) {
				t.Errorf("%v, %s: verdict %d, want %d\nafter %x\nwant  %x", f, tc.name, verdict, tc.verdict, after[:60], want[:60])
			}
		}
		counts, ok, err := p.Counts(f)
		// empty had one dropped before. CE counts as marked.
		if err != nil || !ok || counts.Marked != 3 || counts.Dropped != 2 {
			t.Errorf("%v: counts %+v, %v, %v", f, counts, ok, err)
		}
	}
}

// Packets that are no whole TCP segments pass.
func TestForeignPackets(t *testing.T) {
	p := newPolicer(t)
	p.empty(t, flow4)
	p.empty(t, flow6)
	udp4 := frame(flow4, notECT, 1000, nil)
	udp4[14+9] = 17
	for name, in := range map[string][]byte{
		"a fragment": frame(flow4, notECT, 1000, func(p *packet.Packet) { p.V4.Fragment = 5 }),
		"UDP":        udp4,
		"cut short":  frame(flow4, notECT, 1000, nil)[:14+20+4],
		"ARP":        append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 6}, make([]byte, 46)...),
		"IPv6 with an extension header": frame(flow6, notECT, 1000, func(p *packet.Packet) {
			p.V6.Extensions = []packet.Extension{{Kind: 0, Data: []byte{0, 0, 1, 4, 0, 0, 0, 0}}}
		}),
	} {
		if verdict, after := p.run(t, in); verdict != goesUp || !slices.Equal(after, in) {
			t.Errorf("%s: verdict %d", name, verdict)
		}
	}
}

// Each subflow of ten thousand connections has a bound. One bound too many is refused, until another ends.
func TestManyFlows(t *testing.T) {
	p := newPolicer(t)
	nth := func(i int) Flow {
		f := flow4
		f.Src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i >> 16)}), uint16(i))
		return f
	}
	for i := range MaxFlows {
		if err := p.Bound(nth(i), 8000); err != nil {
			t.Fatalf("bound %d: %v", i, err)
		}
	}
	if MaxFlows < 20000 {
		t.Errorf("only %d subflows have a bound", MaxFlows)
	}
	last := nth(MaxFlows)
	if err := p.Bound(last, 8000); !errors.Is(err, ErrFull) {
		t.Errorf("one too many: %v", err)
	}
	if err := errors.Join(p.Bound(nth(0), 16000), p.Free(nth(1)), p.Bound(last, 8000)); err != nil {
		t.Error(err)
	}
}

// A connection gets no more than its rate and one burst, which is smaller when the bound begins, however long it was idle
// before. What it got stays when the rate changes.
func TestRate(t *testing.T) {
	p := newPolicer(t)
	const rate = 80_000_000 // bit/s
	if err := p.Bound(flow4, rate); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second / burstTime)
	began := time.Now()
	in := frame(flow4, ect0, 1400, nil)
	for range 5000 {
		p.run(t, in)
	}
	counts, _, err := p.Counts(flow4)
	if err != nil {
		t.Fatal(err)
	}
	check := func(before, after Counts, began time.Time, burst float64) {
		t.Helper()
		passed := float64(after.Passed-before.Passed) * float64(len(in)-14)
		if most := burst + rate/8*time.Since(began).Seconds() + float64(len(in)); passed > most {
			t.Errorf("%.0f bytes passed in %v, at most %.0f may", passed, time.Since(began), most)
		}
		if passed < burst-float64(len(in)) {
			t.Errorf("%.0f bytes passed, a burst has %.0f", passed, burst)
		}
	}
	check(Counts{}, counts, began, rate/8/firstBurstTime)
	time.Sleep(time.Second / burstTime)
	again, first := time.Now(), counts
	for range 5000 {
		p.run(t, in)
	}
	if counts, _, err = p.Counts(flow4); err != nil {
		t.Fatal(err)
	}
	check(first, counts, again, rate/8/burstTime)
	if err := p.Bound(flow4, 2*rate); err != nil {
		t.Fatal(err)
	}
	if after, _, _ := p.Counts(flow4); after != counts {
		t.Errorf("another rate changed the counts from %+v to %+v", counts, after)
	}
	if err := p.Free(flow4); err != nil || p.Free(flow4) != nil {
		t.Errorf("free: %v", err)
	}
	if _, ok, err := p.Counts(flow4); ok || err != nil {
		t.Errorf("a bound that was freed: %v, %v", ok, err)
	}
}

// A sender that stays far above its rate in spite of marks loses what is above, from a few seconds on.
func TestMarksIgnored(t *testing.T) {
	t.Parallel()
	p := newPolicer(t)
	const rate = 1_000_000 // bit/s
	if err := p.Bound(flow4, rate); err != nil {
		t.Fatal(err)
	}
	in := frame(flow4, ect0, 1400, nil)
	began := time.Now()
	for verdict := int32(goesUp); verdict != dropped; verdict, _ = p.run(t, in) {
		if time.Since(began) > time.Minute {
			t.Fatal("nothing is dropped")
		}
	}
	if after := time.Since(began); after < 3*time.Second {
		t.Errorf("the first packet is dropped after %v", after)
	}
	time.Sleep(leastBurst * time.Second / (rate / 8)) // The sender pauses for a whole burst.
	before, _, err := p.Counts(flow4)
	for began = time.Now(); time.Since(began) < time.Second; {
		p.run(t, in)
	}
	counts, _, err2 := p.Counts(flow4)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	size := float64(len(in) - 14)
	passed := float64(counts.Passed-before.Passed) * size
	if most := leastBurst + rate/8*time.Since(began).Seconds() + size; passed > most || counts.Marked != before.Marked || counts.Dropped == before.Dropped {
		t.Errorf("%.0f bytes passed of at most %.0f: from %+v to %+v", passed, most, before, counts)
	}
}

// A sender that reacts to marks as CUBIC does loses nothing, even if it begins at twenty times its rate.
func TestMarksObeyed(t *testing.T) {
	t.Parallel()
	p := newPolicer(t)
	const (
		trip = 100 * time.Millisecond
		rate = 1_000_000             // bit/s
		fits = rate / 8 / 10. / 1440 // packets in a round trip
	)
	if err := p.Bound(flow4, rate); err != nil {
		t.Fatal(err)
	}
	window := 20 * fits
	in := frame(flow4, ect0, 1400, nil)
	var before Counts
	for began := time.Now(); time.Since(began) < 8*time.Second; {
		next := time.After(trip)
		for range int(window) {
			p.run(t, in)
		}
		counts, _, err := p.Counts(flow4)
		if err != nil || counts.Dropped > 0 {
			t.Fatalf("after %v: %+v, %v", time.Since(began), counts, err)
		}
		if window++; counts.Marked > before.Marked {
			window = max(2, 0.7*window)
		}
		before = counts
		<-next
	}
	t.Logf("%+v", before)
}

// A host's connection is slowed down to the bound: by marks alone if it does ECN, by drops otherwise.
func TestBoundedDownload(t *testing.T) {
	for _, ecn := range []bool{true, false} {
		t.Run(map[bool]string{true: "ECN", false: "no ECN"}[ecn], func(t *testing.T) { testDownload(t, ecn) })
	}
}

func testDownload(t *testing.T, ecn bool) {
	client, server := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(t, netnstest.End{NS: client, Name: "c", Addresses: []string{"10.3.0.1/24"}}, netnstest.End{NS: server, Name: "s", Addresses: []string{"10.3.0.2/24"}})
	client.Output(t, "sysctl", "-qw", "net.ipv4.tcp_ecn="+map[bool]string{true: "1", false: "0"}[ecn])
	var p *Policer
	client.Must(t, func() (err error) {
		link, err := net.InterfaceByName("c")
		if err != nil {
			return err
		}
		if p, err = Open(); err != nil {
			return err
		}
		return p.Attach([]int{link.Index})
	})
	listener := server.Listen(t, "10.3.0.2:80")
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_, _ = io.Copy(conn, io.LimitReader(endless{}, 1<<30))
			conn.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := client.Dial(ctx, netip.MustParseAddrPort("10.3.0.2:80"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f := Flow{netip.MustParseAddrPort("10.3.0.2:80"), conn.LocalAddr().(*net.TCPAddr).AddrPort()}
	const rate = 20_000_000
	began := time.Now()
	if err := p.Bound(f, rate); err != nil {
		t.Fatal(err)
	}
	before, err := io.CopyN(io.Discard, conn, 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	counts, _, err := p.Counts(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.1f Mbit/s of %.0f: %+v", float64(before)*8/took.Seconds()/1e6, rate/1e6, counts)
	if ecn && (counts.Marked == 0 || counts.Dropped > 0) || !ecn && (counts.Dropped == 0 || counts.Marked > 0) {
		t.Errorf("counts %+v", counts)
	}
	// Marks do not make a window smaller than two segments, which is much on a path without any delay.
	if !ecn && float64(before) > rate/8*took.Seconds()+leastBurst+rate/8/burstTime {
		t.Errorf("%d bytes came in %v", before, took)
	}
	client.Must(t, func() error {
		if got := tcfiltertest.Describe(t); !strings.Contains(got, filterName) {
			t.Errorf("filters: %s", got)
		}
		if err := p.Close(); err != nil {
			return err
		}
		if got := tcfiltertest.Describe(t); got != "" {
			t.Errorf("filters are left: %s", got)
		}
		return CleanUp()
	})
	if _, err := io.CopyN(io.Discard, conn, 16<<20); err != nil {
		t.Fatal(err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }
