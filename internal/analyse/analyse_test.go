package analyse_test

import (
	"bytes"
	"cmp"
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/analyse"
	"github.com/detour-collective/dcol/internal/analyse/analysetest"
	"github.com/detour-collective/dcol/internal/analyse/capture"
	"github.com/detour-collective/dcol/internal/analyse/track"
	"github.com/detour-collective/dcol/internal/packet"
)

const (
	client = analysetest.Client
	server = analysetest.Server
)

// talk has subflows take turns for some rounds.
var talk = analysetest.Talk

var (
	phone  = analysetest.Phone
	phone2 = analysetest.Phone2
	phone6 = netip.MustParseAddrPort("[2001:db8::1]:40003")
	web    = analysetest.Web
	web6   = netip.MustParseAddrPort("[2001:db8:5::5]:443")
)

type frames = []analysetest.Frame

// pcapOf writes a capture.
func pcapOf(t testing.TB, list frames, snap int) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := analysetest.NewPcap(&b, snap)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		if err := w.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func defaults() analyse.Options {
	return analyse.Options{Idle: 2 * time.Minute, Connections: 1 << 20, Workers: 2}
}

// run analyses captures, and returns the connections by their numbers.
func run(t testing.TB, o analyse.Options, captures ...[]byte) ([]*track.Record, analyse.Counts) {
	t.Helper()
	folder := t.TempDir()
	var paths []string
	for i, b := range captures {
		path := filepath.Join(folder, string(rune('a'+i)))
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	files, err := capture.Open(paths)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	var mu sync.Mutex
	var all []*track.Record
	o.Done = func(_ int, r *track.Record) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, r)
	}
	counts, err := analyse.Run(context.Background(), files, o)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b *track.Record) int { return cmp.Compare(a.Number, b.Number) })
	return all, counts
}

// one analyses a capture of one connection, whole.
func one(t testing.TB, list frames) *track.Record {
	t.Helper()
	all, _ := run(t, defaults(), pcapOf(t, list, 65535))
	if len(all) != 1 {
		t.Fatalf("%d connections", len(all))
	}
	return all[0]
}

// quiet fails if anything was found that a connection without trouble does not have.
func quiet(t *testing.T, r *track.Record) {
	t.Helper()
	if r.Fallback != nil || r.Reinjections+r.Reinjected+r.Retransmitted > 0 || len(r.Handovers) > 0 || r.WindowStalls > 0 || r.Blockages > 0 || r.Anomalies != nil {
		t.Errorf("found in a connection without trouble: fallback %v, %d reinjections, %d bytes retransmitted, handovers %v, %d stalls, %d blockages, %v",
			r.Fallback, r.Reinjections, r.Retransmitted, r.Handovers, r.WindowStalls, r.Blockages, r.Anomalies)
	}
	for i, s := range r.Subflows {
		if s.FromClient.OutOfOrder+s.FromServer.OutOfOrder > 0 {
			t.Errorf("subflow %d is out of order", i)
		}
	}
}

// Without trouble, nothing is found, whatever the version, address family, size of numbers and snap length.
func TestConnections(t *testing.T) {
	for name, change := range map[string]func(*analysetest.Conn){
		"version 1": func(*analysetest.Conn) {}, "version 0": nil, "checksums": func(c *analysetest.Conn) { c.Checksums = true },
		"short numbers": func(c *analysetest.Conn) { c.Short = true },
	} {
		t.Run(name, func(t *testing.T) {
			s := analysetest.New(1)
			version := uint8(1)
			if change == nil {
				version, change = 0, func(*analysetest.Conn) {}
			}
			c := s.Conn(version)
			change(c)
			a := c.Open(phone, web)
			s.Wait(20 * time.Millisecond)
			b := c.Join(client, phone2, web, 2)
			six := c.Join(server, phone6, web6, 3)
			talk(10, a, b, six)
			c.Close(a, b, six)
			for _, snap := range []int{65535, 128} {
				all, counts := run(t, defaults(), pcapOf(t, s.Frames, snap))
				if len(all) != 1 || counts.MPTCP != uint64(len(s.Frames)) {
					t.Fatalf("%d connections, %+v", len(all), counts)
				}
				r := all[0]
				quiet(t, r)
				if *r.Version != int(version) || r.End != track.EndDataFIN || r.FromClient != 3001 || r.FromServer != 84001 || r.Shape != "fullmesh" {
					t.Errorf("%+v", r)
				}
				if len(r.Subflows) != 3 || !r.Subflows[0].Initial || *r.Subflows[1].JoinDelay < 0.02 || *r.Subflows[1].JoinDelay > 0.021 {
					t.Fatalf("subflows %+v", r.Subflows)
				}
				for i, want := range []struct {
					client, server netip.AddrPort
					hmac, opener   string
				}{{phone, web, "", "client"}, {phone2, web, "verified", "client"}, {phone6, web6, "verified", "server"}} {
					s := r.Subflows[i]
					if s.Client != want.client || s.Server != want.server || s.HMAC != want.hmac || s.OpenedBy != want.opener || s.State != "closed" {
						t.Errorf("subflow %d: %+v", i, s)
					}
					if s.FromServer.NewData != 28000 || s.FromClient.NewData != 1000 || s.Unused {
						t.Errorf("subflow %d carried %+v", i, s)
					}
				}
				if share := *r.ViaInitial; share < 0.333 || share > 0.334 {
					t.Errorf("initial share %v", share)
				}
			}
		})
	}
}

// Of two bytes: the DATA_FINs.
func TestEmptyConnection(t *testing.T) {
	s := analysetest.New(2)
	c := s.Conn(1)
	c.Close(c.Open(phone, web))
	r := one(t, s.Frames)
	quiet(t, r)
	if r.FromClient+r.FromServer != 2 || r.Shape != "single" {
		t.Errorf("%+v", r)
	}
}

func TestFallbacks(t *testing.T) {
	for cause, play := range analysetest.FallbackPlays {
		t.Run(cause, func(t *testing.T) {
			for version := range uint8(2) {
				s := analysetest.New(3)
				play(s, s.Conn(version))
				r := one(t, s.Frames)
				if r.Fallback == nil || r.Fallback.Cause != cause {
					t.Fatalf("version %d: %+v", version, r.Fallback)
				}
				if r.Anomalies != nil || r.Reinjections > 0 || r.Retransmitted > 0 {
					t.Errorf("version %d: anomalies %v, %d reinjections, %d retransmitted", version, r.Anomalies, r.Reinjections, r.Retransmitted)
				}
				if r.FromServer < 1000 {
					t.Errorf("version %d: %d bytes of the server", version, r.FromServer)
				}
			}
		})
	}
}

// Not fallbacks, though they look similar.
func TestNoFallback(t *testing.T) {
	t.Run("MP_FAIL with a reset of one subflow", func(t *testing.T) {
		s := analysetest.New(4)
		c := s.Conn(1)
		c.Checksums = true
		a := c.Open(phone, web)
		b := c.Join(client, phone2, web, 2)
		talk(2, a, b)
		b.Reset(client, packet.Fail{Sequence: c.First[server]}.Option())
		talk(2, a)
		c.Close(a)
		r := one(t, s.Frames)
		if r.Fallback != nil || !r.Subflows[1].Failed || r.Subflows[1].State != "reset" {
			t.Errorf("%+v %+v", r.Fallback, r.Subflows)
		}
	})
	// By RFC 8684, 3.7, such data ends its subflow, if there are others.
	for name, first := range map[string]bool{"data without mapping on a joined subflow": false, "data without mapping on one of two": true} {
		t.Run(name, func(t *testing.T) {
			for version := range uint8(2) {
				s := analysetest.New(64)
				c := s.Conn(version)
				a, b := c.Open(phone, web), c.Join(client, phone2, web, 2)
				good := c.Join(client, netip.AddrPortFrom(phone2.Addr(), 40009), web, 3)
				talk(2, a, b, good)
				bad := b
				if first {
					bad = a
				}
				bad.Segment(server, packet.ACK|packet.PSH, bad.Sent[server], 1000)
				bad.Sent[server] += 1000
				bad.Reset(client)
				talk(2, good)
				c.Close(good)
				if r := one(t, s.Frames); r.Fallback != nil || r.Anomalies["data-without-mapping"] != 1 || r.FromServer != 8*2800+1 {
					t.Errorf("version %d: %+v %v, %d bytes", version, r.Fallback, r.Anomalies, r.FromServer)
				}
			}
		})
	}
	t.Run("one direction", func(t *testing.T) {
		s := analysetest.New(5)
		c := s.Conn(1)
		a := c.Open(phone, web)
		b := c.Join(client, phone2, web, 2)
		talk(3, a, b)
		c.Close(a, b)
		for _, side := range []analysetest.Side{client, server} {
			var half frames
			for _, f := range s.Frames {
				if p, _ := packet.Parse(f.IP); (p.Dst() == web.Addr()) == (side == client) {
					half = append(half, f)
				}
			}
			all, _ := run(t, defaults(), pcapOf(t, half, 128))
			for _, r := range all {
				if r.Fallback != nil || r.Reinjections > 0 || len(r.Handovers) > 0 || r.Retransmitted > 0 {
					t.Errorf("side %v: %+v, %d reinjections, %v", side, r.Fallback, r.Reinjections, r.Handovers)
				}
			}
			if side == client && (len(all) != 1 || len(all[0].Subflows) != 2 || all[0].FromClient != 601) {
				t.Errorf("client's packets: %d connections, %+v", len(all), all[0])
			}
		}
	})
	t.Run("a retransmission without mapping", func(t *testing.T) {
		s := analysetest.New(6)
		c := s.Conn(1)
		a := c.Open(phone, web)
		talk(2, a)
		a.Send(server, 1000)
		s.Wait(300 * time.Millisecond)
		a.Segment(server, packet.ACK, a.Sent[server]-1000, 1000)
		a.Ack(client)
		c.Close(a)
		if r := one(t, s.Frames); r.Fallback != nil || r.Anomalies != nil || r.Retransmitted != 1000 {
			t.Errorf("%+v %v %d", r.Fallback, r.Anomalies, r.Retransmitted)
		}
	})
}

func TestReinjections(t *testing.T) {
	for after, play := range analysetest.ReinjectionPlays {
		t.Run(after, func(t *testing.T) {
			for version := range uint8(2) {
				s := analysetest.New(7)
				c := s.Conn(version)
				a := c.Open(phone, web)
				b := c.Join(client, phone2, web, 2)
				talk(5, a, b)
				play(s, c, a, b)
				talk(5, b)
				c.Close(b)
				r := one(t, s.Frames)
				if r.Reinjections != 1 || r.Reinjected != 1400 || r.ReinjectedAfter[after] != 1 || r.Retransmitted != 0 || r.Anomalies != nil {
					t.Errorf("%d reinjections of %d bytes, %v; %d retransmitted, %v", r.Reinjections, r.Reinjected, r.ReinjectedAfter, r.Retransmitted, r.Anomalies)
				}
				if r.Subflows[1].FromServer.Reinjected != 1400 || len(r.ReinjectionTimes) != 1 {
					t.Errorf("%+v, %v", r.Subflows[1], r.ReinjectionTimes)
				}
				if want := after == "subflow-ended"; (len(r.Handovers) == 1) != want {
					t.Errorf("handovers %v", r.Handovers)
				}
			}
		})
	}
}

func TestRetransmissions(t *testing.T) {
	t.Run("seen twice", func(t *testing.T) {
		s := analysetest.New(8)
		c := s.Conn(1)
		a := c.Open(phone, web)
		b := c.Join(client, phone2, web, 2)
		talk(5, a, b)
		dsn := c.Next[server]
		a.Send(server, 1400)
		s.Wait(250 * time.Millisecond)
		a.Again(server, dsn, 1400)
		a.Ack(client)
		c.Close(a, b)
		if r := one(t, s.Frames); r.Retransmitted != 1400 || r.Reinjections != 0 || len(r.RetransmissionTimes) != 1 {
			t.Errorf("%d bytes, %d reinjections, %v", r.Retransmitted, r.Reinjections, r.RetransmissionTimes)
		}
	})
	t.Run("lost before the capture", func(t *testing.T) {
		s := analysetest.New(9)
		c := s.Conn(1)
		a := c.Open(phone, web)
		talk(5, a)
		dsn, seq := c.Next[server], a.Sent[server]
		a.Lose(server, 1400)
		a.Send(server, 1400)
		s.Wait(40 * time.Millisecond)
		a.Segment(server, packet.ACK, seq, 1400, a.Mapping(server, dsn, seq, 1400, 0))
		a.Ack(client)
		c.Close(a)
		r := one(t, s.Frames)
		if r.Retransmitted != 1400 || r.Reinjections != 0 || r.Blockages != 1 || r.Blocked < 0.039 || r.Blocked > 0.042 {
			t.Errorf("%d bytes, %d reinjections, %d blockages of %v s", r.Retransmitted, r.Reinjections, r.Blockages, r.Blocked)
		}
	})
	t.Run("overtaken", func(t *testing.T) {
		s := analysetest.New(10)
		c := s.Conn(1)
		a := c.Open(phone, web)
		talk(5, a)
		a.Send(server, 1400)
		a.Send(server, 1400)
		n := len(s.Frames)
		s.Frames[n-1].IP, s.Frames[n-2].IP = s.Frames[n-2].IP, s.Frames[n-1].IP
		a.Ack(client)
		c.Close(a)
		r := one(t, s.Frames)
		if r.Retransmitted != 0 || r.Subflows[0].FromServer.OutOfOrder != 1 || r.Reinjections != 0 {
			t.Errorf("%d bytes, %+v", r.Retransmitted, r.Subflows[0])
		}
	})
}

func TestHandovers(t *testing.T) {
	for name, c := range analysetest.HandoverPlays {
		t.Run(name, func(t *testing.T) {
			s := analysetest.New(11)
			conn := s.Conn(1)
			a := conn.Open(phone, web)
			talk(3, a)
			alive := c.Play(s, conn, a)
			conn.Close(alive)
			r := one(t, s.Frames)
			var got []analysetest.Handover
			for _, h := range r.Handovers {
				got = append(got, analysetest.Handover{Kind: h.Kind, Why: h.Why})
				if (h.From != 0 || h.To != 1) && name != "removed twice" {
					t.Errorf("%+v", h)
				}
			}
			if !slices.Equal(got, c.Want) {
				t.Errorf("%v, want %v", got, c.Want)
			}
			if r.Fallback != nil {
				t.Errorf("%+v", r.Fallback)
			}
		})
	}
}

func TestUnusedSubflows(t *testing.T) {
	for name, better := range map[string]bool{"quicker": true, "slower": false} {
		t.Run(name, func(t *testing.T) {
			s := analysetest.New(12)
			c := s.Conn(1)
			a := c.Open(phone, web)
			if better {
				s.Gap = 10 * time.Microsecond
			} else {
				s.Gap = 50 * time.Millisecond
			}
			b := c.Join(client, phone2, web, 2)
			s.Gap = 100 * time.Microsecond
			talk(5, a)
			c.Close(a, b)
			r := one(t, s.Frames)
			if u := r.Subflows[1]; !u.Unused || u.UnusedBetter == nil || *u.UnusedBetter != better || r.Subflows[0].Unused || *r.ViaInitial != 1 {
				t.Errorf("%+v", u)
			}
			quiet(t, r)
		})
	}
	t.Run("refused", func(t *testing.T) {
		s := analysetest.New(13)
		c := s.Conn(1)
		a := c.Open(phone, web)
		b := c.Subflow(phone2, web)
		b.Segment(client, packet.SYN, b.Seq[client], 0, packet.JoinSYN{Token: c.Keys[server].Token(1)}.Option())
		b.Reset(server)
		talk(2, a)
		c.Close(a)
		if r := one(t, s.Frames); r.Subflows[1].State != "refused" || r.Subflows[1].Unused {
			t.Errorf("%+v", r.Subflows[1])
		}
	})
}
