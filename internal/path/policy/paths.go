package policy

import (
	"cmp"
	"slices"
)

// defaultPaths is the number of paths if Paths.Subflows is 0.
const defaultPaths = 2

// Paths is the policy of paths by ports: a connection has one subflow on each of several paths between the same two
// addresses. These paths are detours of the kind Port with a name, each for one server. The path of the connection's
// first subflow is not known and may be one of them, so that subflow stands by while another works.
type Paths struct {
	Subflows int // besides the first; 0: defaultPaths
	// Kinds lists the kinds of detours to use as well, one through each waypoint, the preferred ones first. If it is
	// empty, no detour is used.
	Kinds []Kind
}

// Plan implements Policy.
func (p Paths) Plan(v View) Plan {
	missing := cmp.Or(p.Subflows, defaultPaths)
	missing -= max(0, len(v.InUse)-1)
	if len(p.Kinds) > 0 {
		for i := range v.InUse {
			if s := &v.InUse[i]; !s.Direct && !s.Kind.Own() {
				missing++
			}
		}
	}
	room := MostSubflows - len(v.InUse)
	if v.RoomKnown {
		room = v.Room
	}
	plan := Plan{Capped: v.RoomKnown && missing > room}
	missing = min(missing, room)
	for i := range v.Usable {
		if u := &v.Usable[i]; isPath(u.Kind, u.Waypoint) && missing > 0 {
			plan.Open = append(plan.Open, Choice{Detour: u.Detour})
			missing--
		}
	}
	plan.Short = missing > 0
	p.detours(v, room, &plan)
	return plan
}

// detours adds a detour through each waypoint, as far as there is room.
func (p Paths) detours(v View, room int, plan *Plan) {
	if len(p.Kinds) == 0 {
		return
	}
	r := round{View: v, order: p.Kinds, open: plan.Open}
	for len(r.open) < room {
		next := Mesh{Kinds: p.Kinds}.next(&r)
		if next == nil {
			break
		}
		r.open = append(r.open, Choice{Detour: next.Detour, Why: r.reason(next), Aside: !next.Shunned.IsZero()})
	}
	plan.Open = r.open
	if !r.detoured() {
		plan.Short = true
		plan.Ask = slices.Contains(p.Kinds, Mapped)
	}
}

// Arrange implements Layout.
func (p Paths) Arrange(v View) []Role {
	roles := make([]Role, len(v.InUse))
	works := false
	for i := range v.InUse {
		s := &v.InUse[i]
		works = works || isPath(s.Kind, s.Waypoint) && s.Up && !s.Stuck
	}
	for i := range v.InUse {
		if works && v.InUse[i].Direct {
			roles[i] = StandsBy
		}
	}
	return roles
}

// isPath reports whether a detour is a discovered path by ports.
func isPath(k Kind, name string) bool { return k == Port && name != "" }
