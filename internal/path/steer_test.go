package path_test

import (
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// An open connection exchanges a detour for one through the waypoint that the operator wants, whatever its traffic is.
func TestWantedWaypointTakesPlace(t *testing.T) {
	for name, pass := range map[string]func(*selection, time.Duration){
		"bulk":     (*selection).bulk,
		"messages": func(s *selection, long time.Duration) { s.messages(long, 100*time.Millisecond) },
		"nothing":  (*selection).pause,
	} {
		t.Run(name, func(t *testing.T) {
			s := newSelection(t, map[string]*pathWorth{"": good(), "bob": good(), "carol": good()})
			s.offer("bob")
			s.connect()
			pass(s, 10*time.Second)
			s.offer("carol")
			for _, wanted := range []string{"carol", "bob"} {
				s.tell(path.Steered{Steering: path.Steering{Use: []string{wanted}}})
				pass(s, 5*time.Second)
				if s.over(wanted) == nil || len(s.subflows) != 2 {
					t.Errorf("%s is wanted: %d subflows: %v", wanted, len(s.subflows), s.log)
				}
			}
		})
	}
}

// A connection keeps its detours if the wanted waypoint has none, or if it uses it already.
func TestWantedWaypointWithoutDetour(t *testing.T) {
	for name, wanted := range map[string]string{"it offers none": "dave", "it is used": "bob"} {
		t.Run(name, func(t *testing.T) {
			s := newSelection(t, map[string]*pathWorth{"": good(), "bob": good()})
			s.offer("bob")
			s.connect()
			s.messages(5*time.Second, 100*time.Millisecond)
			s.log = nil
			s.tell(path.Steered{Steering: path.Steering{Use: []string{wanted}}})
			s.messages(time.Minute, 100*time.Millisecond)
			s.want("afterwards")
		})
	}
}

// A connection that has a free place takes the wanted waypoint in addition.
func TestWantedWaypointTakesFreePlace(t *testing.T) {
	s := newSelectionWith(t, map[string]*pathWorth{"": good(), "bob": good(), "carol": good()}, func(c *path.Config) {
		c.Policy = policy.Detours{Subflows: 3}
	})
	s.tell(path.Steered{Steering: path.Steering{Avoid: []string{"carol"}}})
	s.offer("bob", "carol")
	s.connect()
	s.messages(5*time.Second, 100*time.Millisecond)
	s.log = nil
	s.tell(path.Steered{Steering: path.Steering{Use: []string{"carol"}}})
	s.messages(5*time.Second, 100*time.Millisecond)
	s.want("carol is wanted", "join carol as backup")
}
