package analyse_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/analyse/analysetest"
	"github.com/detour-collective/dcol/internal/analyse/track"
	"github.com/detour-collective/dcol/internal/packet"
)

// fallbackPlays have a connection fall back, by the cause.
var fallbackPlays = map[string]func(s *analysetest.Script, c *analysetest.Conn){
	track.CauseSYNACK: func(_ *analysetest.Script, c *analysetest.Conn) {
		f := c.Subflow(phone, web)
		f.SYN(true)
		f.SYNACK(false)
		f.Third(false)
		f.Plain(client, 100)
		f.Plain(server, 1000)
		f.FIN(client)
		f.FIN(server)
	},
	track.CauseSYN: func(s *analysetest.Script, c *analysetest.Conn) {
		f := c.Subflow(phone, web)
		f.SYN(true)
		s.Wait(time.Second)
		f.SYN(false)
		f.SYNACK(false)
		f.Third(false)
		f.Plain(client, 100)
		f.Plain(server, 1000)
	},
	track.CauseACK: func(_ *analysetest.Script, c *analysetest.Conn) {
		f := c.Subflow(phone, web)
		f.SYN(true)
		f.SYNACK(true)
		f.Third(false)
		f.Plain(client, 100)
		f.Plain(server, 1000)
	},
	track.CauseRemoved: func(_ *analysetest.Script, c *analysetest.Conn) {
		f := c.Open(phone, web)
		f.Send(client, 100)
		f.Plain(server, 1000)
		f.Plain(server, 1000)
	},
	track.CauseChecksum: func(_ *analysetest.Script, c *analysetest.Conn) {
		c.Checksums = true
		f := c.Open(phone, web)
		f.Send(client, 100)
		f.Send(server, 1000)
		f.Options(client, packet.Fail{Sequence: c.First[server]})
		f.Plain(server, 1000)
	},
	track.CauseFail: func(_ *analysetest.Script, c *analysetest.Conn) {
		f := c.Open(phone, web)
		f.Send(client, 100)
		f.Send(server, 1000)
		f.Options(client, packet.Fail{Sequence: c.First[server]})
		f.Options(server, packet.DSS{Flags: packet.DSSMap | packet.DSSMap8, Sequence: c.First[server], Subflow: 1})
	},
	track.CauseInfinite: func(_ *analysetest.Script, c *analysetest.Conn) {
		f := c.Open(phone, web)
		f.Send(client, 100)
		f.Segment(server, packet.ACK, f.Sent[server], 1000, packet.DSS{Flags: packet.DSSMap | packet.DSSMap8, Sequence: c.First[server], Subflow: 1}.Option())
		f.Sent[server] += 1000
		f.Plain(server, 1000)
	},
}

// reinjectionPlays reinject 1400 bytes of subflow a on b, by what had happened before.
var reinjectionPlays = map[string]func(s *analysetest.Script, c *analysetest.Conn, a, b *analysetest.Subflow){
	"head-of-line": func(s *analysetest.Script, c *analysetest.Conn, a, b *analysetest.Subflow) {
		dsn := c.Next[server]
		a.Send(server, 1400)
		s.Wait(20 * time.Millisecond)
		b.Carry(server, dsn, 1400)
		b.Ack(client)
		a.Ack(client)
	},
	"timeout": func(s *analysetest.Script, c *analysetest.Conn, a, b *analysetest.Subflow) {
		dsn := c.Next[server]
		a.Send(server, 1400)
		s.Wait(400 * time.Millisecond)
		b.Carry(server, dsn, 1400)
		b.Ack(client)
		a.Ack(client)
	},
	"loss": func(s *analysetest.Script, c *analysetest.Conn, a, b *analysetest.Subflow) {
		dsn := c.Next[server]
		a.Send(server, 1400)
		s.Wait(10 * time.Millisecond)
		a.Segment(client, packet.ACK, a.Sent[client], 0, packet.SACK(packet.Block{Left: 1, Right: 2}))
		b.Carry(server, dsn, 1400)
		b.Ack(client)
		a.Ack(client)
	},
	"subflow-ended": func(s *analysetest.Script, c *analysetest.Conn, a, b *analysetest.Subflow) {
		dsn := c.Next[server]
		a.Send(server, 1400)
		s.Wait(10 * time.Millisecond)
		a.Reset(client)
		b.Carry(server, dsn, 1400)
		b.Ack(client)
	},
}

// handover has the kind of a Handover and its cause.
type handover struct{ kind, why string }

// handoverPlays move a connection's data from its first subflow to a second, or seem to.
var handoverPlays = map[string]struct {
	want []handover
	play func(s *analysetest.Script, c *analysetest.Conn, a *analysetest.Subflow) (alive *analysetest.Subflow)
}{
	"break before make": {[]handover{{"break-before-make", "reset"}}, func(s *analysetest.Script, c *analysetest.Conn, a *analysetest.Subflow) *analysetest.Subflow {
		a.Reset(client)
		s.Wait(30 * time.Second)
		b := c.Join(client, phone2, web, 2)
		talk(3, b)
		return b
	}},
	"make before break": {[]handover{{"make-before-break", "fin"}}, func(_ *analysetest.Script, c *analysetest.Conn, a *analysetest.Subflow) *analysetest.Subflow {
		b := c.Join(client, phone2, web, 2)
		talk(3, a, b)
		a.FIN(client)
		a.FIN(server)
		talk(3, b)
		return b
	}},
	"removed": {[]handover{{"make-before-break", "removed"}}, func(_ *analysetest.Script, c *analysetest.Conn, a *analysetest.Subflow) *analysetest.Subflow {
		b := c.Join(client, phone2, web, 2)
		talk(3, a, b)
		b.Options(client, packet.RemoveAddr{AddressIDs: []byte{0}})
		talk(3, b)
		return b
	}},
	"silent": {[]handover{{"make-before-break", "silent"}}, func(s *analysetest.Script, c *analysetest.Conn, a *analysetest.Subflow) *analysetest.Subflow {
		b := c.Join(client, phone2, web, 2)
		talk(3, a, b)
		dsn := c.Next[server]
		a.Send(server, 1400)
		for range 3 {
			s.Wait(300 * time.Millisecond)
			a.Again(server, dsn, 1400)
		}
		b.Carry(server, dsn, 1400)
		b.Ack(client)
		for range 20 {
			talk(1, b)
			s.Wait(100 * time.Millisecond)
		}
		return b
	}},
	"the scheduler's choice": {nil, func(s *analysetest.Script, c *analysetest.Conn, a *analysetest.Subflow) *analysetest.Subflow {
		b := c.Join(client, phone2, web, 2)
		talk(3, a)
		s.Wait(3 * time.Second)
		talk(3, b)
		return b
	}},
	"removed twice": {[]handover{{"make-before-break", "removed"}, {"make-before-break", "removed"}}, func(_ *analysetest.Script, c *analysetest.Conn, a *analysetest.Subflow) *analysetest.Subflow {
		for i := range 2 {
			b := c.Join(client, netip.AddrPortFrom(phone2.Addr(), uint16(41000+i)), web, 2)
			talk(3, b)
			a.Options(client, packet.RemoveAddr{AddressIDs: []byte{2}})
			talk(3, a)
		}
		return a
	}},
	"closed at the end": {nil, func(_ *analysetest.Script, c *analysetest.Conn, a *analysetest.Subflow) *analysetest.Subflow {
		b := c.Join(client, phone2, web, 2)
		talk(3, b, a)
		a.FIN(client)
		a.FIN(server)
		return b
	}},
}

// findings are the events of a connection that the analysis reports.
type findings struct {
	end           string // of the kinds that are about it
	fallback      string
	reinjections  string // by what was before them
	retransmitted uint64
	handovers     string
	unused        string
	stalls        int
	anomalies     string
}

func findingsOf(r *track.Record) (f findings) {
	if r.Fallback != nil {
		f.fallback = r.Fallback.Cause
	}
	f.end, f.retransmitted, f.stalls = r.End, r.Retransmitted, r.WindowStalls
	for _, after := range slices.Sorted(maps.Keys(r.ReinjectedAfter)) {
		f.reinjections += fmt.Sprintf("%d after %s;", r.ReinjectedAfter[after], after)
	}
	for _, h := range r.Handovers {
		f.handovers += h.Kind + " " + h.Why + ";"
	}
	for i, s := range r.Subflows {
		if s.Unused && s.UnusedBetter != nil {
			f.unused += fmt.Sprintf("%d, better: %v;", i, *s.UnusedBetter)
		}
	}
	if r.Anomalies != nil {
		f.anomalies = fmt.Sprint(r.Anomalies)
	}
	return f
}

// planted is a kind of connection, and what is to be found in it.
type planted struct {
	name string
	play func(*analysetest.Script)
	want findings
}

func plantedKinds() (list []planted) {
	for version := range uint8(2) {
		add := func(name string, want findings, play func(s *analysetest.Script, c *analysetest.Conn)) {
			list = append(list, planted{fmt.Sprintf("%s, version %d", name, version), func(s *analysetest.Script) { play(s, s.Conn(version)) }, want})
		}
		add("nothing", findings{}, func(_ *analysetest.Script, c *analysetest.Conn) {
			a, b := c.Open(phone, web), c.Join(client, phone2, web, 2)
			talk(6, a, b)
			c.Close(a, b)
		})
		for _, cause := range slices.Sorted(maps.Keys(fallbackPlays)) {
			add("fallback "+cause, findings{fallback: cause}, fallbackPlays[cause])
		}
		for _, after := range slices.Sorted(maps.Keys(reinjectionPlays)) {
			want := findings{reinjections: "1 after " + after + ";"}
			if after == "subflow-ended" {
				want.handovers = "make-before-break reset;"
			}
			add("reinjection after "+after, want, func(s *analysetest.Script, c *analysetest.Conn) {
				a, b := c.Open(phone, web), c.Join(client, phone2, web, 2)
				talk(5, a, b)
				reinjectionPlays[after](s, c, a, b)
				talk(5, b)
				c.Close(b)
			})
		}
		for _, name := range slices.Sorted(maps.Keys(handoverPlays)) {
			h, want := handoverPlays[name], findings{}
			for _, one := range h.want {
				want.handovers += one.kind + " " + one.why + ";"
			}
			if name == "silent" { // its data is sent again three times, then on the other subflow
				want.retransmitted, want.reinjections = 3*1400, "1 after timeout;"
			}
			add("handover: "+name, want, func(s *analysetest.Script, c *analysetest.Conn) {
				a := c.Open(phone, web)
				talk(3, a)
				c.Close(h.play(s, c, a))
			})
		}
		for _, end := range slices.Sorted(maps.Keys(endPlays)) {
			add("end "+end, findings{end: end}, func(s *analysetest.Script, c *analysetest.Conn) {
				a, b := c.Open(phone, web), c.Join(client, phone2, web, 2)
				talk(5, a, b)
				endPlays[end](s, c, a, b)
			})
		}
		add("the server's FIN repeated", findings{end: track.EndDataFIN}, func(s *analysetest.Script, c *analysetest.Conn) {
			a := c.Open(phone, web)
			talk(5, a)
			c.Close(a)
			for _, after := range []time.Duration{200, 400, 800, 1600, 3200} {
				s.Wait(after * time.Millisecond)
				a.Segment(server, packet.FIN|packet.ACK, a.Sent[server]-1, 0, packet.DSS{Flags: packet.DSSAck | packet.DSSAck8, Ack: c.Next[client]}.Option())
			}
		})
		add("data without mapping on a joined subflow", findings{anomalies: "map[data-without-mapping:1]"}, func(_ *analysetest.Script, c *analysetest.Conn) {
			a, b := c.Open(phone, web), c.Join(client, phone2, web, 2)
			talk(5, a)
			b.Segment(server, packet.ACK|packet.PSH, b.Sent[server], 1000)
			b.Reset(client)
			a.Send(client, 100)
			a.Reset(client)
		})
		for better, gap := range map[bool]time.Duration{true: 10 * time.Microsecond, false: 50 * time.Millisecond} {
			add(fmt.Sprintf("unused, better: %v", better), findings{unused: fmt.Sprintf("1, better: %v;", better)}, func(s *analysetest.Script, c *analysetest.Conn) {
				a := c.Open(phone, web)
				usual := s.Gap
				s.Gap = gap
				b := c.Join(client, phone2, web, 2)
				s.Gap = usual
				talk(5, a)
				c.Close(a, b)
			})
		}
	}
	return list
}

// TestPlanted mixes connections of all kinds in one capture. In each, exactly what was planted must be found.
func TestPlanted(t *testing.T) {
	const each = 25
	random := rand.New(rand.NewPCG(3, 4))
	kinds := plantedKinds()
	var mixed frames
	var want []planted
	for i := range each * len(kinds) {
		kind := kinds[i%len(kinds)]
		s := analysetest.New(uint64(i+1) << 20) // neighbours have numbers in common
		s.At = time.Duration(random.Int64N(int64(20 * time.Second)))
		kind.play(s)
		for _, f := range s.Frames {
			renumber(f.IP, byte(i>>8), byte(i))
		}
		mixed = append(mixed, s.Frames...)
		want = append(want, kind)
	}
	slices.SortStableFunc(mixed, func(a, b analysetest.Frame) int { return cmp.Compare(a.At, b.At) })
	records, counts := run(t, defaults(), pcapOf(t, mixed, 128))
	if len(records) != len(want) || counts.MPTCP != uint64(len(mixed)) {
		t.Fatalf("%d of %d connections in %d of %d packets", len(records), len(want), counts.MPTCP, len(mixed))
	}
	for _, r := range records {
		address := r.Subflows[0].Client.Addr().As4()
		kind := want[int(address[2])<<8|int(address[3])]
		got := findingsOf(r)
		if kind.want.end == "" {
			got.end = ""
		}
		if got != kind.want {
			t.Errorf("%s:\n found %+v\nplanted %+v", kind.name, got, kind.want)
		}
	}
}

// renumber replaces the last two bytes of the clients' addresses in a packet. Their first two distinguish the links.
func renumber(ip []byte, high, low byte) {
	for _, at := range []int{12, 16} {
		switch netip.AddrFrom4([4]byte(ip[at:])) {
		case phone.Addr(), phone2.Addr():
			ip[at+2], ip[at+3] = high, low
		}
	}
}
