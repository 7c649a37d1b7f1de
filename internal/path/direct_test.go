package path_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

func (s *selection) direct() path.DirectState { return s.m.Snapshot(s.now).Direct }

func (s *selection) state(waypoint string) string { return s.shown(waypoint).State }

// A direct path over which nothing comes any more is silent within 15 seconds, whatever the traffic, and up again after
// it is back, at the latest after half a minute. The kernel would end it after 127 probes. If only the server pauses, nothing is known, and nothing is reported.
func TestDeadDirectPathIsSilent(t *testing.T) {
	for name, traffic := range map[string]func(*selection, time.Duration){
		"bulk":     (*selection).bulk,
		"messages": func(s *selection, long time.Duration) { s.messages(long, 2*dt) },
		"stream":   func(s *selection, long time.Duration) { s.stream(long, 2*dt) },
	} {
		t.Run(name, func(t *testing.T) {
			direct := good()
			s := newSelection(t, map[string]*pathWorth{"": direct, "bob": {trip: 60 * time.Millisecond, rate: 800}})
			s.offer("bob")
			s.connect()
			traffic(s, 20*time.Second)
			if d := s.direct(); d.Word != path.DirectUp || s.state("") != "up" {
				t.Fatalf("before: %+v, %s", d, s.state(""))
			}
			direct.dead = true
			died := s.now
			traffic(s, 15*time.Second)
			if d := s.direct(); d.Word != path.DirectLost || d.Conns != 1 || d.Since.Sub(died).Abs() > 2*time.Second {
				t.Errorf("dead since %v: %+v", died, d)
			}
			if is := s.state(""); is != "silent" && name == "bulk" || is == "up" {
				t.Errorf("the dead path is %s", is)
			}
			traffic(s, 5*time.Minute)
			if d := s.direct(); d.Word != path.DirectLost {
				t.Errorf("five minutes later: %+v", d)
			}
			if n := s.over("").unanswered; n > 25 {
				t.Errorf("%d probes are unanswered", n)
			}
			direct.dead = false
			traffic(s, 33*time.Second)
			if d := s.direct(); d.Word != path.DirectUp || s.state("") == "silent" {
				t.Errorf("back: %+v, %s", d, s.state(""))
			}
			s.pause(time.Minute)
			if d := s.direct(); d.Word != path.DirectUnknown || s.state("") == "silent" {
				t.Errorf("idle: %+v, %s", d, s.state(""))
			}
		})
	}
}

// If both paths become silent at once, only the server may be dead, or this host is cut off.
func TestDeadServerIsNoDeadDirectPath(t *testing.T) {
	direct, detour := good(), good()
	s := newSelection(t, map[string]*pathWorth{"": direct, "bob": detour})
	s.offer("bob")
	s.connect()
	s.bulk(20 * time.Second)
	direct.dead, detour.dead = true, true
	for range 60 {
		s.bulk(time.Second)
		if d := s.direct(); d.Word == path.DirectLost || s.state("") == "silent" {
			t.Fatalf("%v: %+v, %s", s.since(), d, s.state(""))
		}
	}
}

// If another connection's direct path works, only the way to one server is dead.
func TestDirectPathToOneServerIsDead(t *testing.T) {
	direct := good()
	s := newSelection(t, map[string]*pathWorth{"": direct, "bob": good()})
	own, other := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddrPort("[2001:db8::2]:80")
	s.tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me"), own}})
	s.offer("bob")
	s.connect()
	s.tell(path.ConnEstablished{Token: 99, Local: netip.AddrPortFrom(own, 1), Remote: other}) // no detour leads there
	s.bulk(10 * time.Second)
	direct.dead = true
	for i := range 40 {
		s.bulk(time.Second)
		s.tell(path.Measured{Samples: []path.Sample{{Token: 99, Local: netip.AddrPortFrom(own, 1), Remote: other, SegsIn: uint64(i + 1), BytesReceived: uint64(i + 1)}}})
		if d := s.direct(); d.Word != path.DirectUp {
			t.Fatalf("%v: %+v", s.since(), d)
		}
	}
	if is := s.state(""); is != "silent" {
		t.Errorf("the dead one is %s", is)
	}
}
