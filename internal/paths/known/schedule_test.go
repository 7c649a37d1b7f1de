package known

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Unix(1000, 0)

// place places flows for a lease of ten minutes.
func place(s *Scheduler, key string, ways [][]int, wanted int, now time.Time) []int {
	return s.Place(key, ways, wanted, now, now.Add(10*time.Minute))
}

// TestElephantsOnLeastUsedLinks: each flow takes the way whose own links have the fewest flows, although all ways share
// one link.
func TestElephantsOnLeastUsedLinks(t *testing.T) {
	s := NewScheduler()
	ways := [][]int{{0, 1}, {0, 2}, {0, 3}, {0, 4}}
	var used []int
	for i := range 8 {
		used = append(used, place(s, fmt.Sprint(i), ways, 1, start)...)
	}
	slices.Sort(used)
	if !slices.Equal(used, []int{0, 0, 1, 1, 2, 2, 3, 3}) {
		t.Errorf("ways %v", used)
	}
	if got := place(s, "several", ways, 9, start); len(got) != 4 {
		t.Errorf("of four ways: %v", got)
	}
	s.Release("3")
	if got := place(s, "next", ways, 1, start); !slices.Equal(got, []int{3}) {
		t.Errorf("after a release: %v", got)
	}
}

// TestPlacesStay: a host that asks again keeps its ways, even if they are listed in another order. It gets another way
// for one that does not exist any more.
func TestPlacesStay(t *testing.T) {
	s := NewScheduler()
	place(s, "other", [][]int{{1}}, 1, start)
	first := place(s, "a", [][]int{{1}, {2}, {3}}, 2, start)
	if !slices.Equal(first, []int{1, 2}) {
		t.Fatal(first)
	}
	place(s, "full", [][]int{{3}}, 1, start)
	if got := place(s, "a", [][]int{{3}, {2}, {1}}, 2, start); !slices.Equal(got, []int{1, 0}) {
		t.Errorf("asked again: %v", got)
	}
	if got := place(s, "a", [][]int{{4}, {3}}, 2, start); !slices.Equal(got, []int{1, 0}) {
		t.Errorf("one is gone: %v", got)
	}
}

// TestPlacedTogether: placed one after the other, the first flow would take the way that the second needs. An older
// flow stays, and counts.
func TestPlacedTogether(t *testing.T) {
	first, second := Asked{Key: "a", Ways: [][]int{{1}, {2}}, Wanted: 1}, Asked{Key: "b", Ways: [][]int{{1}}, Wanted: 1}
	s := NewScheduler()
	if got := s.PlaceAll([]Asked{first, second}, start, start.Add(time.Minute)); got[0][0] != 1 || got[1][0] != 0 {
		t.Errorf("together: %v", got)
	}
	if !slices.Equal(s.leases["a"].ways[0], []int{2}) || s.load[1] != 1 || s.load[2] != 1 {
		t.Errorf("load %v", s.load)
	}
	s = NewScheduler()
	place(s, "a", first.Ways, 1, start)
	got := s.PlaceAll([]Asked{first, second, first, second}, start, start.Add(time.Minute))
	if got[0][0] != 0 || got[2][0] != 0 || s.load[1] != 2 || s.load[2] != 0 {
		t.Errorf("a living flow was moved: %v, load %v", got, s.load)
	}
}

// TestMovedWhenAskedAgain: if a host asks again some minutes later, and moves open flows, it gets an emptier or equally
// crowded way instead of a crowded one. It keeps its way if its flows cannot gain: all links are equally full, or its
// ways share the fullest one.
func TestMovedWhenAskedAgain(t *testing.T) {
	one := Asked{Key: "a", Ways: [][]int{{0, 1}, {0, 2}, {0, 3}}, Wanted: 1, Moves: true}
	settled, two, longer, alias := one, one, one, one
	settled.Moves, two.Wanted = false, 2
	longer.Ways = [][]int{{0, 1, 4}, {0, 2, 5}}
	alias.Ways = [][]int{{0, 1, 4}, {0, 1, 4}, {0, 2, 5}}
	for name, tc := range map[string]struct {
		asked  Asked
		others []int // the links of other flows
		after  time.Duration
		want   []int
	}{
		"crowded":        {one, []int{1, 2}, stays, []int{2}},
		"too soon":       {one, []int{1, 2}, stays - 1, []int{0}},
		"alone":          {one, nil, stays, []int{0}},
		"does not move":  {settled, []int{1, 2}, stays, []int{0}},
		"no faster":      {two, []int{1}, stays, []int{0, 1}},
		"one of two":     {two, []int{1, 1}, stays, []int{2, 1}},
		"evenly full":    {one, []int{1, 1, 2, 2, 3, 3}, stays, []int{0}},
		"the same links": {alias, []int{1, 1, 1, 2, 2, 2, 2}, stays, []int{0}},
		"as crowded":     {longer, []int{1, 1, 1, 2, 2, 2}, stays, []int{1}},
	} {
		s := NewScheduler()
		again := func(after time.Duration) []int {
			now := start.Add(after)
			return s.PlaceAll([]Asked{tc.asked}, now, now.Add(10*time.Minute))[0]
		}
		again(0)
		for i, link := range tc.others {
			place(s, fmt.Sprint(i), [][]int{{link}}, 1, start)
		}
		for range 2 { // repeating a request changes nothing
			if got := again(tc.after); !slices.Equal(got, tc.want) {
				t.Errorf("%s: %v, not %v", name, got, tc.want)
			}
		}
	}
}

// TestLeasesEnd: flows count until their lease ends, and not longer.
func TestLeasesEnd(t *testing.T) {
	s := NewScheduler()
	place(s, "a", [][]int{{1}}, 1, start)
	if n := s.Leases(start.Add(10*time.Minute - 1)); n != 1 {
		t.Errorf("%d leases before the end", n)
	}
	if n := s.Leases(start.Add(10 * time.Minute)); n != 0 || len(s.load) != 0 {
		t.Errorf("%d leases, load %v after it", n, s.load)
	}
}

// TestWaysAlike: a host keeps both of two ways over the same links.
func TestWaysAlike(t *testing.T) {
	s := NewScheduler()
	place(s, "a", [][]int{{0}, {0}}, 2, start)
	if chosen := place(s, "a", [][]int{{0}}, 2, start); len(chosen) != 1 {
		t.Errorf("%v of one way", chosen)
	}
	place(s, "a", [][]int{{0}, {0}}, 2, start)
	if chosen := place(s, "a", [][]int{{0}, {0}}, 2, start); len(chosen) != 2 || chosen[0] == chosen[1] {
		t.Errorf("%v of two ways", chosen)
	}
}

// TestLoadIsExact: after any sequence of requests, the load of each link is the number of flows on it.
func TestLoadIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, now := NewScheduler(), start
		for range rapid.IntRange(1, 30).Draw(t, "requests") {
			now = now.Add(time.Duration(rapid.IntRange(0, 300).Draw(t, "pause")) * time.Second)
			key := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key")
			if rapid.Bool().Draw(t, "release") {
				s.Release(key)
				continue
			}
			ask := func(key string) Asked {
				ways := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(0, 5), 1, 3), 0, 4).Draw(t, "ways")
				return Asked{key, key, ways, rapid.IntRange(1, 4).Draw(t, "wanted"), rapid.Bool().Draw(t, "moves")}
			}
			all := []Asked{ask(key)}
			for range rapid.IntRange(0, 3).Draw(t, "others") {
				all = append(all, ask(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "key")))
			}
			for i, chosen := range s.PlaceAll(all, now, now.Add(10*time.Minute)) {
				slices.Sort(chosen)
				if len(chosen) != min(all[i].Wanted, len(all[i].Ways)) || len(slices.Compact(chosen)) != len(chosen) {
					t.Fatalf("%v of %+v", chosen, all[i])
				}
			}
			for _, m := range s.Relieve(all, func(host string) bool { return host != "a" }, now) {
				if m.Key == "a" || slices.ContainsFunc(all, func(a Asked) bool { return a.Key == m.Key }) {
					t.Fatalf("%v is moved", m)
				}
			}
			want := map[int]int{}
			for _, l := range s.leases {
				for i, way := range l.chosen {
					if !slices.Equal(l.all[way], l.ways[i]) {
						t.Fatalf("chosen %v of %v, on %v", l.chosen, l.all, l.ways)
					}
				}
				for _, way := range l.ways {
					for _, link := range way {
						want[link]++
					}
				}
			}
			if fmt.Sprint(want) != fmt.Sprint(s.load) {
				t.Fatalf("load %v, want %v", s.load, want)
			}
		}
	})
}
