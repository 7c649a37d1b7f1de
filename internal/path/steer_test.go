package path_test

import (
	"strings"
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

// A connection keeps its detour if the join through the wanted waypoint fails, instead of giving the place to some other.
func TestWantedWaypointFails(t *testing.T) {
	fails := func(how *pathWorth) *selection {
		s := newSelection(t, map[string]*pathWorth{"": good(), "bob": good(), "carol": how, "dave": good()})
		s.offer("bob")
		s.connect()
		s.messages(5*time.Second, 100*time.Millisecond)
		s.offer("carol", "dave")
		s.tell(path.Steered{Steering: path.Steering{Use: []string{"carol"}}})
		s.messages(time.Minute, 100*time.Millisecond)
		if log := strings.Join(s.log, "\n"); !strings.Contains(log, "ask carol") || s.over("bob") == nil || s.over("dave") != nil {
			t.Errorf("carol is wanted, and fails: %v", s.log)
		}
		return s
	}
	fails(&pathWorth{refuses: true})
	s := fails(&pathWorth{deaf: true})
	s.paths["carol"] = good()
	s.pause(5 * time.Minute)
	if s.over("carol") == nil || s.over("bob") != nil {
		t.Errorf("carol answers again: %v", s.log)
	}
}

// Only one detour gives its place to a wanted waypoint.
func TestWantedWaypointTakesOnePlace(t *testing.T) {
	s := newSelectionWith(t, map[string]*pathWorth{"": good(), "bob": good(), "dave": good(), "eve": good(), "carol": good()}, func(c *path.Config) {
		c.Policy = policy.Detours{Subflows: 3}
	})
	s.offer("bob", "dave")
	s.connect()
	s.messages(5*time.Second, 100*time.Millisecond)
	s.offer("carol", "eve")
	s.log = nil
	s.tell(path.Steered{Steering: path.Steering{Use: []string{"carol"}}})
	s.messages(30*time.Second, 100*time.Millisecond)
	if s.over("carol") == nil || (s.over("bob") == nil) == (s.over("dave") == nil) || s.over("eve") != nil {
		t.Errorf("carol is wanted: %v", s.log)
	}
}

// If another detour leaves, the wanted waypoint takes its place, and no second one is exchanged.
func TestWantedWaypointTakesPlaceThatBecomesFree(t *testing.T) {
	f := newWide(t, func(c *path.Config) { c.Policy = policy.Detours{Subflows: 3} })
	f.limit = 2
	f.offer("bob", "dave")
	d := f.connect(100e3)
	f.run(5 * time.Second)
	f.offer("carol", "eve")
	f.run(time.Second)
	f.tell(path.Steered{Steering: path.Steering{Use: []string{"carol"}, Avoid: []string{"bob"}}})
	f.run(10 * time.Second)
	if d.over("carol") == nil || d.over("bob") != nil || strings.Contains(strings.Join(d.log, "\n"), "end dave") {
		t.Errorf("carol is wanted, and bob is not: %v", d.log)
	}
}

// Connections take a wanted waypoint that is loaded, or not on offer yet, when they can.
func TestWantedWaypointComesLater(t *testing.T) {
	f := many(t, 5)
	f.tell(path.WaypointLoaded{Waypoint: "carol", Addr: addrOf("carol"), Until: f.now.Add(10 * time.Second)})
	f.tell(path.Steered{Steering: path.Steering{Use: []string{"carol", "dave"}}})
	f.run(9 * time.Second)
	if n := len(f.through("carol")); n > 0 {
		t.Errorf("%d connections use a loaded waypoint", n)
	}
	f.run(4 * time.Second)
	if n := len(f.through("carol")); n != 5 {
		t.Errorf("%d of 5 connections use the waypoint after its load", n)
	}
	f.tell(path.Steered{Steering: path.Steering{Use: []string{"dave"}}})
	f.run(5 * time.Second)
	f.offer("dave")
	f.run(3 * time.Second)
	if n := len(f.through("dave")); n != 5 {
		t.Errorf("%d of 5 connections use the waypoint that was offered last", n)
	}
}

// The changes of many connections are spread, so that the waypoint accepts them. Connections that are joining then follow, too.
func TestManyFollowSteering(t *testing.T) {
	f := many(t, 100)
	for range 5 {
		f.connect(100e3)
	}
	f.tell(path.Steered{Steering: path.Steering{Use: []string{"carol"}}})
	before := 0
	for range 6 {
		f.run(time.Second)
		uses := len(f.through("carol"))
		if uses-before > 40 {
			t.Errorf("%d connections follow in a second", uses-before)
		}
		before = uses
	}
	if before != 105 {
		t.Errorf("%d of 105 connections follow", before)
	}
}

// many returns this number of connections through bob. Carol is on offer, too.
func many(t *testing.T, n int) *fluid {
	t.Helper()
	f := newWide(t, nil)
	f.offer("bob")
	for range n {
		f.connect(100e3)
	}
	f.run(time.Second)
	f.offer("carol")
	f.run(time.Second)
	return f
}

// newWide returns a host whose paths are never full.
func newWide(t *testing.T, change func(*path.Config)) *fluid {
	t.Helper()
	wide := func() *way { return wayOf(40*time.Millisecond, &link{rate: 100e6, buffer: 100 * time.Millisecond}) }
	return newFluid(t, 1, map[string]*way{"": wide(), "bob": wide(), "carol": wide(), "dave": wide(), "eve": wide()}, change)
}

// through returns the connections that have a subflow through a waypoint.
func (f *fluid) through(waypoint string) (list []*transfer) {
	for _, d := range f.flows {
		if d.over(waypoint) != nil {
			list = append(list, d)
		}
	}
	return list
}
