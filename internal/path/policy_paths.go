package path

// defaultPaths is the number of paths of Paths without one.
const defaultPaths = 2

// Paths is the policy of paths by ports: a connection has one subflow on each of several paths between the same two
// addresses. The paths are detours of the kind Port with a name, each for one server. The path of the connection's first
// subflow is not known and may be one of them, so it stands by while another works.
type Paths struct {
	Subflows int // beside the first; 0: defaultPaths
}

// Plan implements Policy.
func (p Paths) Plan(v View) Plan {
	missing := p.Subflows
	if missing == 0 {
		missing = defaultPaths
	}
	missing -= max(0, len(v.InUse)-1)
	capped := v.RoomKnown && missing > v.Room
	if capped {
		missing = v.Room
	}
	plan := Plan{Capped: capped}
	for i := range v.Usable {
		if u := &v.Usable[i]; isPath(u.Kind, u.Waypoint) && missing > 0 {
			plan.Open = append(plan.Open, Choice{Detour: u.Detour})
			missing--
		}
	}
	plan.Short = missing > 0
	return plan
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

// isPath reports whether a detour is a path by ports that was found.
func isPath(k Kind, name string) bool { return k == Port && name != "" }
