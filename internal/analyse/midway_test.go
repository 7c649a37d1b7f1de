package analyse_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/analyse/analysetest"
	"github.com/detour-collective/dcol/internal/packet"
)

// A connection that began before the capture hands over to a network that it joins within.
func TestJoinAfterTheBegin(t *testing.T) {
	for name, opener := range map[string]analysetest.Side{"by the client": client, "by the server": server} {
		t.Run(name, func(t *testing.T) {
			for version := range uint8(2) {
				s := analysetest.New(60)
				c := s.Conn(version)
				a := c.Open(phone, web)
				talk(2, a)
				n := len(s.Frames)
				talk(4, a)
				b := c.Join(opener, phone2, web, 2)
				talk(1, b)
				a.Reset(client)
				third := c.Join(opener, netip.AddrPortFrom(phone2.Addr(), 40009), web, 3)
				talk(4, b, third)
				c.Close(b, third)
				all, _ := run(t, defaults(), pcapOf(t, s.Frames[n:], 128))
				if len(all) != 1 {
					t.Fatalf("version %d: %d connections", version, len(all))
				}
				r := all[0]
				if len(r.Subflows) != 3 || !r.Midway || r.Anomalies != nil || r.Fallback != nil || r.Reinjections > 0 || r.Retransmitted > 0 {
					t.Errorf("version %d: %d subflows, midway %v, %v %v", version, len(r.Subflows), r.Midway, r.Anomalies, r.Fallback)
				}
				if len(r.Handovers) != 1 || r.Handovers[0].Why != "reset" || r.Handovers[0].To != 1 {
					t.Errorf("version %d: handovers %+v", version, r.Handovers)
				}
				// The first segment's place is known only with the second.
				if want := uint64(13*2800 + 1 - 1400); r.FromServer != want {
					t.Errorf("version %d: %d bytes, want %d", version, r.FromServer, want)
				}
				for i, f := range r.Subflows[1:] {
					if f.Client.Addr() != phone2.Addr() || f.Server != web || f.OpenedBy != [...]string{"client", "server"}[opener] || f.FromServer.NewData != [...]uint64{5 * 2800, 4 * 2800}[i] {
						t.Errorf("version %d: subflow %+v", version, f)
					}
				}
			}
		})
	}
}

// A join with the token of nobody stays what it is, however many connections began before the capture.
func TestJoinOfNobody(t *testing.T) {
	s := analysetest.New(61)
	c := s.Conn(1)
	a := c.Open(phone, web)
	talk(2, a)
	n := len(s.Frames)
	talk(2, a)
	stranger := s.Conn(1)
	b := stranger.Join(client, phone2, web, 2)
	talk(2, b)
	talk(2, a)
	all, _ := run(t, defaults(), pcapOf(t, s.Frames[n:], 128))
	if len(all) != 2 || all[1].Anomalies["unknown-token"] != 1 || len(all[0].Subflows) != 1 {
		t.Errorf("%d connections", len(all))
	}
}

// The time for connections that began before the capture does not grow with the square of their number.
func BenchmarkBeganBefore(b *testing.B) {
	for _, connections := range []int{2000, 20000} {
		b.Run(fmt.Sprint(connections), func(b *testing.B) {
			s := analysetest.New(62)
			s.Gap = time.Microsecond
			for i := range connections {
				from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 40000)
				c := s.Conn(1)
				f := c.Subflow(from, web)
				f.Send(server, 100)
				f.Ack(client)
			}
			list := pcapOf(b, s.Frames, 128)
			for b.Loop() {
				run(b, defaults(), list)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*connections), "µs/connection")
		})
	}
}

// Two removals of one address ID with a join between them are two, and so are its announcements.
func TestAddressIDUsedAgain(t *testing.T) {
	for version := range uint8(2) {
		s := analysetest.New(63)
		c := s.Conn(version)
		a := c.Open(phone, web)
		talk(2, a)
		add := packet.AddAddr{Version: version, AddressID: 2, Address: phone2.Addr()}
		if version == 0 {
			add.Flags = 4
		} else {
			add.HMAC = add.Authenticator(c.Keys[client], c.Keys[server])
		}
		for i := range 2 {
			a.Options(client, add)
			s.Wait(time.Second)
			a.Options(client, add) // a repetition
			b := c.Join(client, netip.AddrPortFrom(phone2.Addr(), uint16(41000+i)), web, 2)
			talk(3, b)
			a.Options(client, packet.RemoveAddr{AddressIDs: []byte{2}})
			a.Options(client, packet.RemoveAddr{AddressIDs: []byte{2}}) // a repetition
			talk(3, a)
		}
		c.Close(a)
		r := one(t, s.Frames)
		var kinds []string
		for _, g := range r.Signals {
			kinds = append(kinds, g.Kind)
			if g.Repeats != 1 {
				t.Errorf("version %d: %+v", version, g)
			}
		}
		if len(kinds) != 4 {
			t.Errorf("version %d: %v", version, kinds)
		}
		if len(r.Handovers) != 2 {
			t.Errorf("version %d: handovers %+v", version, r.Handovers)
		}
	}
}
