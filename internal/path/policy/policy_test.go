package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/path/policy"
)

// TestDetoursIsGreedy opens as many detours as are missing, always the best of those that are left.
func TestDetoursIsGreedy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		order := rapid.SliceOfNDistinct(rapid.SampledFrom(policy.Kinds()), 0, -1, rapid.ID).Draw(t, "order")
		p := policy.Detours{Subflows: rapid.IntRange(1, 6).Draw(t, "subflows"), Order: order}
		if len(order) == 0 {
			order = policy.Kinds()
		}
		v := someView(t)
		plan := p.Plan(v)

		missing := p.Subflows - len(v.InUse)
		if !slices.ContainsFunc(v.InUse, func(s policy.InUse) bool { return s.Direct }) {
			missing--
		}
		missing = max(missing, 0)
		if v.RoomKnown && v.Room < missing {
			missing = v.Room
			if !plan.Capped {
				t.Fatalf("the server takes %d more, but that caps nothing: %+v", v.Room, plan)
			}
		} else if plan.Capped {
			t.Fatalf("the server takes enough: %+v", plan)
		}
		left := slices.DeleteFunc(slices.Clone(v.Usable), func(u policy.Usable) bool { return !slices.Contains(order, u.Kind) })
		if want := min(missing, len(left)); len(plan.Open) != want || plan.Short != (missing > len(left)) {
			t.Fatalf("%d missing, %d to take: %+v", missing, len(left), plan)
		}
		carried := make(map[string]int)
		for _, s := range v.InUse {
			carried[s.Waypoint]++
		}
		ask := plan.Short
		for _, c := range plan.Open {
			i := slices.IndexFunc(left, func(u policy.Usable) bool { return u.Detour == c.Detour })
			if i < 0 {
				t.Fatalf("%v is not to be used, or was taken already", c.ID)
			}
			chosen := left[i]
			rank := func(u policy.Usable) [3]int {
				return [3]int{carried[u.Waypoint], slices.Index(order, u.Kind), int(u.Since.Unix())}
			}
			for _, u := range left {
				if a, b := rank(u), rank(chosen); slices.Compare(a[:], b[:]) < 0 {
					t.Fatalf("%v was chosen before %v", chosen.ID, u.ID)
				}
			}
			// A mapping is wanted in reserve if what is taken may not last.
			if m := slices.Index(order, policy.Mapped); chosen.Unproven || m >= 0 && m <= slices.Index(order, chosen.Kind) {
				ask = true
			}
			left = slices.Delete(left, i, i+1)
			carried[c.Waypoint]++
		}
		if ask = ask && slices.Contains(order, policy.Mapped); plan.Ask != ask {
			t.Fatalf("asks: %v\nview %+v\nplan %+v", plan.Ask, v, plan)
		}
	})
}

// offeredAt is the earliest time at which a detour was offered.
var offeredAt = time.Unix(1e9, 0)

func someView(t *rapid.T) (v policy.View) {
	waypoint := rapid.SampledFrom([]string{"bob", "carol", "dave"})
	v.Room, v.RoomKnown = rapid.IntRange(0, 3).Draw(t, "room"), rapid.Bool().Draw(t, "room is known")
	if rapid.Bool().Draw(t, "direct") {
		v.InUse = append(v.InUse, policy.InUse{Direct: true})
	}
	for range rapid.IntRange(0, 3).Draw(t, "in use") {
		v.InUse = append(v.InUse, policy.InUse{
			Kind: rapid.SampledFrom(policy.Kinds()).Draw(t, "kind"), Waypoint: waypoint.Draw(t, "waypoint"),
		})
	}
	for i := range rapid.IntRange(0, 8).Draw(t, "usable") {
		v.Usable = append(v.Usable, policy.Usable{
			Detour: &policy.Detour{
				ID: policy.DetourID(fmt.Sprint(i)), Waypoint: waypoint.Draw(t, "waypoint"),
				Kind: rapid.SampledFrom(policy.Kinds()).Draw(t, "kind"),
			},
			Since:    offeredAt.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "since")) * time.Second),
			Unproven: rapid.Bool().Draw(t, "unproven"),
		})
	}
	return v
}

func TestKindsAndTheirWords(t *testing.T) {
	for _, k := range policy.Kinds() {
		if got, ok := policy.ParseKind(k.String()); !ok || got != k {
			t.Errorf("%v is read as %v, %v", k, got, ok)
		}
	}
	if _, ok := policy.ParseKind("vpn"); ok {
		t.Error("vpn is no kind")
	}
}

// A detour that rests and may be tried is taken only by connections without another detour.
func TestLastResort(t *testing.T) {
	bob, carol := policy.Detour{ID: "b", Waypoint: "bob"}, policy.Detour{ID: "c", Waypoint: "carol"}
	resting := policy.Usable{Detour: &bob, LastResort: true}
	direct := policy.InUse{Direct: true}
	for name, c := range map[string]struct {
		view policy.View
		want policy.DetourID
	}{
		"there is no other":      {policy.View{InUse: []policy.InUse{direct}, Usable: []policy.Usable{resting}}, "b"},
		"there is another":       {policy.View{InUse: []policy.InUse{direct}, Usable: []policy.Usable{resting, {Detour: &carol}}}, "c"},
		"another is in use":      {policy.View{InUse: []policy.InUse{direct, {Waypoint: "carol"}}, Usable: []policy.Usable{resting}}, ""},
		"the other lost much":    {policy.View{InUse: []policy.InUse{direct}, Usable: []policy.Usable{resting, {Detour: &carol, Prospect: policy.Prospect{Shunned: offeredAt}}}}, "c"},
		"another is set aside":   {policy.View{InUse: []policy.InUse{direct, {Waypoint: "carol", Aside: true}}, Usable: []policy.Usable{resting}}, ""},
		"no path at all is left": {policy.View{Usable: []policy.Usable{resting}}, "b"},
	} {
		plan := policy.Detours{Subflows: 2}.Plan(c.view)
		var got policy.DetourID
		if len(plan.Open) > 0 {
			got = plan.Open[0].ID
		}
		if got != c.want || len(plan.Open) > 1 {
			t.Errorf("%s: it takes %+v, want %q", name, plan.Open, c.want)
		}
	}
}

// The reason for a choice compares it with the waypoint that comes next, which a random number may have decided.
func TestReasonNamesNextWaypoint(t *testing.T) {
	offers := func(waypoint string, goodput float64, wait time.Duration, draw uint64) policy.Usable {
		return policy.Usable{
			Detour:   &policy.Detour{ID: policy.DetourID(waypoint), Waypoint: waypoint, Kind: policy.InBand},
			Prospect: policy.Prospect{Goodput: goodput, Gave: goodput > 0, Wait: wait, Measured: true, Draw: draw},
		}
	}
	const near, far = 20 * time.Millisecond, 60 * time.Millisecond
	for name, c := range map[string]struct {
		others []policy.Usable
		words  string // part of the reason
		change string
	}{
		"gives less": {
			[]policy.Usable{offers("carol", 4e6, near, 2)},
			"one more bulk connection may expect 9.0 Mbit/s of bob, 4.0 Mbit/s of carol", "at less than 4.0 Mbit/s, carol comes first",
		},
		"as good": {
			[]policy.Usable{offers("carol", 4e6, near, 2), offers("dave", 9e6, near, 3), offers("eve", 9e6, near, 4)},
			"dave is about as good, and bob was drawn by lot", "another connection may draw dave",
		},
		"farther, and nearer but gives less": {
			[]policy.Usable{offers("carol", 4e6, near, 2), offers("dave", 9e6, far, 3)},
			"messages through bob take 20.0 ms, through dave 60.0 ms (measured)", "at more than 60.0 ms, dave comes first",
		},
		"farther, but gives less": {
			[]policy.Usable{offers("carol", 4e6, far, 2)},
			"one more bulk connection may expect 9.0 Mbit/s of bob, 4.0 Mbit/s of carol", "at less than 4.0 Mbit/s, carol comes first",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bob := offers("bob", 9e6, near, 1)
			plan := policy.Detours{Subflows: 2}.Plan(policy.View{
				InUse: []policy.InUse{{Direct: true}}, Usable: append(c.others, bob),
			})
			if len(plan.Open) != 1 || plan.Open[0].Waypoint != "bob" {
				t.Fatalf("%+v", plan.Open)
			}
			why := plan.Open[0].Why
			if got := why.Words(bob.Detour); !strings.Contains(got, c.words) || strings.Contains(got, "lot") != strings.Contains(c.words, "lot") {
				t.Errorf("%q, want %q", got, c.words)
			}
			if got := why.Change(bob.Detour); got != c.change {
				t.Errorf("change: %q, want %q", got, c.change)
			}
		})
	}
}
