package history

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// scene is an agent with one connection.
type scene struct {
	t      *testing.T
	o      Observer
	now    time.Time
	status api.Status
}

func newScene(t *testing.T, traffic string) *scene {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr("2001:db8::1"), port)
	}
	s := &scene{t: t, now: now, status: api.Status{Since: now, Client: &api.Using{Connections: []api.Connection{{
		Token: "1", Since: now.Add(time.Millisecond), Traffic: traffic, Subflows: []api.Subflow{
			{Kind: "direct", State: api.SubflowUp, Local: at(1), RTT: 20},
			{Kind: "mapped", Waypoint: "bob", State: api.SubflowUp, Local: at(2), RTT: 40},
		}}}}}}
	s.o.Observe(&api.Status{Since: now, Client: &api.Using{}}, now)
	return s
}

// run has the paths carry so many bytes a second, for so many observations of three seconds.
func (s *scene) run(count int, direct, detour uint64) {
	for range count {
		s.now = s.now.Add(observeEvery)
		subs := s.status.Client.Connections[0].Subflows
		subs[0].BytesReceived += 3 * direct
		subs[1].BytesReceived += 3 * detour
		s.status.Client.Counters.Carried = []api.Carried{
			{Kind: "direct", Received: subs[0].BytesReceived}, {Kind: "mapped", Waypoint: "bob", Received: subs[1].BytesReceived},
		}
		s.o.Observe(&s.status, s.now)
	}
}

func (s *scene) want(what string, is, want, tolerance float64) {
	s.t.Helper()
	if math.Abs(is-want) > tolerance {
		s.t.Errorf("%s is %v, want %v", what, is, want)
	}
}

// With two equal paths that share nothing, the direct one would have taken twice as long.
func TestTimeSaved(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(5, 1e6, 0)
	s.run(10, 1e6, 1e6)
	p := s.o.Take()
	s.want("time saved", p.Gained.Saved, 30, 1)
	if g := p.Gained; g.SavedLow > 30 || g.SavedHigh < 30 || g.SavedLow < 20 {
		t.Errorf("the bounds are %v and %v", g.SavedLow, g.SavedHigh)
	}
	s.want("bytes over detours", float64(p.Gained.DetourBytes), 30e6, 1)
	s.want("observed seconds", p.Observed, 45, 0.01)
	if len(p.Paths) != 2 || p.Paths[0].RTT != 20 && p.Paths[1].RTT != 20 {
		t.Errorf("paths are %+v", p.Paths)
	}
	if again := s.o.Take(); len(again.Paths) > 0 {
		t.Errorf("taken twice: %+v", again)
	}
}

// Two paths that share a bottleneck save nothing: the direct one carried as much alone.
func TestSharedBottleneckSavesNothing(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(5, 2e6, 0)
	s.run(10, 1e6, 1e6)
	s.want("time saved", s.o.Take().Gained.Saved, 0, 0.01)
}

// If it is not known what the direct path carries alone, the lower bound says so.
func TestUnknownDirectPathHasNoLowerBound(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(10, 1e6, 1e6)
	if g := s.o.Take().Gained; g.SavedLow != 0 || g.Saved < 25 {
		t.Errorf("saved %+v", g)
	}
}

func TestStalls(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(5, 1e6, 0)
	s.run(2, 1e6, 1e6)
	s.run(4, 0, 2e6)
	s.run(2, 1e6, 1e6)
	s.run(1, 0, 1e6)
	g := s.o.Take().Gained
	s.want("stalls", float64(g.Stalls), 2, 0)
	s.want("time of stalls", g.StallTime, 15, 0.01)
	// Each of 24 MB and 3 MB would have come afterwards, at 1 MB/s, besides what the other intervals saved.
	s.want("time saved", g.Saved, 12+27, 1)
}

// A direct path that was set aside does not stall, and messages and slow transfers save nothing.
func TestNoStall(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(5, 1e6, 1e6)
	s.status.Client.Connections[0].Subflows[0].State = api.SubflowBackup
	s.run(5, 0, 1e6)
	if g := s.o.Take().Gained; g.Stalls != 0 {
		t.Errorf("a backup stalls: %+v", g)
	}
	for _, s := range []*scene{newScene(t, "messages"), newScene(t, api.TrafficBulk)} {
		s.run(5, 1000, 2000)
		if g := s.o.Take().Gained; g.Saved != 0 || g.Stalls != 0 {
			t.Errorf("messages or a slow transfer saved %+v", g)
		}
	}
}

// A host that slept, a clock that was set back and an agent that began anew add nothing that was not observed.
func TestGapsAreNotObserved(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(2, 1e6, 1e6)
	before := s.o.Take()
	s.now = s.now.Add(time.Hour)
	s.run(1, 1e9, 1e9)
	s.now = s.now.Add(-2 * time.Hour)
	s.run(1, 1e9, 1e9)
	s.status.Since = s.now
	s.run(1, 1e9, 1e9)
	if p := s.o.Take(); p.Observed != 0 || len(p.Paths) > 0 || p.Gained != (api.Gained{}) {
		t.Errorf("observed %+v, before %+v", p, before)
	}
	s.run(1, 1e6, 1e6)
	s.want("afterwards, bytes over detours", float64(s.o.Take().Gained.DetourBytes), 3e6, 0)
}
