package path_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/path"
)

// TestDetourPolicyIsGreedy opens as many detours as are missing, always the best of those that are left.
func TestDetourPolicyIsGreedy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		order := rapid.SliceOfNDistinct(rapid.SampledFrom(path.Kinds()), 0, -1, rapid.ID).Draw(t, "order")
		p := path.DetourPolicy{Subflows: rapid.IntRange(1, 6).Draw(t, "subflows"), Order: order}
		if len(order) == 0 {
			order = path.Kinds()
		}
		v := someView(t)
		plan := p.Plan(v)

		missing := p.Subflows - len(v.InUse)
		if !slices.ContainsFunc(v.InUse, func(s path.InUse) bool { return s.Direct }) {
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
		left := slices.DeleteFunc(slices.Clone(v.Usable), func(u path.Usable) bool { return !slices.Contains(order, u.Kind) })
		if want := min(missing, len(left)); len(plan.Open) != want || plan.Short != (missing > len(left)) {
			t.Fatalf("%d missing, %d to take: %+v", missing, len(left), plan)
		}
		carried := make(map[string]int)
		for _, s := range v.InUse {
			carried[s.Waypoint]++
		}
		ask := plan.Short
		for _, c := range plan.Open {
			i := slices.IndexFunc(left, func(u path.Usable) bool { return u.Detour == c.Detour })
			if i < 0 {
				t.Fatalf("%v is not to be used, or was taken already", c.ID)
			}
			chosen := left[i]
			rank := func(u path.Usable) [3]int {
				return [3]int{carried[u.Waypoint], slices.Index(order, u.Kind), int(u.Since.Unix())}
			}
			for _, u := range left {
				if a, b := rank(u), rank(chosen); slices.Compare(a[:], b[:]) < 0 {
					t.Fatalf("%v was chosen before %v", chosen.ID, u.ID)
				}
			}
			// A mapping is wanted in reserve if what is taken may not last.
			if m := slices.Index(order, path.Mapped); chosen.Unproven || m >= 0 && m <= slices.Index(order, chosen.Kind) {
				ask = true
			}
			left = slices.Delete(left, i, i+1)
			carried[c.Waypoint]++
		}
		if ask = ask && slices.Contains(order, path.Mapped); plan.Ask != ask {
			t.Fatalf("asks: %v\nview %+v\nplan %+v", plan.Ask, v, plan)
		}
	})
}

func someView(t *rapid.T) (v path.View) {
	waypoint := rapid.SampledFrom([]string{"bob", "carol", "dave"})
	v.Room, v.RoomKnown = rapid.IntRange(0, 3).Draw(t, "room"), rapid.Bool().Draw(t, "room is known")
	if rapid.Bool().Draw(t, "direct") {
		v.InUse = append(v.InUse, path.InUse{Direct: true})
	}
	for range rapid.IntRange(0, 3).Draw(t, "in use") {
		v.InUse = append(v.InUse, path.InUse{
			Kind: rapid.SampledFrom(path.Kinds()).Draw(t, "kind"), Waypoint: waypoint.Draw(t, "waypoint"),
		})
	}
	for i := range rapid.IntRange(0, 8).Draw(t, "usable") {
		v.Usable = append(v.Usable, path.Usable{
			Detour: &path.Detour{
				ID: path.DetourID(fmt.Sprint(i)), Waypoint: waypoint.Draw(t, "waypoint"),
				Kind: rapid.SampledFrom(path.Kinds()).Draw(t, "kind"),
			},
			Since:    birth.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "since")) * time.Second),
			Unproven: rapid.Bool().Draw(t, "unproven"),
		})
	}
	return v
}

func TestKindsAndTheirWords(t *testing.T) {
	for _, k := range path.Kinds() {
		if got, ok := path.ParseKind(k.String()); !ok || got != k {
			t.Errorf("%v is read as %v, %v", k, got, ok)
		}
	}
	if _, ok := path.ParseKind("vpn"); ok {
		t.Error("vpn is no kind")
	}
}

// A detour that rests and may be tried is taken only by connections without another detour.
func TestLastResort(t *testing.T) {
	bob, carol := path.Detour{ID: "b", Waypoint: "bob"}, path.Detour{ID: "c", Waypoint: "carol"}
	resting := path.Usable{Detour: &bob, LastResort: true}
	direct := path.InUse{Direct: true}
	for name, c := range map[string]struct {
		view path.View
		want path.DetourID
	}{
		"there is no other":      {path.View{InUse: []path.InUse{direct}, Usable: []path.Usable{resting}}, "b"},
		"there is another":       {path.View{InUse: []path.InUse{direct}, Usable: []path.Usable{resting, {Detour: &carol}}}, "c"},
		"another is in use":      {path.View{InUse: []path.InUse{direct, {Waypoint: "carol"}}, Usable: []path.Usable{resting}}, ""},
		"the other lost much":    {path.View{InUse: []path.InUse{direct}, Usable: []path.Usable{resting, {Detour: &carol, Prospect: path.Prospect{Shunned: birth}}}}, "c"},
		"another is set aside":   {path.View{InUse: []path.InUse{direct, {Waypoint: "carol", Aside: true}}, Usable: []path.Usable{resting}}, ""},
		"no path at all is left": {path.View{Usable: []path.Usable{resting}}, "b"},
	} {
		plan := path.DetourPolicy{Subflows: 2}.Plan(c.view)
		var got path.DetourID
		if len(plan.Open) > 0 {
			got = plan.Open[0].ID
		}
		if got != c.want || len(plan.Open) > 1 {
			t.Errorf("%s: it takes %+v, want %q", name, plan.Open, c.want)
		}
	}
}
