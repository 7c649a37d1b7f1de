package directory

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func waypoint(name, region string, kinds ...string) *Verified {
	return &Verified{Record: Record{
		Name: name, Region: region, Kinds: kinds, Roles: []string{RoleWaypoint},
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Port: 1,
	}}
}

func namesOf(all []*Verified) (names []string) {
	for _, v := range all {
		names = append(names, v.Record.Name)
	}
	return names
}

func TestChoose(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := Client{
			Name: "me", Want: rapid.IntRange(0, 5).Draw(rt, "want"),
			Region: rapid.SampledFrom([]string{"", "eu", "us"}).Draw(rt, "region"),
			Kinds:  rapid.SampledFrom([][]string{nil, {"in-band"}, {"in-band", "wireguard"}}).Draw(rt, "kinds"),
		}
		members := rapid.SliceOfNDistinct(rapid.Custom(func(rt *rapid.T) *Verified {
			v := waypoint(
				rapid.SampledFrom([]string{"me", "a", "b", "c", "d", "e", "f", "g"}).Draw(rt, "name"),
				rapid.SampledFrom([]string{"", "eu", "us"}).Draw(rt, "region"),
				rapid.SampledFrom([]string{"in-band", "wireguard", "other"}).Draw(rt, "kind"))
			if rapid.IntRange(0, 4).Draw(rt, "only a client") == 0 {
				v.Record.Roles = []string{RoleClient}
			}
			return v
		}), 0, 8, func(v *Verified) string { return v.Record.Name }).Draw(rt, "members")
		anybody := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "gone"})
		current := rapid.SliceOfNDistinct(anybody, 0, 4, rapid.ID).Draw(rt, "current")
		unreachable := map[string]bool{}
		for _, name := range rapid.SliceOfN(anybody, 0, 3).Draw(rt, "unreachable") {
			unreachable[name] = true
		}

		chosen := Choose(c, slices.Values(members), current, unreachable)
		names := namesOf(chosen)
		usable := slices.DeleteFunc(slices.Clone(members), func(v *Verified) bool {
			return !c.canUse(&v.Record) || unreachable[v.Record.Name]
		})
		if len(names) != min(c.Want, len(usable)) {
			rt.Fatalf("chose %v of %v", names, namesOf(usable))
		}
		if len(slices.Compact(slices.Sorted(slices.Values(names)))) != len(names) || slices.Contains(names, "me") {
			rt.Fatalf("chose %v", names)
		}
		for _, v := range chosen {
			if !slices.Contains(usable, v) {
				rt.Fatalf("chose %s, which does not serve", v.Record.Name)
			}
		}
		// No waypoint is replaced while it is up.
		kept := slices.DeleteFunc(slices.Clone(current), func(name string) bool { return !slices.Contains(namesOf(usable), name) })
		kept = kept[:min(len(kept), c.Want)]
		if !slices.Equal(kept, names[:len(kept)]) {
			rt.Fatalf("kept %v of %v", names, current)
		}
		// No other waypoint in this region is left over while one from another region is chosen.
		for _, v := range chosen[len(kept):] {
			if c.Region == "" || v.Record.Region == c.Region {
				continue
			}
			for _, other := range usable {
				if other.Record.Region == c.Region && !slices.Contains(chosen, other) && !slices.Contains(current, other.Record.Name) {
					rt.Fatalf("chose %s from elsewhere before %s", v.Record.Name, other.Record.Name)
				}
			}
		}
		// The order of members does not matter, and choosing again gives the same result.
		mixed := rapid.Permutation(members).Draw(rt, "mixed")
		if again := namesOf(Choose(c, slices.Values(mixed), current, unreachable)); !slices.Equal(names, again) {
			rt.Fatalf("chose %v, and in another order %v", names, again)
		}
		if again := namesOf(Choose(c, slices.Values(members), names, unreachable)); !slices.Equal(names, again) {
			rt.Fatalf("chose %v, then %v", names, again)
		}
	})
}

// Ten thousand clients load fifty waypoints evenly; when one goes, only its clients move, and they spread.
func TestChooseSpreads(t *testing.T) {
	const clients, waypoints = 10_000, 50
	var all []*Verified
	for i := range waypoints {
		all = append(all, waypoint(fmt.Sprint("w", i), "", "in-band"))
	}
	load, after := map[string]int{}, map[string]int{}
	for i := range clients {
		c := Client{Name: fmt.Sprint("c", i), Want: DefaultWaypoints}
		first := namesOf(Choose(c, slices.Values(all), nil, nil))
		second := namesOf(Choose(c, slices.Values(all), first, map[string]bool{"w0": true}))
		for _, name := range first {
			load[name]++
		}
		for _, name := range second {
			after[name]++
		}
		if !slices.Contains(first, "w0") && !slices.Equal(first, second) {
			t.Fatalf("%v moved to %v", first, second)
		}
	}
	for what, load := range map[string]map[string]int{"at first": load, "without w0": after} {
		mean := float64(clients*DefaultWaypoints) / float64(len(load))
		for name, n := range load {
			if math.Abs(float64(n)-mean) > 6*math.Sqrt(mean) {
				t.Errorf("%s: %s has %d clients, the mean is %.0f", what, name, n, mean)
			}
		}
	}
	if len(load) != waypoints || after["w0"] != 0 {
		t.Errorf("%d waypoints used, w0 by %d after it went", len(load), after["w0"])
	}
}

// A client that uses converters has one of them among its waypoints, if there is any, and keeps it.
func TestChooseConverter(t *testing.T) {
	members := []*Verified{waypoint("a", "", "in-band"), waypoint("b", "", "in-band"), waypoint("c", "", "in-band", "converter")}
	c := Client{Name: "me", Want: 2, Kinds: []string{"in-band"}, Converter: "converter"}
	current := []string{"a", "b"}
	for range 3 {
		current = namesOf(Choose(c, slices.Values(members), current, nil))
		if want := []string{"a", "b", "c"}; !slices.Equal(current, want) {
			t.Fatalf("chose %v, want %v", current, want)
		}
	}
	if got := namesOf(Choose(c, slices.Values(members), []string{"c"}, nil)); len(got) != 2 || got[0] != "c" {
		t.Errorf("with a converter among the first two: %v", got)
	}
	if got := namesOf(Choose(c, slices.Values(members), current, map[string]bool{"c": true})); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("if the converter cannot be reached: %v", got)
	}
}
