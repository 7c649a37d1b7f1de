package known

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestRelieved: if a new flow finds only a crowded link, another host's flow is moved off it, once. That host must hear
// of moves and have an emptier way. It gets the new way when it asks again.
func TestRelieved(t *testing.T) {
	old := Asked{Host: "alice", Key: "a", Ways: [][]int{{0, 1, 9}, {0, 2, 8}}, Wanted: 1, Moves: true}
	fresh := Asked{Host: "bob", Key: "b", Ways: [][]int{{3, 1, 7}}, Wanted: 1, Moves: true}
	settled, narrow := old, old
	settled.Moves, narrow.Ways = false, old.Ways[:1]
	yes, no := func(string) bool { return true }, func(string) bool { return false }
	for name, tc := range map[string]struct {
		old    Asked
		others int // number of flows on the other way
		hears  func(string) bool
		moved  bool
	}{
		"moved":           {old, 0, yes, true},
		"does not hear":   {old, 0, no, false},
		"does not move":   {settled, 0, yes, false},
		"no other way":    {narrow, 0, yes, false},
		"no emptier way":  {old, 3, yes, false},
		"only bob hears":  {old, 0, func(host string) bool { return host == "bob" }, false},
		"only alice does": {old, 0, func(host string) bool { return host == "alice" }, true},
	} {
		s, until := NewScheduler(), start.Add(10*time.Minute)
		ask := func(a Asked, now time.Time) (way int, moved []Moved) {
			way = s.PlaceAll([]Asked{a}, now, until)[0][0]
			return way, s.Relieve([]Asked{a}, tc.hears, now)
		}
		for i := range tc.others {
			place(s, fmt.Sprint(i), [][]int{{2}}, 1, start)
		}
		if way, moved := ask(tc.old, start); way != 0 || len(moved) > 0 {
			t.Fatalf("%s: alone on way %d, moved %v", name, way, moved)
		}
		_, moved := ask(fresh, start.Add(time.Second))
		if want := []Moved{{"alice", "a"}}; tc.moved != slices.Equal(moved, want) || !tc.moved && len(moved) > 0 {
			t.Errorf("%s: moved %v", name, moved)
		}
		if _, more := ask(fresh, start.Add(2*time.Second)); len(more) > 0 {
			t.Errorf("%s: a renewal moves %v", name, more)
		}
		way, _ := ask(tc.old, start.Add(3*time.Second))
		if tc.moved != (way == 1) {
			t.Errorf("%s: asked again, on way %d", name, way)
		}
	}
}

// TestMovesAreFew: for each new flow at most one other is moved, and no flow that was moved a few seconds before.
func TestMovesAreFew(t *testing.T) {
	s, until := NewScheduler(), start.Add(10*time.Minute)
	fill := func(link, flows int) {
		for i := range flows {
			place(s, fmt.Sprint("link ", link, " flow ", i), [][]int{{link}}, 1, start)
		}
	}
	fill(2, 4)
	for i := range 4 { // on link 1
		s.PlaceAll([]Asked{{Key: fmt.Sprint("old ", i), Ways: [][]int{{1}, {2}}, Wanted: 1, Moves: true}}, start, until)
	}
	for i := range 4 {
		s.Release(fmt.Sprint("link 2 flow ", i))
	}
	relieved := func(link int, after time.Duration) int {
		now := start.Add(after)
		asked := []Asked{{Key: fmt.Sprint("new ", after), Ways: [][]int{{link}}, Wanted: 1, Moves: true}}
		s.PlaceAll(asked, now, until)
		return len(s.Relieve(asked, func(string) bool { return true }, now))
	}
	if got := relieved(1, time.Second); got != 1 || s.load[1] != 4 || s.load[2] != 1 {
		t.Errorf("%d flows are moved for one, loads %v", got, s.load)
	}
	fill(2, 8)
	if got := relieved(2, 2*time.Second); got != 0 {
		t.Errorf("%d flows are moved again a second later", got)
	}
	if got := relieved(2, time.Second+stays); got != 1 {
		t.Errorf("%d flows are moved again after %v", got, stays)
	}
}

// TestChanged: each change returns the keys with direct flows on links that do not exist any more.
func TestChanged(t *testing.T) {
	s, until := NewScheduler(), start.Add(10*time.Minute)
	for key, moves := range map[string]bool{"direct": true, "detour": false} {
		s.PlaceAll([]Asked{{Host: "alice", Key: key, Ways: [][]int{{1}, {2}}, Wanted: 2, Moves: moves}}, start, until)
	}
	without := func(gone int) []Moved { return s.Changed(func(link int) bool { return link != gone }) }
	for gone, want := range map[int][]Moved{1: {{"alice", "direct"}}, 2: {{"alice", "direct"}}, 3: nil} {
		if got := without(gone); !slices.Equal(got, want) {
			t.Errorf("without link %d: %v, not %v", gone, got, want)
		}
	}
}
