package path_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// newReceiver returns a connection that only receives, from a server that obeys the priorities it has heard. At first
// the direct path carries and bob stands by.
func newReceiver(t *testing.T, direct, detour time.Duration, others ...string) *selection {
	t.Helper()
	paths := map[string]*pathWorth{"": {trip: direct, rate: 800}, "bob": {trip: detour, rate: 800}}
	for _, name := range others {
		paths[name] = &pathWorth{trip: detour, rate: 800}
	}
	s := newSelection(t, paths)
	s.stubborn = true
	s.offer("bob")
	s.connect()
	s.offer(others...)
	return s
}

// longestGap streams, and returns the longest time without an arrival.
func (s *selection) longestGap(long, every time.Duration) (longest time.Duration) {
	last, upTo := s.now, s.upTo
	for end := s.now.Add(long); s.now.Before(end); {
		s.stream(dt, every)
		if s.upTo != upTo {
			last, upTo = s.now, s.upTo
		}
		longest = max(longest, s.now.Sub(last))
	}
	return longest
}

// The direct path is down for a while. Then the detour, which carries alone since, drops everything. The connection
// soon goes on over the direct path, whenever that happens and however often the server sends.
func TestReceiverLeavesDetourThatCarriesAlone(t *testing.T) {
	for _, every := range []time.Duration{dt, 3 * dt, 10 * dt, 20 * dt} {
		for _, later := range []time.Duration{500 * time.Millisecond, 2 * time.Second, 4 * time.Second, 9 * time.Second, time.Minute, 20 * time.Minute} {
			t.Run(fmt.Sprintf("every %v, %v later", every, later), func(t *testing.T) {
				s := newReceiver(t, 40*time.Millisecond, 60*time.Millisecond, "carol")
				s.stream(20*time.Second, every)
				s.paths[""].dead = true
				first := s.longestGap(2400*time.Millisecond, every)
				s.paths[""].dead = false
				first = max(first, s.longestGap(later, every))
				carried := s.over("bob") != nil && !s.over("bob").backup
				s.paths["bob"].dead = true
				second := s.longestGap(30*time.Second, every)
				t.Logf("gaps of %v and %v, bob carried: %v; %v", first, second, carried, s.log)
				if most := every + 4*time.Second; first > most || second > most {
					t.Errorf("nothing arrived for %v and %v: %v", first, second, s.log)
				}
				if carried && s.over("bob") != nil {
					t.Errorf("bob swallows everything and keeps its place: %v", s.log)
				}
			})
		}
	}
}

// The same holds for outages at random times. At most one path is down at a time.
func TestReceiverGoesOn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		trip := func(label string) time.Duration {
			return time.Duration(rapid.IntRange(5, 150).Draw(rt, label)) * time.Millisecond
		}
		s := newReceiver(t, trip("direct ms"), trip("detour ms"))
		s.stubborn = true
		every := time.Duration(rapid.IntRange(1, 20).Draw(rt, "every")) * dt
		s.stream(10*time.Second, every)
		for range rapid.IntRange(1, 6).Draw(rt, "outages") {
			down := rapid.SampledFrom([]string{"", "bob"}).Draw(rt, "down")
			if s.over("bob") == nil {
				down = "bob" // it was given up and rests, so only the direct path is left
			}
			s.paths[down].dead = true
			tenths := rapid.IntRange(1, 150).Draw(rt, "tenths of a second")
			if gap := s.longestGap(time.Duration(tenths)*dt, every); gap > every+6*time.Second {
				rt.Fatalf("nothing arrived for %v: %v", gap, s.log)
			}
			s.paths[down].dead = false
			tenths = rapid.IntRange(30, 300).Draw(rt, "tenths of a second between")
			if gap := s.longestGap(time.Duration(tenths)*dt, every); gap > every+6*time.Second {
				rt.Fatalf("nothing arrived for %v: %v", gap, s.log)
			}
		}
	})
}

// A detour that carries alone dies while the server has nothing to send. It ends nevertheless, so that later data
// does not wait.
func TestDetourThatCarriesAloneDiesInAPause(t *testing.T) {
	s := newReceiver(t, 100*time.Millisecond, 40*time.Millisecond)
	s.stream(20*time.Second, 2*dt)
	if s.over("bob").backup || !s.over("").backup {
		t.Fatalf("bob does not carry alone: %v", s.log)
	}
	s.log, s.paths["bob"].dead = nil, true
	s.pause(8 * time.Second)
	s.want("in the pause", "promote direct", "demote bob", "end bob")
	// The waypoint rests for a minute. There is no other, so it is tried earlier.
	s.paths["bob"].dead = false
	s.pause(3 * time.Second)
	s.want("after the outage", "join bob", "demote bob")
}

// If everything is silent, this host may be cut off, so nothing ends.
func TestNothingEndsWhereAllIsSilent(t *testing.T) {
	s := newReceiver(t, 100*time.Millisecond, 40*time.Millisecond)
	s.stream(20*time.Second, 2*dt)
	s.paths["bob"].dead, s.paths[""].dead = true, true
	s.log = nil
	s.stream(time.Minute, 2*dt)
	s.paths["bob"].dead, s.paths[""].dead = false, false
	s.stream(20*time.Second, 2*dt)
	if log := strings.Join(s.log, ";"); strings.Contains(log, "end") {
		t.Errorf("in an outage of this host: %v", s.log)
	}
}

// A server pauses from time to time, on a detour that carries alone and works. The detour is probed, and the direct
// path is hardly ever called up.
func TestPausesOfDetourThatCarriesAlone(t *testing.T) {
	for _, every := range []time.Duration{dt, 2 * dt, 10 * dt, 30 * dt} {
		for _, probes := range []bool{true, false} {
			t.Run(fmt.Sprintf("every %v, probes %v", every, probes), func(t *testing.T) {
				s := newReceiver(t, 100*time.Millisecond, 40*time.Millisecond)
				s.probes = probes
				s.stream(20*time.Second, every)
				s.log = nil
				for s.since() < 20*time.Minute {
					s.stream(time.Duration(1+s.random.IntN(15))*time.Second, every)
					s.pause(time.Duration(5+s.random.IntN(200)) * dt)
				}
				log := strings.Join(s.log, ";")
				if n := strings.Count(log, "promote"); n > 10 || strings.Contains(log, "end") {
					t.Errorf("%d promotions: %v", n, s.log)
				}
			})
		}
	}
}
