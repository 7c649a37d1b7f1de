package analysetest

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/analyse/track"
	"github.com/detour-collective/dcol/internal/packet"
)

// The ends of planted connections: a phone with two networks, and a server.
var (
	Phone  = netip.MustParseAddrPort("192.0.2.1:40001")
	Phone2 = netip.MustParseAddrPort("198.51.100.1:40002")
	Web    = netip.MustParseAddrPort("203.0.113.5:443")
)

// Talk lets subflows take turns for some rounds.
func Talk(rounds int, on ...*Subflow) {
	for range rounds {
		for _, f := range on {
			f.Send(Server, 1400)
			f.Send(Server, 1400)
			f.Ack(Client)
			f.Wait(5 * time.Millisecond)
			f.Send(Client, 100)
			f.Ack(Server)
		}
	}
}

// FallbackPlays make a connection fall back, by the cause.
var FallbackPlays = map[string]func(s *Script, c *Conn){
	track.CauseSYNACK: func(_ *Script, c *Conn) {
		f := c.Subflow(Phone, Web)
		f.SYN(true)
		f.SYNACK(false)
		f.Third(false)
		f.Plain(Client, 100)
		f.Plain(Server, 1000)
		f.FIN(Client)
		f.FIN(Server)
	},
	track.CauseSYN: func(s *Script, c *Conn) {
		f := c.Subflow(Phone, Web)
		f.SYN(true)
		s.Wait(time.Second)
		f.SYN(false)
		f.SYNACK(false)
		f.Third(false)
		f.Plain(Client, 100)
		f.Plain(Server, 1000)
	},
	track.CauseACK: func(_ *Script, c *Conn) {
		f := c.Subflow(Phone, Web)
		f.SYN(true)
		f.SYNACK(true)
		f.Third(false)
		f.Plain(Client, 100)
		f.Plain(Server, 1000)
	},
	track.CauseRemoved: func(_ *Script, c *Conn) {
		f := c.Open(Phone, Web)
		f.Send(Client, 100)
		f.Plain(Server, 1000)
		f.Plain(Server, 1000)
	},
	track.CauseChecksum: func(_ *Script, c *Conn) {
		c.Checksums = true
		f := c.Open(Phone, Web)
		f.Send(Client, 100)
		f.Send(Server, 1000)
		f.Options(Client, packet.Fail{Sequence: c.First[Server]})
		f.Plain(Server, 1000)
	},
	track.CauseFail: func(_ *Script, c *Conn) {
		f := c.Open(Phone, Web)
		f.Send(Client, 100)
		f.Send(Server, 1000)
		f.Options(Client, packet.Fail{Sequence: c.First[Server]})
		f.Options(Server, packet.DSS{Flags: packet.DSSMap | packet.DSSMap8, Sequence: c.First[Server], Subflow: 1})
	},
	track.CauseInfinite: func(_ *Script, c *Conn) {
		f := c.Open(Phone, Web)
		f.Send(Client, 100)
		f.Segment(Server, packet.ACK, f.Sent[Server], 1000, packet.DSS{Flags: packet.DSSMap | packet.DSSMap8, Sequence: c.First[Server], Subflow: 1}.Option())
		f.Sent[Server] += 1000
		f.Plain(Server, 1000)
	},
}

// ReinjectionPlays reinject 1400 bytes of subflow a on b, by what had happened before.
var ReinjectionPlays = map[string]func(s *Script, c *Conn, a, b *Subflow){
	"head-of-line": func(s *Script, c *Conn, a, b *Subflow) {
		dsn := c.Next[Server]
		a.Send(Server, 1400)
		s.Wait(20 * time.Millisecond)
		b.Carry(Server, dsn, 1400)
		b.Ack(Client)
		a.Ack(Client)
	},
	"timeout": func(s *Script, c *Conn, a, b *Subflow) {
		dsn := c.Next[Server]
		a.Send(Server, 1400)
		s.Wait(400 * time.Millisecond)
		b.Carry(Server, dsn, 1400)
		b.Ack(Client)
		a.Ack(Client)
	},
	"loss": func(s *Script, c *Conn, a, b *Subflow) {
		dsn := c.Next[Server]
		a.Send(Server, 1400)
		s.Wait(10 * time.Millisecond)
		a.Segment(Client, packet.ACK, a.Sent[Client], 0, packet.SACK(packet.Block{Left: 1, Right: 2}))
		b.Carry(Server, dsn, 1400)
		b.Ack(Client)
		a.Ack(Client)
	},
	"subflow-ended": func(s *Script, c *Conn, a, b *Subflow) {
		dsn := c.Next[Server]
		a.Send(Server, 1400)
		s.Wait(10 * time.Millisecond)
		a.Reset(Client)
		b.Carry(Server, dsn, 1400)
		b.Ack(Client)
	},
}

// Handover has the kind of a track.Handover and its cause.
type Handover struct{ Kind, Why string }

// HandoverPlays move a connection's data from its first subflow to a second, or seem to.
var HandoverPlays = map[string]struct {
	Want []Handover
	Play func(s *Script, c *Conn, a *Subflow) (alive *Subflow)
}{
	"break before make": {[]Handover{{"break-before-make", "reset"}}, func(s *Script, c *Conn, a *Subflow) *Subflow {
		a.Reset(Client)
		s.Wait(30 * time.Second)
		b := c.Join(Client, Phone2, Web, 2)
		Talk(3, b)
		return b
	}},
	"make before break": {[]Handover{{"make-before-break", "fin"}}, func(_ *Script, c *Conn, a *Subflow) *Subflow {
		b := c.Join(Client, Phone2, Web, 2)
		Talk(3, a, b)
		a.FIN(Client)
		a.FIN(Server)
		Talk(3, b)
		return b
	}},
	"removed": {[]Handover{{"make-before-break", "removed"}}, func(_ *Script, c *Conn, a *Subflow) *Subflow {
		b := c.Join(Client, Phone2, Web, 2)
		Talk(3, a, b)
		b.Options(Client, packet.RemoveAddr{AddressIDs: []byte{0}})
		Talk(3, b)
		return b
	}},
	"silent": {[]Handover{{"make-before-break", "silent"}}, func(s *Script, c *Conn, a *Subflow) *Subflow {
		b := c.Join(Client, Phone2, Web, 2)
		Talk(3, a, b)
		dsn := c.Next[Server]
		a.Send(Server, 1400)
		for range 3 {
			s.Wait(300 * time.Millisecond)
			a.Again(Server, dsn, 1400)
		}
		b.Carry(Server, dsn, 1400)
		b.Ack(Client)
		for range 20 {
			Talk(1, b)
			s.Wait(100 * time.Millisecond)
		}
		return b
	}},
	"the scheduler's choice": {nil, func(s *Script, c *Conn, a *Subflow) *Subflow {
		b := c.Join(Client, Phone2, Web, 2)
		Talk(3, a)
		s.Wait(3 * time.Second)
		Talk(3, b)
		return b
	}},
	"removed twice": {[]Handover{{"make-before-break", "removed"}, {"make-before-break", "removed"}}, func(_ *Script, c *Conn, a *Subflow) *Subflow {
		for i := range 2 {
			b := c.Join(Client, netip.AddrPortFrom(Phone2.Addr(), uint16(41000+i)), Web, 2)
			Talk(3, b)
			a.Options(Client, packet.RemoveAddr{AddressIDs: []byte{2}})
			Talk(3, a)
		}
		return a
	}},
	"closed at the end": {nil, func(_ *Script, c *Conn, a *Subflow) *Subflow {
		b := c.Join(Client, Phone2, Web, 2)
		Talk(3, b, a)
		a.FIN(Client)
		a.FIN(Server)
		return b
	}},
}

// Findings are the events of a connection that the analysis reports.
type Findings struct {
	end           string // of the kinds that are about it
	fallback      string
	reinjections  string // by what was before them
	retransmitted uint64
	handovers     string
	unused        string
	stalls        int
	anomalies     string
}

// FindingsOf returns the findings in a connection's record.
func FindingsOf(r *track.Record) (f Findings) {
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

// Planted is a kind of connection, with the findings that the analysis must report of it.
type Planted struct {
	Name string
	Play func(*Script)
	Want Findings
}

// PlantedKinds returns all kinds, in both versions.
func PlantedKinds() (list []Planted) {
	for version := range uint8(2) {
		add := func(name string, want Findings, play func(s *Script, c *Conn)) {
			list = append(list, Planted{fmt.Sprintf("%s, version %d", name, version), func(s *Script) { play(s, s.Conn(version)) }, want})
		}
		add("nothing", Findings{}, func(_ *Script, c *Conn) {
			a, b := c.Open(Phone, Web), c.Join(Client, Phone2, Web, 2)
			Talk(6, a, b)
			c.Close(a, b)
		})
		for _, cause := range slices.Sorted(maps.Keys(FallbackPlays)) {
			add("fallback "+cause, Findings{fallback: cause}, FallbackPlays[cause])
		}
		for _, after := range slices.Sorted(maps.Keys(ReinjectionPlays)) {
			want := Findings{reinjections: "1 after " + after + ";"}
			if after == "subflow-ended" {
				want.handovers = "make-before-break reset;"
			}
			add("reinjection after "+after, want, func(s *Script, c *Conn) {
				a, b := c.Open(Phone, Web), c.Join(Client, Phone2, Web, 2)
				Talk(5, a, b)
				ReinjectionPlays[after](s, c, a, b)
				Talk(5, b)
				c.Close(b)
			})
		}
		for _, name := range slices.Sorted(maps.Keys(HandoverPlays)) {
			h, want := HandoverPlays[name], Findings{}
			for _, one := range h.Want {
				want.handovers += one.Kind + " " + one.Why + ";"
			}
			if name == "silent" { // its data is sent again three times, then on the other subflow
				want.retransmitted, want.reinjections = 3*1400, "1 after timeout;"
			}
			add("handover: "+name, want, func(s *Script, c *Conn) {
				a := c.Open(Phone, Web)
				Talk(3, a)
				c.Close(h.Play(s, c, a))
			})
		}
		for _, end := range slices.Sorted(maps.Keys(EndPlays)) {
			add("end "+end, Findings{end: end}, func(s *Script, c *Conn) {
				a, b := c.Open(Phone, Web), c.Join(Client, Phone2, Web, 2)
				Talk(5, a, b)
				EndPlays[end](s, c, a, b)
			})
		}
		add("the server's FIN repeated", Findings{end: track.EndDataFIN}, func(s *Script, c *Conn) {
			a := c.Open(Phone, Web)
			Talk(5, a)
			c.Close(a)
			for after := 200 * time.Millisecond; after <= 3200*time.Millisecond; after *= 2 {
				s.Wait(after)
				a.Segment(Server, packet.FIN|packet.ACK, a.Sent[Server]-1, 0, packet.DSS{Flags: packet.DSSAck | packet.DSSAck8, Ack: c.Next[Client]}.Option())
			}
		})
		add("data without mapping on a joined subflow", Findings{anomalies: "map[data-without-mapping:1]"}, func(_ *Script, c *Conn) {
			a, b := c.Open(Phone, Web), c.Join(Client, Phone2, Web, 2)
			Talk(5, a)
			b.Segment(Server, packet.ACK|packet.PSH, b.Sent[Server], 1000)
			b.Reset(Client)
			a.Send(Client, 100)
			a.Reset(Client)
		})
		for better, gap := range map[bool]time.Duration{true: 10 * time.Microsecond, false: 50 * time.Millisecond} {
			add(fmt.Sprintf("unused, better: %v", better), Findings{unused: fmt.Sprintf("1, better: %v;", better)}, func(s *Script, c *Conn) {
				a := c.Open(Phone, Web)
				usual := s.Gap
				s.Gap = gap
				b := c.Join(Client, Phone2, Web, 2)
				s.Gap = usual
				Talk(5, a)
				c.Close(a, b)
			})
		}
	}
	return list
}

// EndPlays end a connection, by how.
var EndPlays = map[string]func(s *Script, c *Conn, a, b *Subflow){
	track.EndDataFIN: func(_ *Script, c *Conn, a, b *Subflow) { c.Close(a, b) },
	track.EndReset: func(s *Script, _ *Conn, a, b *Subflow) {
		b.Reset(Client)
		s.Wait(time.Millisecond)
		a.Reset(Client)
	},
	track.EndFastClose: func(_ *Script, c *Conn, a, b *Subflow) {
		fast := packet.FastClose{Receiver: c.Keys[Server]}
		if c.Version == 0 {
			a.Options(Client, fast) // RFC 6824, 3.5: in an ACK, which a reset answers
			b.Reset(Client)
			a.Reset(Server)
			return
		}
		a.Reset(Client, fast.Option())
		b.Reset(Client, fast.Option())
	},
}

// renumber replaces the last two bytes of the clients' addresses in a packet. Their first two distinguish the links.
func renumber(ip []byte, high, low byte) {
	for _, at := range []int{12, 16} {
		switch netip.AddrFrom4([4]byte(ip[at:])) {
		case Phone.Addr(), Phone2.Addr():
			ip[at+2], ip[at+3] = high, low
		}
	}
}

// Find returns the findings of the analysis in a connection of the kind, and reports whether they are exactly the planted
// ones.
func (k Planted) Find(r *track.Record) (found Findings, exactly bool) {
	found = FindingsOf(r)
	if k.Want.end == "" {
		found.end = ""
	}
	return found, found == k.Want
}

// Mixture is a capture of connections of all kinds at the same time.
type Mixture struct {
	Frames []Frame
	kinds  []Planted // by the last two bytes of the clients' addresses
}

// Mix makes a mixture with each connections of each kind.
func Mix(each int) (m Mixture) {
	random := rand.New(rand.NewPCG(3, 4))
	kinds := PlantedKinds()
	for i := range each * len(kinds) {
		kind := kinds[i%len(kinds)]
		s := New(uint64(i+1) << 20) // neighbours have numbers in common
		s.At = time.Duration(random.Int64N(int64(20 * time.Second)))
		kind.Play(s)
		for _, f := range s.Frames {
			renumber(f.IP, byte(i>>8), byte(i))
		}
		m.Frames = append(m.Frames, s.Frames...)
		m.kinds = append(m.kinds, kind)
	}
	slices.SortStableFunc(m.Frames, func(a, b Frame) int { return cmp.Compare(a.At, b.At) })
	return m
}

// Connections returns the number of connections.
func (m Mixture) Connections() int { return len(m.kinds) }

// Of returns the kind of a connection.
func (m Mixture) Of(r *track.Record) Planted {
	address := r.Subflows[0].Client.Addr().As4()
	return m.kinds[int(address[2])<<8|int(address[3])]
}
