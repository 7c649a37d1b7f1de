package analyse_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/analyse"
	"github.com/detour-collective/dcol/internal/analyse/analysetest"
	"github.com/detour-collective/dcol/internal/analyse/track"
	"github.com/detour-collective/dcol/internal/packet"
)

// twoSubflows is a connection without trouble.
func twoSubflows(s *analysetest.Script, version uint8, from netip.AddrPort) *analysetest.Conn {
	c := s.Conn(version)
	a := c.Open(from, web)
	b := c.Join(client, netip.AddrPortFrom(phone2.Addr(), from.Port()), web, 2)
	talk(20, a, b)
	c.Close(a, b)
	return c
}

// A capture that begins at any packet: the subflows belong together as soon as their numbers show it.
func TestCaptureBeginsMidway(t *testing.T) {
	for version := range uint8(2) {
		s := analysetest.New(20)
		twoSubflows(s, version, phone)
		for skip := 8; skip < 60; skip += 3 { // after both handshakes
			all, _ := run(t, defaults(), pcapOf(t, s.Frames[skip:], 128))
			if len(all) != 1 || len(all[0].Subflows) != 2 {
				t.Fatalf("version %d without %d packets: %d connections", version, skip, len(all))
			}
			r := all[0]
			if !r.Midway || r.Fallback != nil || r.Reinjections > 0 || r.Retransmitted > 0 || len(r.Handovers) > 0 || r.End != track.EndDataFIN {
				t.Errorf("version %d without %d packets: %+v", version, skip, r)
			}
			if r.FromServer < 80000 && skip < 20 {
				t.Errorf("version %d without %d packets: %d bytes", version, skip, r.FromServer)
			}
		}
		// The join is there, the keys are not.
		all, _ := run(t, defaults(), pcapOf(t, s.Frames[3:], 128))
		if subflows := len(all[0].Subflows); len(all) != 1 || subflows != 2 {
			t.Errorf("version %d: %d connections, %d subflows", version, len(all), subflows)
		}
	}
}

// Wherever a capture ends, nothing is found that was not there.
func TestCaptureEndsAnywhere(t *testing.T) {
	s := analysetest.New(21)
	twoSubflows(s, 1, phone)
	for n := 1; n < len(s.Frames); n += 3 {
		all, _ := run(t, defaults(), pcapOf(t, s.Frames[:n], 65535))
		if len(all) != 1 {
			t.Fatalf("%d packets: %d connections", n, len(all))
		}
		quiet(t, all[0])
	}
}

// Of any snap length, no inference is drawn from what was cut off.
func TestSnapLengths(t *testing.T) {
	s := analysetest.New(22)
	twoSubflows(s, 1, phone)
	for snap := 40; snap < 130; snap += 4 {
		all, _ := run(t, defaults(), pcapOf(t, s.Frames, snap))
		for _, r := range all {
			if r.Fallback != nil || r.Reinjections > 0 || r.Retransmitted > 0 || len(r.Handovers) > 0 {
				t.Errorf("%d bytes: %+v, %d reinjections, %d retransmitted", snap, r.Fallback, r.Reinjections, r.Retransmitted)
			}
		}
	}
}

func TestDuplicatedPackets(t *testing.T) {
	for name, from := range map[string]netip.AddrPort{"IPv4": phone, "IPv6": phone6} {
		s := analysetest.New(23)
		c := s.Conn(1)
		to := web
		if from.Addr().Is6() {
			to = web6
		}
		a := c.Open(from, to)
		talk(20, a)
		c.Close(a)
		var twice frames
		for _, f := range s.Frames {
			twice = append(twice, f, analysetest.Frame{At: f.At + time.Microsecond, IP: f.IP})
		}
		r := one(t, twice)
		if r.Retransmitted > 0 || r.Reinjections > 0 || r.FromServer != 20*2800+1 || r.Anomalies["duplicated-packets"] == 0 {
			t.Errorf("%s: %d retransmitted, %d reinjections, %d bytes, %v", name, r.Retransmitted, r.Reinjections, r.FromServer, r.Anomalies)
		}
	}
}

func TestClockSteps(t *testing.T) {
	for name, step := range map[string]time.Duration{"back": -time.Hour, "forward": time.Hour} {
		t.Run(name, func(t *testing.T) {
			s := analysetest.New(24)
			s.At = 2 * time.Hour
			twoSubflows(s, 1, phone)
			for i := range s.Frames[50:] {
				s.Frames[50+i].At += step
			}
			all, counts := run(t, defaults(), pcapOf(t, s.Frames, 128))
			if len(all) != 1 {
				t.Fatalf("%d connections", len(all))
			}
			r := all[0]
			quiet(t, r)
			if r.End != track.EndDataFIN || r.FromServer != 112001 {
				t.Errorf("%+v", r)
			}
			if want := step < 0; (counts.ClockSteps == 1) != want {
				t.Errorf("%d steps", counts.ClockSteps)
			}
			if step < 0 && r.Duration > 10 {
				t.Errorf("it took %v s", r.Duration)
			}
		})
	}
}

// Packets that the capture has in the wrong order, a little.
func TestDisorderedCapture(t *testing.T) {
	s := analysetest.New(25)
	twoSubflows(s, 1, phone)
	for i := 10; i+1 < len(s.Frames)-10; i += 7 {
		s.Frames[i], s.Frames[i+1] = s.Frames[i+1], s.Frames[i]
	}
	all, counts := run(t, defaults(), pcapOf(t, s.Frames, 128))
	if len(all) != 1 || counts.Disordered == 0 {
		t.Fatalf("%d connections, %+v", len(all), counts)
	}
	if r := all[0]; r.Fallback != nil || r.Reinjections > 0 || r.Retransmitted > 0 || r.FromServer != 112001 {
		t.Errorf("%+v", r)
	}
}

// The same addresses, ports and keys, and so tokens, for one connection after the other.
func TestTokensReused(t *testing.T) {
	var all frames
	for i := range 5 {
		s := analysetest.New(26) // the same keys
		s.At = time.Duration(i) * 10 * time.Second
		s.Conn(1)
		for range i * 3 {
			s.Conn(1) // other sequence numbers
		}
		c := s.Conn(1)
		c.Keys = [2]packet.Key{1, 2}
		for side := range c.Keys {
			c.First[side] = c.Keys[side].InitialSequence(1) + 1
		}
		c.Next, c.Received = c.First, c.First
		a := c.Open(phone, web)
		b := c.Join(client, phone2, web, 2)
		talk(3, a, b)
		c.Close(a, b)
		all = append(all, s.Frames...)
	}
	records, _ := run(t, defaults(), pcapOf(t, all, 128))
	if len(records) != 5 {
		t.Fatalf("%d connections", len(records))
	}
	for i, r := range records {
		quiet(t, r)
		if len(r.Subflows) != 2 || r.Subflows[1].HMAC != "verified" {
			t.Errorf("%d: %+v", i, r.Subflows)
		}
	}
}

// A join with another connection's token and a wrong HMAC is noticed.
func TestWrongHMAC(t *testing.T) {
	s := analysetest.New(27)
	c := s.Conn(1)
	a := c.Open(phone, web)
	c.Keys[client]++
	c.Join(client, phone2, web, 2)
	c.Keys[client]--
	talk(2, a)
	c.Close(a)
	if r := one(t, s.Frames); r.Subflows[1].HMAC != "wrong" || r.Anomalies["wrong-hmac"] != 2 {
		t.Errorf("%+v %v", r.Subflows[1], r.Anomalies)
	}
}

// many makes connections that overlap: each begins a second after the one before and lasts some seconds.
func many(connections, lasting int) frames {
	var all frames
	for i := range connections {
		s := analysetest.New(uint64(1000 + i))
		s.At = time.Duration(i) * time.Second
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 40000)
		c := s.Conn(1)
		a := c.Open(from, web)
		b := c.Join(client, netip.AddrPortFrom(from.Addr(), 40001), web, 0)
		for range lasting {
			talk(2, a, b)
			s.Wait(time.Second)
		}
		c.Close(a, b)
		all = append(all, s.Frames...)
	}
	slices.SortStableFunc(all, func(a, b analysetest.Frame) int { return int(a.At - b.At) })
	return all
}

func TestMoreConnectionsThanMemory(t *testing.T) {
	o := defaults()
	o.Connections = 6
	all, counts := run(t, o, pcapOf(t, many(60, 15), 128))
	evicted := 0
	for _, r := range all {
		if r.End == track.EndEvicted {
			evicted++
		}
		if r.Fallback != nil || r.Reinjections > 0 {
			t.Errorf("%+v", r)
		}
	}
	if counts.Evicted == 0 || evicted != int(counts.Evicted) {
		t.Errorf("%d connections were ended early, %d say so", counts.Evicted, evicted)
	}
}

// The result does not depend on the number of processors, nor on their speed.
func TestAnyNumberOfWorkers(t *testing.T) {
	capture := pcapOf(t, many(100, 5), 128)
	var want []*track.Record
	for _, workers := range []int{1, 2, 3, 8} {
		o := defaults()
		o.Workers = workers
		all, counts := run(t, o, capture)
		if counts.Late > 0 || len(all) != 100 {
			t.Fatalf("%d workers: %d connections, %d late", workers, len(all), counts.Late)
		}
		for _, r := range all {
			quiet(t, r)
			if len(r.Subflows) != 2 || r.Shape != "ndiffports" {
				t.Errorf("%+v", r)
			}
		}
		if want == nil {
			want = all
		} else if !reflect.DeepEqual(all, want) {
			t.Errorf("%d workers found something else", workers)
		}
	}
}

func TestInactivity(t *testing.T) {
	s := analysetest.New(30)
	c := s.Conn(1)
	talk(2, c.Open(phone, web))
	for range 100 { // others go on
		s.Wait(5 * time.Second)
		d := s.Conn(1)
		d.Close(d.Open(netip.AddrPortFrom(phone6.Addr(), uint16(s.At/time.Second)), web6))
	}
	all, _ := run(t, defaults(), pcapOf(t, s.Frames, 128))
	if len(all) != 101 || all[0].End != track.EndIdle {
		t.Errorf("%d connections; %+v", len(all), all[0])
	}
}

func TestPlainTCP(t *testing.T) {
	s := analysetest.New(31)
	c := s.Conn(1)
	f := c.Subflow(phone, web)
	f.SYN(false)
	f.SYNACK(false)
	f.Third(false)
	f.Plain(client, 100)
	udp := &packet.Packet{V4: &packet.IPv4{TTL: 1, Src: phone.Addr(), Dst: web.Addr()}, UDP: &packet.UDP{SrcPort: 1, DstPort: 2}}
	if err := udp.Seal(); err != nil {
		t.Fatal(err)
	}
	s.Frames = append(s.Frames, analysetest.Frame{At: s.At, IP: udp.Bytes()})
	all, counts := run(t, defaults(), pcapOf(t, s.Frames, 65535))
	if len(all) != 0 || counts.PlainSYNs != 1 || counts.PlainTCP != 4 || counts.Other != 1 {
		t.Errorf("%d connections, %+v", len(all), counts)
	}
}

func TestSignals(t *testing.T) {
	s := analysetest.New(32)
	c := s.Conn(1)
	a := c.Open(phone, web)
	add := packet.AddAddr{Version: 1, AddressID: 4, Address: web6.Addr()}
	add.HMAC = add.Authenticator(c.Keys[server], c.Keys[client])
	a.Options(server, add)
	s.Wait(30 * time.Millisecond)
	a.Options(server, add)
	a.Options(client, packet.AddAddr{Version: 1, Flags: packet.AddAddrEcho, AddressID: 4, Address: web6.Addr()})
	s.Wait(10 * time.Millisecond)
	b := c.Join(client, phone6, web6, 7)
	talk(3, a, b)
	b.Options(client, packet.Priority{Flags: packet.Backup})
	talk(3, a)
	b.Options(client, packet.Priority{})
	talk(3, a, b)
	a.Options(client, packet.RemoveAddr{AddressIDs: []byte{7}})
	s.Wait(20 * time.Millisecond)
	b.Reset(server)
	talk(3, a)
	c.Close(a)
	r := one(t, s.Frames)
	var got []string
	for _, g := range r.Signals {
		got = append(got, fmt.Sprint(g.Kind, " ", g.From, " ", g.IDs, " ", g.Followed, " ", g.Repeats, " ", g.Data))
	}
	want := []string{"ADD_ADDR server [4] 1 1 0", "MP_PRIO client [7] 0 0 8700", "MP_PRIO client [7] 0 0 8700", "REMOVE_ADDR client [7] 1 0 0"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if g := r.Signals[0]; g.HMAC != "verified" || *g.Echo < 0.030 || *g.Echo > 0.031 || *g.Delay < 0.040 || *g.Delay > 0.041 {
		t.Errorf("%+v", g)
	}
	if d := *r.Signals[3].Delay; d < 0.020 || d > 0.021 {
		t.Errorf("the subflow ended after %v s", d)
	}
}

func TestWindowStalls(t *testing.T) {
	s := analysetest.New(33)
	c := s.Conn(1)
	c.Window = 20 // of 128 bytes
	a := c.Open(phone, web)
	a.Ack(client)
	a.Send(server, 1280)
	a.Send(server, 1280) // the window is full
	s.Wait(50 * time.Millisecond)
	a.Ack(client)
	a.Send(server, 1280)
	a.Ack(client)
	a.Send(server, 1280)
	c.Window = 0xffff
	a.Ack(client)
	talk(3, a)
	c.Close(a)
	r := one(t, s.Frames)
	if r.WindowStalls != 1 || r.WindowStalled < 0.050 || r.WindowStalled > 0.052 {
		t.Errorf("%d stalls of %v s", r.WindowStalls, r.WindowStalled)
	}
}

func TestRoundTrips(t *testing.T) {
	s := analysetest.New(34)
	c := s.Conn(1)
	open := func(f *analysetest.Subflow, gap time.Duration, shake func()) {
		s.Gap = gap
		shake()
		for range 50 {
			f.Send(server, 1400)
			f.Send(server, 1400)
			f.Ack(client)
		}
	}
	var a, b *analysetest.Subflow
	s.Gap = 10 * time.Millisecond
	a = c.Open(phone, web)
	open(a, 10*time.Millisecond, func() {})
	s.Gap = 30 * time.Millisecond
	b = c.Join(client, phone2, web, 2)
	open(b, 30*time.Millisecond, func() {})
	c.Close(a, b)
	r := one(t, s.Frames)
	// A segment's acknowledgement comes a gap later; the client's half is the handshake's.
	for i, want := range []float64{0.020, 0.060} {
		if got := *r.Subflows[i].RTT; got < want*0.99 || got > want*1.05 {
			t.Errorf("subflow %d: %v s, want %v", i, got, want)
		}
	}
	if *r.RTTSpread < 0.039 || *r.RTTSpread > 0.042 || *r.SecondRTT < *r.BestRTT {
		t.Errorf("spread %v, best %v, second %v", *r.RTTSpread, *r.BestRTT, *r.SecondRTT)
	}
}

// VLAN tags are no obstacle.
func TestVLAN(t *testing.T) {
	s := analysetest.New(35)
	twoSubflows(s, 1, phone)
	plain := pcapOf(t, s.Frames, 65535)
	tagged := append([]byte(nil), plain[:24]...)
	for b := plain[24:]; len(b) > 0; {
		size := binary.LittleEndian.Uint32(b[8:])
		record := append([]byte(nil), b[:16]...)
		binary.LittleEndian.PutUint32(record[8:], size+4)
		binary.LittleEndian.PutUint32(record[12:], size+4)
		record = append(record, b[16:28]...)
		record = append(record, 0x81, 0, 0, 5)
		tagged = append(tagged, append(record, b[28:16+size]...)...)
		b = b[16+size:]
	}
	all, _ := run(t, defaults(), tagged)
	if len(all) != 1 || all[0].FromServer != 112001 {
		t.Fatalf("%d connections", len(all))
	}
	quiet(t, all[0])
}

// Two interfaces of a client, captured each to a file of its own.
func TestTwoInterfaces(t *testing.T) {
	s := analysetest.New(36)
	twoSubflows(s, 1, phone)
	var files [2]frames
	for _, f := range s.Frames {
		p, _ := packet.Parse(f.IP)
		at := 0
		if p.Src() == phone2.Addr() || p.Dst() == phone2.Addr() {
			at = 1
		}
		files[at] = append(files[at], f)
	}
	all, _ := run(t, defaults(), pcapOf(t, files[1], 128), pcapOf(t, files[0], 128))
	if len(all) != 1 || len(all[0].Subflows) != 2 {
		t.Fatalf("%d connections", len(all))
	}
	quiet(t, all[0])
}

// Options that lie about their length, or mean nothing, harm nobody.
func TestMalformedOptions(t *testing.T) {
	s := analysetest.New(37)
	c := s.Conn(1)
	a := c.Open(phone, web)
	for _, data := range [][]byte{{0x20}, {0x20, 0xff}, {0xf0, 1, 2}, {0x31}, {0x10, 0, 0}, {0x00}} {
		a.Segment(client, packet.ACK, a.Sent[client], 0, packet.Option{Kind: packet.KindMPTCP, Data: data})
	}
	talk(3, a)
	c.Close(a)
	if r := one(t, s.Frames); r.Anomalies["malformed-option"] < 5 || r.Fallback != nil || r.FromServer != 8401 {
		t.Errorf("%v %+v", r.Anomalies, r.Fallback)
	}
}

func FuzzAnalyse(f *testing.F) {
	s := analysetest.New(38)
	twoSubflows(s, 1, phone)
	f.Add(pcapOf(f, s.Frames[:20], 128))
	v0 := analysetest.New(39)
	twoSubflows(v0, 0, phone)
	f.Add(pcapOf(f, v0.Frames[:12], 128))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 || len(b) < 24 || binary.LittleEndian.Uint32(b) != 0xa1b23c4d {
			return
		}
		run(t, analyse.Options{Idle: time.Second, Connections: 3, Workers: 2, Trace: 1}, b)
	})
}
