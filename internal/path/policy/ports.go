package policy

// MostSubflows is the number of subflows that Linux allows a connection.
const MostSubflows = 8

// Ports is the policy of the kernel's ndiffports: a connection has Subflows subflows between the same two addresses,
// which differ only in this host's port. Routers that balance by ports may send them over different paths.
type Ports struct{ Subflows int }

// Plan implements Policy.
func (p Ports) Plan(v View) Plan {
	missing := p.Subflows - len(v.InUse)
	capped := v.RoomKnown && missing > v.Room
	if capped {
		missing = v.Room
	}
	plan := Plan{Capped: capped}
	for i := range v.Usable {
		if u := &v.Usable[i]; u.Kind == Port && u.Waypoint == "" && missing > 0 {
			plan.Open = append(plan.Open, Choice{Detour: u.Detour})
			missing--
		}
	}
	plan.Short = missing > 0
	return plan
}
