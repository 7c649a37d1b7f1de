package membership

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/collective/directory"
)

var birth = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// named is a waypoint's verified record.
func named(name string) *directory.Verified {
	return &directory.Verified{Record: directory.Record{
		Name: name, Roles: []string{directory.RoleWaypoint}, Kinds: []string{"in-band"},
		Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.7")}, Port: 45672,
	}}
}

// choices is a directory, the truth about who answers, and a chooser that has to find out.
type choices struct {
	t       *rapid.T
	c       *chooser
	now     time.Time
	members map[string]*directory.Verified
	answers map[string]bool
	up      map[string]bool // sessions, as reported to the chooser
}

func newChoices(t *rapid.T) *choices {
	return &choices{
		t: t, now: birth, members: map[string]*directory.Verified{}, answers: map[string]bool{}, up: map[string]bool{},
		c: newChooser(directory.Client{Name: "me", Want: rapid.IntRange(0, 4).Draw(t, "want")}, []string{"fixed"}),
	}
}

// choose checks the invariants of every choice, and opens sessions with the waypoints that answer.
func (w *choices) choose() time.Time {
	t, want := w.t, w.c.client.Want
	list, next := w.c.choose(maps.Values(w.members), w.now)
	names := map[string]bool{}
	for _, v := range list {
		name := v.Record.Name
		if names[name] || w.members[name] == nil || name == "me" || name == "fixed" {
			t.Fatalf("%s is chosen out of %v", name, slices.Sorted(maps.Keys(w.members)))
		}
		names[name] = true
	}
	candidates := 0
	for name := range w.members {
		if name != "me" && name != "fixed" {
			candidates++
		}
		if w.up[name] && !names[name] {
			t.Fatalf("%s, with whom there is a session, is given up", name)
		}
	}
	if len(list) != min(want, candidates) {
		t.Fatalf("%d of %d candidates are chosen, wanted %d", len(list), candidates, want)
	}
	if !next.IsZero() && !next.After(w.now) {
		t.Fatalf("the next look is %v ago", w.now.Sub(next))
	}
	maps.DeleteFunc(w.up, func(name string, _ bool) bool { return !names[name] })
	for name := range names {
		if w.answers[name] && !w.up[name] {
			w.up[name] = true
			w.c.heard(name, true, w.now)
		}
	}
	return next
}

// pass lets time pass, with a look whenever the chooser wants one.
func (w *choices) pass(d time.Duration) {
	end := w.now.Add(d)
	for {
		next := w.choose()
		if next.IsZero() || next.After(end) {
			w.now = end
			return
		}
		w.now = next
	}
}

func (w *choices) someone(t *rapid.T) string {
	return rapid.SampledFrom([]string{"me", "fixed", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"}).Draw(t, "member")
}

// In all cases: no waypoint with a session is given up, no place stays empty without need, and in the end there
// are as many sessions as wanted, if that many waypoints answer.
func TestChooser(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newChoices(t)
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { w.choose() },
			"joins": func(t *rapid.T) {
				name := w.someone(t)
				if w.members[name] == nil {
					w.members[name], w.answers[name] = named(name), rapid.Bool().Draw(t, "answers")
				}
			},
			"leaves": func(t *rapid.T) {
				name := w.someone(t)
				delete(w.members, name)
				delete(w.up, name)
			},
			"changes": func(t *rapid.T) {
				name := w.someone(t)
				w.answers[name] = !w.answers[name]
				if w.up[name] && !w.answers[name] {
					delete(w.up, name)
					w.c.heard(name, false, w.now)
				}
			},
			"word": func(t *rapid.T) {
				w.c.unreachable = map[string]bool{w.someone(t): true, w.someone(t): true}
			},
			"time": func(t *rapid.T) {
				w.pass(time.Duration(rapid.IntRange(1, 3600).Draw(t, "seconds")) * time.Second)
			},
		})
		w.c.unreachable = map[string]bool{}
		w.pass(2 * longestRest)
		answering := 0
		for name := range w.members {
			if name != "me" && name != "fixed" && w.answers[name] {
				answering++
			}
		}
		if want := min(answering, w.c.client.Want); len(w.up) != want {
			t.Fatalf("%d sessions, wanted %d: chosen %v, answering %v", len(w.up), want, w.c.chosen, w.answers)
		}
	})
}

// A waypoint that does not answer at the addresses in its record is replaced within a minute, and not tried again
// soon.
func TestChooserPassesOverTheSilent(t *testing.T) {
	c := newChooser(directory.Client{Name: "me", Want: 1}, nil)
	members := map[string]*directory.Verified{}
	for i := range 3 {
		v := named(fmt.Sprint("w", i))
		members[v.Record.Name] = v
	}
	choose := func(now time.Time) string {
		list, _ := c.choose(maps.Values(members), now)
		return list[0].Record.Name
	}
	first := choose(birth)
	if again := choose(birth.Add(patience - time.Second)); again != first {
		t.Fatalf("%s took the place of %s at once", again, first)
	}
	second := choose(birth.Add(patience))
	if second == first {
		t.Fatalf("%s kept its place", first)
	}
	c.heard(second, true, birth.Add(patience))
	if later := choose(birth.Add(24 * time.Hour)); later != second {
		t.Errorf("%s, with whom there is a session, gave way to %s", second, later)
	}
	c.unreachable[second] = true // others reach it; this host does not
	if later := choose(birth.Add(25 * time.Hour)); later != second {
		t.Errorf("%s, with whom there is a session, gave way to %s", second, later)
	}
	c.heard(second, false, birth.Add(26*time.Hour))
	if later := choose(birth.Add(26 * time.Hour)); later == second {
		t.Errorf("%s cannot be reached by anybody, and keeps its place", second)
	}
	delete(members, first)
	for name := range members {
		if name != second {
			delete(members, name)
		}
	}
	if only := choose(birth.Add(27 * time.Hour)); only != second {
		t.Errorf("%s is chosen, not the only one there is", only)
	}
}
