package path_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// The first messages of a connection do not go over a detour that is much longer than the direct path, although it is not known
// yet that they are messages. Over a detour that is about as long, or beside bulk traffic, they may.
func TestFirstMessagesAvoidFarDetours(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		detour, every time.Duration
		uses          bool
	}{
		"far":             {130 * ms, 20 * ms, false},
		"very far":        {690 * ms, 20 * ms, false},
		"rare messages":   {130 * ms, 50 * ms, false},
		"as long":         {32 * ms, 20 * ms, true},
		"far, much moves": {130 * ms, ms, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := beginStream(t, false, lines(30*ms, c.detour), nil, "bob")
			s.every = c.every
			s.run(3 * c.detour)
			detour := s.over("bob")
			if detour == nil || s.now.Before(detour.full) {
				t.Fatal("the detour is not up")
			}
			if used := detour.out > 0; used != c.uses {
				t.Errorf("%d messages went over the detour: %v", detour.out, s.log)
			}
			s.run(3 * time.Second)
			if !c.uses && detour.out > 0 {
				t.Errorf("%d messages went over the detour later: %v", detour.out, s.log)
			}
		})
	}
}

// With a detour that is much shorter than the direct path, the first messages do not go over a second one that is much longer
// than the first, although it is shorter than the direct path.
func TestFirstMessagesAvoidTheLongerDetour(t *testing.T) {
	const ms = time.Millisecond
	s := beginStream(t, false, map[string]*streamLine{"": {trip: 90 * ms}, "bob": {trip: 18 * ms}, "carol": {trip: 44 * ms}}, nil, "bob", "carol")
	s.run(400 * ms)
	if carol := s.over("carol"); carol == nil || s.now.Before(carol.full) {
		t.Fatal("the longer detour is not up")
	} else if carol.out > 0 {
		t.Errorf("%d messages went over the longer detour: %v", carol.out, s.log)
	}
	if bob := s.over("bob"); bob.out == 0 {
		t.Errorf("no message went over the shorter detour: %v", s.log)
	}
}

// A far detour carries once it shows that the traffic is bulk, which it did not at first.
func TestFarDetourCarriesBulkThatBeganSlowly(t *testing.T) {
	s := beginStream(t, false, lines(30*time.Millisecond, 130*time.Millisecond), nil, "bob")
	s.run(400 * time.Millisecond)
	if s.happened("demote bob") < 0 {
		t.Fatal("the detour carries")
	}
	s.every = time.Millisecond
	s.run(time.Second)
	if detour := s.over("bob"); detour.backup {
		t.Errorf("the detour does not carry: %v", fmt.Sprint(s.log))
	}
}

// A connection without a slot is not measured, so a detour that became a backup would stay that even if much moves.
func TestFarDetourOfUnmeasuredConnectionCarries(t *testing.T) {
	s := beginStream(t, false, lines(30*time.Millisecond, 130*time.Millisecond), nil, "bob")
	s.run(10 * time.Millisecond)
	s.tell(path.ConnEstablished{Token: 2, Local: netip.AddrPortFrom(ip("me"), 39000), Remote: netip.AddrPortFrom(ip("web"), 80)})
	s.tell(path.SubflowEstablished{Token: 2, LocalID: 1, Local: netip.AddrPortFrom(ip("me"), 39001), Remote: netip.AddrPortFrom(ip("bob"), 80)})
	s.tell(path.Measured{Samples: []path.Sample{{Token: 2, Local: netip.AddrPortFrom(ip("me"), 39000), Remote: netip.AddrPortFrom(ip("web"), 80), BytesReceived: 1000}}})
	s.run(190 * time.Millisecond)
	for range s.m.Watched(s.now, 1) {
	}
	if state := s.m.Snapshot(s.now).Sampling; state.Active != 2 || state.Measured != 1 {
		t.Fatalf("sampling: %+v", state)
	}
	s.run(500 * time.Millisecond)
	if detour := s.over("bob"); detour.backup {
		t.Errorf("the detour does not carry: %v", s.log)
	}
}

// The kernel has closed a young detour, and its event is on the way. The detour is asked for once, although each answer leads
// to another step.
func TestYoungDetourIsAskedForOnce(t *testing.T) {
	s := beginStream(t, false, lines(30*time.Millisecond, 130*time.Millisecond), nil, "bob")
	s.run(140 * time.Millisecond)
	s.tell(path.Measured{Complete: true})
	bob := s.over("bob")
	s.now = bob.full.Add(10 * time.Millisecond)
	asked := 0
	for pending := []path.Event{path.Tick{}}; len(pending) > 0 && asked < 10; pending = pending[1:] {
		for _, a := range s.m.Handle(pending[0], s.now) {
			if a, ok := a.(path.Measure); ok && a.Local == bob.local {
				asked++
				pending = append(pending, path.SubflowMissing{Token: 1, Local: a.Local, Remote: a.Remote})
			}
		}
	}
	if asked != 1 {
		t.Errorf("asked for %d times", asked)
	}
}
