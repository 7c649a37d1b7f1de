package path_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// knownTo returns the memory of a host. At this time bob lost much, and carol gave bulk traffic much.
func knownTo(at time.Time) path.Memory {
	network := netip.MustParsePrefix("203.0.113.0/24")
	return path.Memory{Addrs: []netip.Addr{ip("me")}, Trails: []path.Trail{
		{Waypoint: "", Network: network, At: at, Trip: 60 * time.Millisecond, Goodput: 8e6, GoodputAt: at, Kind: 2},
		{Waypoint: "bob", Network: network, At: at, Trip: 60 * time.Millisecond, Loss: 0.05, Packets: 1000, Shunned: at.Add(8 * time.Minute), Times: 4, Kind: 2},
		{Waypoint: "carol", Network: network, At: at, Trip: 60 * time.Millisecond, Goodput: 30e6, GoodputAt: at, Kind: 2},
	}}
}

// shares counts the waypoints that 40 connections take.
func shares(s *selection) map[string]int {
	count := make(map[string]int)
	for range 40 {
		s.connect()
		count[s.subflows[1].waypoint]++
	}
	return count
}

// If the clock was set back, measurements from the future decide nothing, and new ones count at once. A waypoint is
// not shunned for longer than intended.
func TestClockJumps(t *testing.T) {
	measured := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		jump            time.Duration
		shunned, trusts bool
	}{
		"none":                     {0, true, true},
		"back by a second":         {-time.Second, false, false},
		"back by half an hour":     {-30 * time.Minute, false, false},
		"back by a day":            {-24 * time.Hour, false, false},
		"back by a year":           {-365 * 24 * time.Hour, false, false},
		"on by half an hour":       {30 * time.Minute, false, true},
		"on by a day":              {24 * time.Hour, false, false},
		"on by a year":             {365 * 24 * time.Hour, false, false},
		"on, while bob is shunned": {5 * time.Minute, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := recalling(t, knownTo(measured), measured, ip("me"))
			s.now = s.now.Add(c.jump)
			s.offer("bob", "carol", "dave")
			count := shares(s)
			if shunned := count["bob"] == 0; !c.trusts && shunned != c.shunned {
				t.Errorf("bob is shunned: %v; %v", shunned, count)
			}
			if trusts := count["carol"] > 30; trusts != c.trusts {
				t.Errorf("carol is trusted: %v; %v", trusts, count)
			}
			for _, x := range s.m.Explain(netip.AddrPortFrom(ip("web"), 80), netip.Addr{}, s.now).Candidates {
				if x.Waypoint == "bob" && x.Until.IsZero() == c.shunned {
					t.Errorf("until %v: %s", x.Until, x.Why())
				}
			}
			s.paths["carol"] = &pathWorth{trip: 40 * time.Millisecond, rate: 300}
			s.paths[""] = &pathWorth{trip: 40 * time.Millisecond, rate: 800}
			s.paths["dave"] = good()
			s.tell(path.DetourWithdrawn{ID: "bob"})
			s.tell(path.DetourWithdrawn{ID: "dave"})
			s.connect()
			s.bulk(20 * time.Second)
			for _, trail := range s.m.Memory().Trails {
				late := trail.At.After(s.now) || trail.GoodputAt.After(s.now)
				if late && (trail.Waypoint == "carol" || trail.Waypoint == "") {
					t.Errorf("%q is still of %v and %v, at %v", trail.Waypoint, trail.At, trail.GoodputAt, s.now)
				}
				if trail.Waypoint == "carol" && !c.trusts && trail.Goodput > 6e6 {
					t.Errorf("carol still gives %.0f", trail.Goodput)
				}
			}
		})
	}
}

// A shun after the clock was set back starts at the shortest time, and doubles as usual.
func TestShunnedAfterClockJump(t *testing.T) {
	measured := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	bad := good()
	bad.loss = 0.05
	s := recalling(t, knownTo(measured), measured, ip("me"))
	s.now = s.now.Add(-24 * time.Hour)
	s.paths["bob"] = bad
	s.offer("bob")
	s.connect()
	s.bulk(30 * time.Second)
	for _, trail := range s.m.Memory().Trails {
		if left := trail.Shunned.Sub(s.now); trail.Waypoint == "bob" && (left < 0 || left > time.Minute || trail.Times != 1) {
			t.Errorf("shunned for %v, %d times", left, trail.Times)
		}
	}
}

// Times that were read from a file are compared by the monotonic clock, like all other times.
func TestRecalledTimesAreMonotonic(t *testing.T) {
	now := time.Now()
	memory := knownTo(now.Add(-time.Minute).Round(0)) // as read from a file
	s := recalling(t, memory, now, ip("me"))
	trails := s.m.Memory().Trails
	if len(trails) != len(memory.Trails) {
		t.Fatalf("%+v", trails)
	}
	for _, trail := range trails {
		for _, at := range []time.Time{trail.At, trail.Shunned, trail.GoodputAt} {
			if !at.IsZero() && !strings.Contains(at.String(), " m=") {
				t.Errorf("%q: %v", trail.Waypoint, at)
			}
		}
	}
}
