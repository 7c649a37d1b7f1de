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

// take returns what was observed, also of what goes on.
func (s *scene) take() api.Period {
	s.o.Settle()
	return s.o.Take()
}

// end ends the connection so many seconds after the last state.
func (s *scene) end(after float64) {
	u := s.status.Client
	u.Ended = []api.Ended{{Token: "2", At: s.now}, {Token: "1", At: s.now.Add(time.Duration(after * float64(time.Second)))}}
	u.Connections = nil
	s.now = s.now.Add(observeEvery)
	s.o.Observe(&s.status, s.now)
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
	p := s.take()
	s.want("time saved", p.Gained.Saved, 30, 1)
	if g := p.Gained; g.SavedLow > 30 || g.SavedHigh < 30 || g.SavedLow < 20 {
		t.Errorf("the bounds are %v and %v", g.SavedLow, g.SavedHigh)
	}
	s.want("bytes over detours", float64(p.Gained.DetourBytes), 30e6, 1)
	s.want("observed seconds", p.Observed, 45, 0.01)
	if len(p.Paths) != 2 || p.Paths[0].RTT != 20 && p.Paths[1].RTT != 20 {
		t.Errorf("paths are %+v", p.Paths)
	}
	if again := s.take(); len(again.Paths) > 0 {
		t.Errorf("taken twice: %+v", again)
	}
}

// Two paths that share a bottleneck save nothing: the direct one carried as much alone.
func TestSharedBottleneckSavesNothing(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(5, 2e6, 0)
	s.run(10, 1e6, 1e6)
	s.want("time saved", s.take().Gained.Saved, 0, 0.01)
}

// The same if the direct path carries alone only afterwards, because the detours were found to add nothing.
func TestSharedBottleneckIsFoundOut(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(3, 1e6, 1e6)
	s.run(5, 2e6, 0)
	if g := s.take().Gained; g.Saved > 0.01 || g.SavedLow > 0.01 || g.SavedHigh > 2 {
		t.Errorf("saved %+v", g)
	}
}

// If it is not known what the direct path carries alone, the lower bound says so.
func TestUnknownDirectPathHasNoLowerBound(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(10, 1e6, 1e6)
	if g := s.take().Gained; g.SavedLow != 0 || g.Saved < 25 {
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
	g := s.take().Gained
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
	if g := s.take().Gained; g.Stalls != 0 {
		t.Errorf("a backup stalls: %+v", g)
	}
	for _, s := range []*scene{newScene(t, "messages"), newScene(t, api.TrafficBulk)} {
		s.run(5, 1000, 2000)
		if g := s.take().Gained; g.Saved != 0 || g.Stalls != 0 {
			t.Errorf("messages or a slow transfer saved %+v", g)
		}
	}
}

// A host that slept, a clock that was set back and an agent that began anew add nothing that was not observed.
func TestGapsAreNotObserved(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(2, 1e6, 1e6)
	before := s.take()
	s.now = s.now.Add(time.Hour)
	s.run(1, 1e9, 1e9)
	s.now = s.now.Add(-2 * time.Hour)
	s.run(1, 1e9, 1e9)
	s.status.Since = s.now
	s.run(1, 1e9, 1e9)
	if p := s.take(); p.Observed != 0 || len(p.Paths) > 0 || p.Gained != (api.Gained{}) {
		t.Errorf("observed %+v, before %+v", p, before)
	}
	s.run(1, 1e6, 1e6)
	s.want("afterwards, bytes over detours", float64(s.take().Gained.DetourBytes), 3e6, 0)
}

// The last seconds of a transfer count, although its counters end with it.
func TestEndOfTransfer(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(4, 1e6, 1e6)
	s.end(2)
	s.want("time saved in 14 s", s.o.Take().Gained.Saved, 14, 0.01)
	s = newScene(t, api.TrafficBulk)
	s.run(4, 1e6, 1e6)
	s.run(1, 0, 0)
	s.end(2)
	s.want("time saved in 12 s before a pause", s.o.Take().Gained.Saved, 12, 0.01)
}

// A transfer counts from its beginning, also while it is not known to be one; messages do not count.
func TestTransferFromItsBeginning(t *testing.T) {
	for traffic, want := range map[string]float64{api.TrafficBulk: 15, "messages": 0, api.TrafficShort: 0} {
		s := newScene(t, api.TrafficShort)
		s.run(2, 1e6, 1e6)
		s.status.Client.Connections[0].Traffic = traffic
		s.run(3, 1e6, 1e6)
		s.want("time saved as "+traffic, s.take().Gained.Saved, want, 0.01)
	}
}

// Ups and downs of the direct path's rate are no gain.
func TestUnsteadyDirectPath(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	for range 4 {
		s.run(1, 400_000, 1_600_000)
		s.run(1, 1_600_000, 400_000)
	}
	s.want("time saved in 24 s", s.take().Gained.Saved, 24, 1.5)
}

// A subflow whose counters cannot be read for a moment carries nothing anew.
func TestCountersMissingOnce(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(2, 1e6, 1e6)
	subs := s.status.Client.Connections[0].Subflows
	is := subs[1]
	subs[1].BytesReceived = 0
	s.now = s.now.Add(observeEvery)
	subs[0].BytesReceived += 3e6
	s.o.Observe(&s.status, s.now)
	subs[1] = is
	s.run(2, 1e6, 1e6)
	s.want("time saved", s.take().Gained.Saved, 12, 0.01)
}

// A connection on which nothing had moved at the first look counts from its beginning. One that was idle for longer does not.
func TestConnectionThatIsSeenLate(t *testing.T) {
	for looks, want := range map[int]float64{1: 12, 2: 6} {
		s := newScene(t, api.TrafficBulk)
		conns := s.status.Client.Connections
		s.status.Client.Connections = nil
		for range looks {
			s.now = s.now.Add(observeEvery)
			conns[0].Subflows[0].BytesReceived += 3e6
			conns[0].Subflows[1].BytesReceived += 3e6
			s.o.Observe(&s.status, s.now)
		}
		s.status.Client.Connections = conns
		s.run(3, 1e6, 1e6)
		s.want("time saved", s.take().Gained.Saved, want, 0.01)
	}
}
