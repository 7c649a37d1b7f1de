package policy

import (
	"slices"
	"testing"
)

func pathDetour(name string) *Detour {
	return &Detour{ID: DetourID(name), Kind: Port, Waypoint: name}
}

// TestPathsPlan opens the paths that were found and no other kind of detour, up to the number and to the server's
// room.
func TestPathsPlan(t *testing.T) {
	usable := []Usable{
		{Detour: &Detour{ID: "bob", Kind: Mapped, Waypoint: "bob"}}, {Detour: &Detour{ID: "port 1", Kind: Port}},
		{Detour: pathDetour("path-1")}, {Detour: pathDetour("path-2")}, {Detour: pathDetour("path-3")},
	}
	direct, used := InUse{Direct: true, Up: true}, InUse{Kind: Port, Waypoint: "path-9", Up: true}
	for _, tc := range []struct {
		name string
		view View
		p    Paths
		want []DetourID
		plan Plan // without Open
	}{
		{"two by default", View{InUse: []InUse{direct}, Usable: usable}, Paths{}, []DetourID{"path-1", "path-2"}, Plan{}},
		{"one more", View{InUse: []InUse{direct, used}, Usable: usable}, Paths{}, []DetourID{"path-1"}, Plan{}},
		{"enough", View{InUse: []InUse{direct, used}, Usable: usable}, Paths{Subflows: 1}, nil, Plan{}},
		{"too few are found", View{InUse: []InUse{direct}, Usable: usable}, Paths{Subflows: 5}, []DetourID{"path-1", "path-2", "path-3"}, Plan{Short: true}},
		{"none is found", View{InUse: []InUse{direct}, Usable: usable[:2]}, Paths{}, nil, Plan{Short: true}},
		{"the server accepts one", View{InUse: []InUse{direct}, Usable: usable, Room: 1, RoomKnown: true}, Paths{}, []DetourID{"path-1"}, Plan{Capped: true}},
	} {
		got := tc.p.Plan(tc.view)
		var ids []DetourID
		for _, c := range got.Open {
			ids = append(ids, c.ID)
		}
		if !slices.Equal(ids, tc.want) || got.Short != tc.plan.Short || got.Capped != tc.plan.Capped {
			t.Errorf("%s: %v, short %t, capped %t", tc.name, ids, got.Short, got.Capped)
		}
	}
	if got := (Ports{Subflows: 3}).Plan(View{InUse: []InUse{direct}, Usable: usable}); len(got.Open) != 1 || got.Open[0].ID != "port 1" {
		t.Errorf("ndiffports opens %v", got.Open)
	}
}

// TestPathsAndDetours opens one detour through each waypoint as well, and asks for mappings while there is none.
func TestPathsAndDetours(t *testing.T) {
	mapped := func(name string) Usable {
		return Usable{Detour: &Detour{ID: DetourID(name), Kind: Mapped, Waypoint: name}}
	}
	path1, path2 := Usable{Detour: pathDetour("path-1")}, Usable{Detour: pathDetour("path-2")}
	direct := InUse{Direct: true, Up: true}
	bob := InUse{Kind: Mapped, Waypoint: "bob", Up: true}
	p := Paths{Kinds: []Kind{WireGuard, Mapped}}
	for _, tc := range []struct {
		name string
		view View
		want []DetourID
		plan Plan // without Open
	}{
		{"both", View{InUse: []InUse{direct}, Usable: []Usable{mapped("bob"), mapped("carol"), path1, path2}}, []DetourID{"path-1", "path-2", "bob", "carol"}, Plan{}},
		{"a detour takes no path's place", View{InUse: []InUse{direct, bob}, Usable: []Usable{mapped("bob"), path1, path2}}, []DetourID{"path-1", "path-2"}, Plan{}},
		{"no mapping yet", View{InUse: []InUse{direct}, Usable: []Usable{path1, path2}}, []DetourID{"path-1", "path-2"}, Plan{Short: true, Ask: true}},
		{"another kind", View{InUse: []InUse{direct, bob}, Usable: []Usable{path1, path2, {Detour: &Detour{ID: "in", Kind: InBand, Waypoint: "dave"}}}}, []DetourID{"path-1", "path-2"}, Plan{}},
		{"the server accepts three", View{InUse: []InUse{direct}, Usable: []Usable{mapped("bob"), mapped("carol"), path1, path2}, Room: 3, RoomKnown: true}, []DetourID{"path-1", "path-2", "bob"}, Plan{}},
		{"the kernel has eight", View{InUse: []InUse{direct, bob, bob, bob, bob, bob}, Usable: []Usable{mapped("carol"), path1, path2}}, []DetourID{"path-1", "path-2"}, Plan{}},
	} {
		got := p.Plan(tc.view)
		var ids []DetourID
		for _, c := range got.Open {
			ids = append(ids, c.ID)
		}
		if !slices.Equal(ids, tc.want) || got.Short != tc.plan.Short || got.Capped != tc.plan.Capped || got.Ask != tc.plan.Ask {
			t.Errorf("%s: %v, %+v", tc.name, ids, got)
		}
	}
}

// TestPathsArrange lets the first subflow stand by only while another path works.
func TestPathsArrange(t *testing.T) {
	direct := InUse{Direct: true, Up: true}
	for name, tc := range map[string]struct {
		other InUse
		want  Role
	}{
		"a path works":           {InUse{Kind: Port, Waypoint: "path-1", Up: true}, StandsBy},
		"it joins":               {InUse{Kind: Port, Waypoint: "path-1"}, Carries},
		"nothing gets through":   {InUse{Kind: Port, Waypoint: "path-1", Up: true, Stuck: true}, Carries},
		"another port by chance": {InUse{Kind: Port, Up: true}, Carries},
	} {
		if roles := (Paths{}).Arrange(View{InUse: []InUse{direct, tc.other}}); roles[0] != tc.want || roles[1] != Carries {
			t.Errorf("%s: roles %v", name, roles)
		}
	}
}
