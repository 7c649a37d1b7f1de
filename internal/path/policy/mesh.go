package policy

import (
	"cmp"
	"slices"
)

// Mesh is the policy of the kernel's fullmesh and of similar path managers. A connection has one subflow over each
// uplink of this host and through each waypoint.
type Mesh struct {
	Mode Mode
	// Subflows bounds the number of subflows. Zero means MostSubflows.
	Subflows int
	// Uplinks lists the interfaces to use, the preferred ones first. If it is empty, all are used, and the one that
	// routing chooses is preferred.
	Uplinks []string
	// Kinds lists the kinds of detours to use as well, the preferred ones first. If it is empty, no detour is used.
	Kinds []Kind
}

// Mode tells how a Mesh uses its subflows (Raiciu et al., "Opportunistic mobility with Multipath TCP", 2011).
type Mode uint8

const (
	// FullMode uses all subflows at once.
	FullMode Mode = iota
	// BackupMode lets one subflow carry data. The others are established as backups.
	BackupMode
	// SingleMode establishes one subflow at a time. When it fails, the next one is established.
	SingleMode
)

// Plan implements Policy.
func (p Mesh) Plan(v View) Plan {
	missing := cmp.Or(p.Subflows, MostSubflows)
	works := false
	for i := range v.InUse {
		works = works || !v.InUse[i].Stuck
		if !v.InUse[i].Aside {
			missing--
		}
	}
	if p.Mode == SingleMode {
		if missing = 1; works || len(v.InUse) > 1 {
			missing = 0
		}
	}
	capped := v.RoomKnown && missing > v.Room
	if capped {
		missing = v.Room
	}
	r := round{View: v, order: append([]Kind{Uplink}, p.Kinds...)}
	for ; missing > 0; missing-- {
		next := p.next(&r)
		if next == nil {
			break
		}
		c := Choice{Detour: next.Detour, Standby: p.Mode == BackupMode && works, Aside: !next.Shunned.IsZero()}
		if !next.Kind.Own() {
			r.order = p.Kinds
			c.Why = r.reason(next)
			r.order = append([]Kind{Uplink}, p.Kinds...)
		}
		r.open = append(r.open, c)
	}
	plan := Plan{Open: r.open, Capped: capped, Short: missing > 0 && (len(v.Resting) > 0 || len(p.Kinds) > 0 && !r.detoured())}
	plan.Ask = plan.Short && slices.Contains(p.Kinds, Mapped)
	return plan
}

// next returns the path to take next: an uplink, or the best detour through a waypoint that the connection does not
// use.
func (p Mesh) next(r *round) (best *Usable) {
	for i := range r.Usable {
		u := &r.Usable[i]
		if !r.allowed(u) || r.carried(u.Waypoint) > 0 || u.Kind == Uplink && !p.wants(u.Waypoint) {
			continue
		}
		if (!u.Shunned.IsZero() || !u.Loaded.IsZero() || u.LastResort) && !r.bare() {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(p.rankOf(u), p.rankOf(best)), r.compare(u, best)) < 0 {
			best = u
		}
	}
	return best
}

// detoured reports whether the connection has a path through a waypoint.
func (r *round) detoured() bool {
	return slices.ContainsFunc(r.InUse, func(s InUse) bool { return !s.Direct && !s.Kind.Own() }) ||
		slices.ContainsFunc(r.open, func(c Choice) bool { return !c.Kind.Own() })
}

// wants reports whether subflows over an uplink are opened.
func (p Mesh) wants(uplink string) bool {
	return len(p.Uplinks) == 0 || slices.Contains(p.Uplinks, uplink)
}

func (p Mesh) rankOf(u *Usable) int {
	if u.Kind == Uplink {
		return p.rank(false, u.Waypoint)
	}
	return p.rank(false, "")
}

// rank returns the place of a path in the operator's order. The uplink is empty for a detour through a waypoint.
func (p Mesh) rank(direct bool, uplink string) int {
	switch i := slices.Index(p.Uplinks, uplink); {
	case i >= 0:
		return i
	case direct:
		return len(p.Uplinks)
	case uplink != "":
		return len(p.Uplinks) + 1
	default:
		return len(p.Uplinks) + 2
	}
}

// Arrange implements Layout.
func (p Mesh) Arrange(v View) []Role {
	roles := make([]Role, len(v.InUse))
	carrier := p.carrier(v)
	if p.Mode == FullMode || carrier < 0 {
		return roles
	}
	for i := range v.InUse {
		switch {
		case i == carrier || !v.InUse[i].Up:
		case p.Mode == SingleMode:
			roles[i] = Leaves
		default:
			roles[i] = StandsBy
		}
	}
	return roles
}

// carrier returns the subflow that carries data alone, or -1 if none is established.
func (p Mesh) carrier(v View) int {
	best := -1
	for i := range v.InUse {
		if v.InUse[i].Up && (best < 0 || p.compare(&v.InUse[i], &v.InUse[best]) < 0) {
			best = i
		}
	}
	return best
}

func (p Mesh) compare(a, b *InUse) int {
	return cmp.Or(CompareFlags(a.Stuck || a.Aside, b.Stuck || b.Aside), cmp.Compare(p.rank(a.Direct, a.Uplink), p.rank(b.Direct, b.Uplink)))
}
