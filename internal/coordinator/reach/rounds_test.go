package reach

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/enrol"
)

// scene is a collective whose members answer as a test sets it.
type scene struct {
	*rounds
	members []string
	now     time.Time
	ids     int
}

var begin = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func newScene(members int) *scene {
	s := &scene{rounds: newRounds(rand.IntN), now: begin}
	for i := range members {
		s.members = append(s.members, fmt.Sprintf("m%02d", i))
	}
	return s
}

func (s *scene) watch(names ...string) {
	var all []waypoint
	for _, n := range names {
		all = append(all, waypoint{n, []netip.Addr{netip.MustParseAddr("192.0.2.1")}, 1, false})
	}
	s.follow(all, s.now)
}

// turn lets all rounds that are due take place.
func (s *scene) turn(answer func(from, about string) (reachable, answers bool)) (asked []order, changed bool) {
	s.now = s.now.Add(checkSoon)
	asked = s.next(s.members, s.now, func() string { s.ids++; return fmt.Sprint(s.ids) })
	for _, o := range asked {
		for _, from := range o.to {
			if yes, answers := answer(from, o.Name); answers {
				s.answered(from, enrol.Checked{ID: o.ID, Reachable: yes, Why: "no"})
			}
		}
	}
	s.now = s.now.Add(roundWithin)
	return asked, s.close(s.now)
}

func all(yes bool) func(string, string) (bool, bool) {
	return func(string, string) (bool, bool) { return yes, true }
}

func TestReachNeedsTwoRounds(t *testing.T) {
	s := newScene(20)
	s.watch("m00")
	first, changed := s.turn(all(false))
	if len(first) != 1 || len(first[0].to) != checkers || slices.Contains(first[0].to, "m00") {
		t.Fatalf("asked %+v", first)
	}
	if changed || len(s.unreachable()) > 0 {
		t.Error("one round is enough")
	}
	second, changed := s.turn(all(false))
	if !changed || !slices.Equal(s.unreachable(), []string{"m00"}) {
		t.Errorf("after two rounds: %v", s.unreachable())
	}
	for _, m := range second[0].to {
		if slices.Contains(first[0].to, m) {
			t.Errorf("%s was asked twice, and there are others", m)
		}
	}
	s.now = s.now.Add(checkMissed)
	if _, changed := s.turn(all(true)); !changed || len(s.unreachable()) > 0 {
		t.Error("it is not forgiven")
	}
}

// A waypoint is untried until there is a verdict, and again when its addresses are others.
func TestUntried(t *testing.T) {
	s := newScene(20)
	s.watch("m00", "m01", "m02")
	untried := func(when string, want ...string) {
		t.Helper()
		if got := s.untried(); !slices.Equal(got, want) {
			t.Errorf("%s: %q are untried, want %q", when, got, want)
		}
	}
	untried("before anybody has tried", "m00", "m01", "m02")
	onlyM01 := func(_, about string) (bool, bool) { return about == "m01", about != "m02" }
	s.turn(onlyM01)
	untried("after a round that says no of one, and nothing of another", "m00", "m02")
	s.turn(onlyM01)
	untried("after the second round", "m02")
	s.follow([]waypoint{{"m01", []netip.Addr{netip.MustParseAddr("192.0.2.2")}, 1, false}}, s.now)
	untried("at another address", "m01")
}

// A member that does not answer counts neither way, and members that are probably connected are asked first.
func TestReachWithSilentMembers(t *testing.T) {
	s := newScene(20)
	s.heard("m07", s.now)
	s.watch("m00")
	for range 5 {
		asked, changed := s.turn(func(string, string) (bool, bool) { return false, false })
		if changed || len(s.unreachable()) > 0 {
			t.Fatal("silence counts")
		}
		if len(asked) > 0 && !slices.Contains(asked[0].to, "m07") {
			t.Errorf("asked %q", asked[0].to)
		}
		s.now = s.now.Add(checkAgain)
	}
	if _, known := s.of("m00"); known {
		t.Error("something is known of it")
	}
}

// A waypoint waits until a member can try it, but not for longer.
func TestReachWaitsForSomebody(t *testing.T) {
	s := newScene(1)
	s.watch("m00")
	if asked, _ := s.turn(all(true)); len(asked) > 0 {
		t.Fatalf("asked %+v", asked)
	}
	s.members = append(s.members, "m01")
	if asked := s.next(s.members, s.now, func() string { return "first" }); len(asked) != 1 || !slices.Equal(asked[0].to, []string{"m01"}) {
		t.Errorf("asked %+v", asked)
	}
}

func TestReachTakesAnswersOnce(t *testing.T) {
	s := newScene(3)
	s.watch("m00")
	asked := s.next(s.members, s.now, func() string { return "id" })
	for range 5 {
		s.answered("m01", enrol.Checked{ID: "id"})
		s.answered("stranger", enrol.Checked{ID: "id"})
		s.answered("m00", enrol.Checked{ID: "id", Reachable: true})
		s.answered("m02", enrol.Checked{ID: "other", Reachable: true})
	}
	r := s.open["id"]
	if len(asked) != 1 || len(r.no) != 1 || len(r.yes) != 0 {
		t.Errorf("yes: %q, no: %q", r.yes, r.no)
	}
}

func TestReachForgetsOldAddresses(t *testing.T) {
	s := newScene(9)
	s.watch("m00")
	s.turn(all(false))
	s.turn(all(false))
	s.follow([]waypoint{{"m00", []netip.Addr{netip.MustParseAddr("192.0.2.2")}, 1, false}}, s.now)
	if len(s.unreachable()) > 0 {
		t.Error("another address is not to be reached")
	}
	if asked, _ := s.turn(all(true)); len(asked) != 1 {
		t.Error("it is not tried at once")
	}
	s.follow(nil, s.now)
	if _, known := s.of("m00"); known {
		t.Error("who is gone is known")
	}
}

// A minority of liars changes no result.
func TestReachWithLiars(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newScene(12)
		s.watch("m00", "m01")
		for range 12 {
			s.turn(func(from, about string) (bool, bool) {
				lie := from == "m11" // of four that are asked, one at most lies
				return (about == "m00") != lie, true
			})
			s.now = s.now.Add(time.Duration(rapid.IntRange(0, 3600).Draw(t, "seconds")) * time.Second)
		}
		if got := s.unreachable(); !slices.Equal(got, []string{"m01"}) {
			t.Fatalf("cannot be reached: %q", got)
		}
	})
}

func TestReachIsBounded(t *testing.T) {
	s := newScene(200)
	s.watch(s.members...)
	if n := len(s.next(s.members, s.now, func() string { s.ids++; return fmt.Sprint(s.ids) })); n != maxRounds {
		t.Errorf("%d rounds at once", n)
	}
}

// Among very many members, those asked are connected, several, and different ones the second time. Where few are
// known to be connected, those are found too.
func TestReachAmongMany(t *testing.T) {
	for _, spoken := range []int{5, 5000} {
		s := newScene(5000)
		s.watch("m00")
		s.now = s.now.Add(checkSoon)
		for _, m := range s.members[:spoken] {
			s.heard(m, s.now)
		}
		first, _ := s.turn(all(false))
		second, _ := s.turn(all(false))
		for i, o := range slices.Concat(first, second) {
			asked := slices.Compact(slices.Sorted(slices.Values(o.to)))
			if len(asked) != checkers || slices.Contains(asked, "m00") {
				t.Fatalf("%d spoke: round %d asks %v", spoken, i+1, o.to)
			}
			if i == 0 && slices.ContainsFunc(asked, func(m string) bool { return !slices.Contains(s.members[:spoken], m) }) {
				t.Errorf("%d spoke: %v are asked, of whom nothing was heard", spoken, asked)
			}
		}
		if spoken > 5 && slices.ContainsFunc(second[0].to, func(m string) bool { return slices.Contains(first[0].to, m) }) {
			t.Errorf("asks %v after %v", second[0].to, first[0].to)
		}
	}
}
