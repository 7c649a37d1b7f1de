package analyse_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/analyse/analysetest"
	"github.com/detour-collective/dcol/internal/analyse/track"
	"github.com/detour-collective/dcol/internal/packet"
)

// amid sends packets of other connections for a time, so many to each worker.
func amid(s *analysetest.Script, others []*analysetest.Subflow, packets int, lasting time.Duration) {
	was := s.Gap
	s.Gap = lasting / time.Duration(packets*len(others))
	for range packets / 2 {
		for _, f := range others {
			f.Send(server, 100)
			f.Ack(client)
		}
	}
	s.Gap = was
}

// twoOthers begins two connections, one for each worker.
func twoOthers(s *analysetest.Script) (others []*analysetest.Subflow) {
	for i := range 2 {
		others = append(others, s.Conn(1).Open(netip.AddrPortFrom(phone2.Addr(), uint16(50000+i)), web))
	}
	return others
}

// A peer that vanishes while it closes has the other repeat its FIN for long (Linux: after 0.2, 0.6, 1.4, 3.0, 6.2 s).
func TestFINRepeatedAfterTheEnd(t *testing.T) {
	again := func(f *analysetest.Subflow, from analysetest.Side, flags packet.Flags) {
		f.Segment(from, flags|packet.ACK, f.Sent[from]-1, 0, packet.DSS{Flags: packet.DSSAck | packet.DSSAck8, Ack: f.Next[1-from]}.Option())
	}
	for name, repeat := range map[string]func(f *analysetest.Subflow){
		"FIN":       func(f *analysetest.Subflow) { again(f, server, packet.FIN) },
		"ACK":       func(f *analysetest.Subflow) { again(f, client, 0) },
		"data":      func(f *analysetest.Subflow) { f.Again(server, f.Next[server]-1401, 1400) },
		"reset":     func(f *analysetest.Subflow) { f.Reset(client, packet.Reset{Reason: 1}.Option()) },
		"SYN again": func(f *analysetest.Subflow) { f.SYN(true) },
		"SYN and ACK": func(f *analysetest.Subflow) {
			sent := f.Sent[client]
			f.Sent[client] = f.Seq[client] + 1
			f.SYNACK(true)
			f.Sent[client] = sent
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := analysetest.New(50)
			s.At = time.Second
			others := twoOthers(s)
			c := s.Conn(1)
			a := c.Open(phone, web)
			talk(2, a)
			c.Close(a)
			for _, after := range []time.Duration{200 * time.Millisecond, 400 * time.Millisecond, 2400 * time.Millisecond, 3200 * time.Millisecond, 30 * time.Second} {
				amid(s, others, 2000, after)
				repeat(a)
			}
			all, counts := run(t, defaults(), pcapOf(t, s.Frames, 128))
			if len(all) != 3 {
				for _, r := range all {
					t.Logf("%d: midway %v, %d packets, end %s", r.Number, r.Midway, r.Packets, r.End)
				}
				t.Fatalf("%d connections of 3", len(all))
			}
			if counts.Late != 3 || int(counts.MPTCP) != len(s.Frames) {
				t.Errorf("%+v", counts)
			}
		})
	}
}

// Keep-alives after the end by inactivity, which acknowledge data, show no connection. What is sent after them does.
func TestKeepAliveAfterInactivity(t *testing.T) {
	for name, goesOn := range map[string]bool{"silent after": false, "data after": true} {
		t.Run(name, func(t *testing.T) {
			s := analysetest.New(55)
			s.At = time.Second
			others := twoOthers(s)
			c := s.Conn(1)
			a := c.Open(phone, web)
			talk(2, a)
			a.Ack(client)
			a.Ack(server)
			for range 3 {
				amid(s, others, 4000, 10*time.Minute)
				for _, from := range []analysetest.Side{server, client} { // the second one is the answer
					a.Segment(from, packet.ACK, a.Sent[from]-1+uint32(from^server), 0, packet.DSS{Flags: packet.DSSAck | packet.DSSAck8, Ack: c.Next[1-from]}.Option())
				}
			}
			want, late := 3, uint64(6)
			if goesOn {
				talk(2, a)
				want, late = 4, 4 // the last keep-alive is the new record's first packet
			}
			all, counts := run(t, defaults(), pcapOf(t, s.Frames, 128))
			if len(all) != want || counts.Late != late || int(counts.MPTCP) != len(s.Frames) {
				for _, r := range all {
					t.Logf("%d: midway %v, %d packets, end %s", r.Number, r.Midway, r.Packets, r.End)
				}
				t.Errorf("%d connections of %d, %+v", len(all), want, counts)
			}
		})
	}
}

// Acknowledgements that go forward are all that a capture of one direction has of a connection that receives.
func TestOnlyAcknowledgements(t *testing.T) {
	s := analysetest.New(56)
	c := s.Conn(1)
	a := c.Open(phone, web)
	var acks frames
	for range 3 {
		a.Send(server, 1400)
		a.Ack(client)
		acks = append(acks, s.Frames[len(s.Frames)-1])
	}
	if !one(t, acks).Midway {
		t.Error("it began before the capture")
	}
}

// A FIN or a reset that is all that a capture has of a connection shows no connection.
func TestOnlyTheEndCaptured(t *testing.T) {
	s := analysetest.New(51)
	c := s.Conn(1)
	a := c.Open(phone, web)
	talk(2, a)
	n := len(s.Frames)
	a.Segment(server, packet.FIN|packet.ACK, a.Sent[server], 0, packet.DSS{Flags: packet.DSSAck | packet.DSSAck8, Ack: c.Next[client]}.Option())
	a.Reset(client, packet.FastClose{Receiver: c.Keys[server]}.Option())
	all, counts := run(t, defaults(), pcapOf(t, s.Frames[n:], 128))
	if len(all) != 0 || counts.Late != 2 {
		t.Errorf("%d connections, %+v", len(all), counts)
	}
}

// Addresses and ports of a connection that ended are used again: soon, by MPTCP, plain TCP, or both.
func TestPortsReusedAfterTheEnd(t *testing.T) {
	s := analysetest.New(52)
	others := twoOthers(s)
	for i := range 3 {
		c := s.Conn(1)
		a := c.Open(phone, web)
		talk(2, a)
		c.Close(a)
		amid(s, others, 6000, 5*time.Second)
		if i == 1 {
			plain := s.Conn(1).Subflow(phone, web)
			plain.SYN(false)
			plain.SYNACK(false)
			plain.Plain(client, 100)
		}
	}
	s.Conn(1).Subflow(phone, web).SYNACK(true) // whose SYN the capture lacks
	all, counts := run(t, defaults(), pcapOf(t, s.Frames, 128))
	if len(all) != 6 || counts.PlainSYNs != 1 || counts.PlainTCP != 3 || counts.Late != 0 {
		t.Errorf("%d connections, %+v", len(all), counts)
	}
}

func TestEnds(t *testing.T) {
	for end, play := range analysetest.EndPlays {
		for version := range uint8(2) {
			t.Run(fmt.Sprintf("%s, version %d", end, version), func(t *testing.T) {
				s := analysetest.New(53)
				c := s.Conn(version)
				a, b := c.Open(phone, web), c.Join(client, phone2, web, 2)
				talk(3, a, b)
				play(s, c, a, b)
				r := one(t, s.Frames)
				quiet(t, r)
				if r.End != end {
					t.Errorf("it ended by %q", r.End)
				}
				for i, f := range r.Subflows {
					if want := map[bool]string{true: "closed", false: "reset"}[end == track.EndDataFIN]; f.State != want {
						t.Errorf("subflow %d is %s", i, f.State)
					}
				}
			})
		}
	}
}

// One connection, captured at the client, in the middle and at the server, has the same structure.
func TestCapturedAnywhere(t *testing.T) {
	for version := range uint8(2) {
		s := analysetest.New(54)
		s.Gap = 2 * time.Millisecond
		c := s.Conn(version)
		a := c.Open(phone, web)
		b := c.Join(client, phone2, web, 2)
		c.Join(server, netip.AddrPortFrom(phone2.Addr(), 40009), web, 3)
		talk(3, a, b)
		dsn := c.Next[server]
		a.Send(server, 1400)
		s.Wait(50 * time.Millisecond)
		a.Reset(client)
		b.Carry(server, dsn, 1400)
		b.Options(client, packet.RemoveAddr{AddressIDs: []byte{0}})
		talk(3, b)
		c.Close(b)
		var want string
		for _, place := range []float64{0, 0.5, 1} {
			r := one(t, seenAt(s.Frames, place, 500*time.Microsecond))
			if got := structure(r); want == "" {
				want = got
			} else if got != want {
				t.Errorf("version %d, at %v of the way:\n%s\nat the client:\n%s", version, place, got, want)
			}
		}
	}
}

// seenAt moves packets to when a place on the way sees them, between the client (0) and the server (1).
func seenAt(list frames, place float64, way time.Duration) (seen frames) {
	for _, f := range list {
		part := place
		if p, _ := packet.Parse(f.IP); p.Src() == web.Addr() {
			part = 1 - place
		}
		seen = append(seen, analysetest.Frame{At: f.At + time.Duration(part*float64(way)), IP: f.IP})
	}
	return seen
}

// structure writes what a connection consisted of, without times.
func structure(r *track.Record) (text string) {
	text = fmt.Sprintln(*r.Version, r.Tokens, r.FromClient, r.FromServer, r.End, r.Shape, r.Fallback, r.Reinjected, r.ReinjectedAfter, r.Retransmitted, r.Anomalies)
	for _, s := range r.Subflows {
		text += fmt.Sprintln(s.Client, s.Server, s.Initial, s.OpenedBy, s.State, s.HMAC, s.Unused, s.FromClient.NewData, s.FromServer.NewData, s.FromClient.Packets, s.FromServer.Packets)
	}
	for _, h := range r.Handovers {
		text += fmt.Sprintln(h.From, h.To, h.Kind, h.Why)
	}
	for _, g := range r.Signals {
		text += fmt.Sprintln(g.Kind, g.From, g.IDs, g.Followed)
	}
	return text
}
