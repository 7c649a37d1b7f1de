package path_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Messages leave a path that has become long. They do not return as long as it stays long, although it was the shortest
// when it joined, and they return when it is short again.
func TestMessagesStayAwayFromALongPath(t *testing.T) {
	for _, pause := range []time.Duration{dt, 500 * time.Millisecond, time.Second, 2 * time.Second, 3 * time.Second} {
		t.Run(fmt.Sprint(pause), func(t *testing.T) {
			detour := &pathWorth{trip: 20 * time.Millisecond, rate: 800}
			s := newSelection(t, map[string]*pathWorth{"": {trip: 60 * time.Millisecond, rate: 800}, "bob": detour})
			s.offer("bob")
			s.connect()
			s.exchanges(time.Minute, pause)
			if s.over("bob").backup {
				t.Fatalf("the shorter path does not carry: %v", s.log)
			}
			s.log, detour.trip = nil, 320*time.Millisecond
			s.exchanges(10*time.Minute, pause)
			if n := strings.Count(strings.Join(s.log, ";"), "promote bob"); n > 2 || !s.over("bob").backup {
				t.Errorf("taken %d times: %v", n, s.log)
			}
			s.log, detour.trip = nil, 20*time.Millisecond
			s.exchanges(time.Minute, pause)
			if s.over("bob").backup {
				t.Errorf("a minute after it became short again: %v", s.log)
			}
		})
	}
}

// A path that joined while it had a queue is not taken for a long one when the queue has drained, whether it stands by
// or carries.
func TestMessagesUseAPathWhoseQueueDrained(t *testing.T) {
	for name, c := range map[string]struct {
		detour  time.Duration // at first
		happens []string
	}{
		"stands by": {100 * time.Millisecond, []string{"promote direct", "demote bob"}},
		"carries":   {400 * time.Millisecond, nil},
	} {
		t.Run(name, func(t *testing.T) {
			direct, detour := &pathWorth{trip: 300 * time.Millisecond, rate: 800}, &pathWorth{trip: c.detour, rate: 800}
			s := newSelection(t, map[string]*pathWorth{"": direct, "bob": detour})
			s.offer("bob")
			s.connect()
			s.exchanges(10*time.Second, 500*time.Millisecond)
			if stands := s.over("").backup; stands != (name == "stands by") {
				t.Fatalf("the direct path stands by: %v: %v", stands, s.log)
			}
			s.log, direct.trip, detour.trip = nil, 40*time.Millisecond, 100*time.Millisecond
			s.exchanges(20*time.Second, 500*time.Millisecond)
			s.want("without the queue", c.happens...)
			s.exchanges(10*time.Minute, 500*time.Millisecond)
			s.want("later")
		})
	}
}

// Segments on an idle subflow that may not be the answer to its first probe tell no round trip.
func TestRoundTripsOfAmbiguousAnswers(t *testing.T) {
	for name, disturb := range map[string]func(c *carried, sent time.Time){
		"a lost probe": func(c *carried, _ time.Time) {
			if c.unanswered == 1 {
				c.answers = time.Time{}
			}
		},
		"two segments":         func(c *carried, sent time.Time) { c.answers, c.besides = sent.Add(500*time.Millisecond), 1 },
		"this host sent data":  func(c *carried, sent time.Time) { c.answers, c.lastSent = sent.Add(500*time.Millisecond), sent },
		"data arrived instead": func(c *carried, sent time.Time) { c.answers, c.lastData = sent.Add(500*time.Millisecond), sent },
	} {
		t.Run(name, func(t *testing.T) {
			direct := &pathWorth{trip: 60 * time.Millisecond, rate: 800}
			s := newSelection(t, map[string]*pathWorth{"": direct, "bob": {trip: 100 * time.Millisecond, rate: 800}})
			s.disturb = disturb
			s.offer("bob")
			s.connect()
			s.exchanges(time.Minute, 500*time.Millisecond)
			s.want("at first", "join bob", "demote bob")
			direct.trip = 400 * time.Millisecond
			s.exchanges(3*time.Second, 500*time.Millisecond)
			s.want("a longer direct path", "promote bob", "demote direct")
		})
	}
}
