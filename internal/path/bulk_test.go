package path_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/detour-collective/dcol/internal/path"
)

// unlike returns a selection with bob, who is close and slow, and carol, who is far and fast.
func unlike() map[string]*pathWorth {
	return map[string]*pathWorth{
		"":      {trip: 60 * time.Millisecond, rate: 300},
		"bob":   {trip: 20 * time.Millisecond, rate: 200},
		"carol": {trip: 90 * time.Millisecond, rate: 1600},
		"dave":  {trip: 70 * time.Millisecond, rate: 800},
	}
}

// bulkOver plays one bulk connection for this time, with a detour through this waypoint only.
func (s *selection) bulkOver(waypoint string, long time.Duration) {
	s.offer(waypoint)
	s.connect()
	s.bulk(long)
	s.tell(path.DetourWithdrawn{ID: path.DetourID(waypoint)})
}

// A connection that is likely to be bulk takes the detour that gave such connections most. One with messages takes
// the detour with the shortest round trip, although both go to the same network.
func TestBulkTakesWhatGaveMost(t *testing.T) {
	s := newSelectionWith(t, unlike(), func(c *path.Config) { c.MessagePorts = []uint16{81} })
	s.bulkOver("bob", 20*time.Second)
	s.bulkOver("carol", 20*time.Second)
	s.offer("bob", "carol")
	for range 20 {
		s.connect()
		if s.over("carol") == nil {
			t.Fatalf("bulk: %v", s.log)
		}
	}
	if why := s.why("carol"); !strings.Contains(why, "one more bulk connection may expect ") || !strings.Contains(why, " of bob") {
		t.Errorf("why: %q", why)
	}
	s.tell(path.ConnClosed{Token: s.token})
	s.token++
	local, remote := netip.AddrPortFrom(ip("me"), 40000), netip.AddrPortFrom(ip("web"), 81)
	s.subflows = []*carried{{local: local, remote: remote, lastData: s.now, lastAnswer: s.now}}
	s.tell(path.ConnEstablished{Token: s.token, Local: local, Remote: remote})
	if s.over("bob") == nil {
		t.Errorf("messages: %v", s.log)
	}
}

// A waypoint that was not measured comes after one that gave more than the direct path, and before one that gave
// less. Some connections try it nevertheless.
func TestBulkOverTheUnknown(t *testing.T) {
	takes := func(known string) (unknown int) {
		s := newSelectionWith(t, unlike(), func(c *path.Config) { c.BulkPorts = []uint16{80} })
		s.bulkOver(known, 20*time.Second)
		s.offer(known, "dave")
		for range 640 {
			s.connect()
			if s.over("dave") != nil {
				unknown++
			}
		}
		return unknown
	}
	if n := takes("carol"); n < 10 || n > 100 {
		t.Errorf("of 640 connections %d leave the good one", n)
	}
	if n := takes("bob"); n < 200 {
		t.Errorf("of 640 connections only %d leave the poor one", n)
	}
}

// A bulk connection exchanges its detour for one that gave others much more, and then keeps that.
func TestPoorerDetourIsExchangedInBulk(t *testing.T) {
	s := newSelection(t, unlike())
	s.bulkOver("carol", 20*time.Second)
	s.offer("bob")
	s.connect()
	s.bulk(20 * time.Second)
	s.log = nil
	s.offer("carol")
	s.bulk(9 * time.Second)
	s.want("at first")
	s.bulk(51 * time.Second)
	if s.over("carol") == nil || s.over("bob") != nil {
		t.Fatalf("after a minute: %v", s.log)
	}
	s.log = nil
	s.bulk(10 * time.Minute)
	s.want("afterwards")
}

// The next Manager knows what bulk traffic got, and uses that for an hour.
func TestGoodputIsRemembered(t *testing.T) {
	first := newSelection(t, unlike())
	first.bulkOver("bob", 20*time.Second)
	first.bulkOver("carol", 20*time.Second)
	memory := first.m.Memory()
	for _, trail := range memory.Trails {
		got, rate := trail.Goodput, 8*1400*first.paths[trail.Waypoint].rate
		if got < 0.8*rate || got > 1.2*rate || trail.Packets == 0 {
			t.Errorf("%q: %.0f bit/s, %d packets", trail.Waypoint, got, trail.Packets)
		}
	}
	for wait, knows := range map[time.Duration]bool{time.Minute: true, 2 * time.Hour: false} {
		s := recalling(t, memory, first.now.Add(wait), ip("me"))
		carols := 0
		s.offer("bob", "carol")
		for range 20 {
			s.connect()
			if s.over("carol") != nil {
				carols++
			}
		}
		if (carols == 20) != knows {
			t.Errorf("after %v, %d of 20 connections take the fast one", wait, carols)
		}
		if wait == time.Minute {
			if diff := cmp.Diff(memory.Trails, s.m.Memory().Trails, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
				t.Error(diff)
			}
		}
	}
}

// A loss that was measured over few packets counts little.
func TestLossInFewPackets(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	trail := func(waypoint string, packets uint64) path.Trail {
		return path.Trail{
			Waypoint: waypoint, Network: netip.MustParsePrefix("203.0.113.0/24"), At: now, Trip: 20 * time.Millisecond, Loss: 0.1, Packets: packets,
		}
	}
	s := recalling(t, path.Memory{Addrs: []netip.Addr{ip("me")}, Trails: []path.Trail{trail("bob", 1000), trail("carol", 10)}}, now, ip("me"))
	s.offer("bob", "carol")
	for range 20 {
		s.connect()
		s.want("a connection", "join carol")
	}
}
