package path

import (
	"cmp"
	"slices"
)

// DetourPolicy is the policy of the 2017 system: every connection gets Subflows
// subflows in all, the direct one among them. The kinds that are ready at once
// come first, then the detour that was offered first; a waypoint that does not
// carry the connection yet goes before one that does.
type DetourPolicy struct {
	Subflows int
}

// Plan implements Policy.
func (p DetourPolicy) Plan(v View) Plan {
	missing := p.Subflows - len(v.InUse)
	if !slices.ContainsFunc(v.InUse, func(s InUse) bool { return s.Direct }) {
		missing-- // its place is kept for when the direct path comes back
	}
	if missing <= 0 || len(v.Usable) == 0 {
		return Plan{Short: missing > 0}
	}
	carried := make(map[string]int, len(v.InUse))
	for _, s := range v.InUse {
		carried[s.Waypoint]++
	}
	var plan Plan
	left := slices.Clone(v.Usable)
	for ; missing > 0 && len(left) > 0; missing-- {
		best := 0
		for i := range left {
			if order(carried, left[i], left[best]) < 0 {
				best = i
			}
		}
		d := left[best].Detour
		plan.Open = append(plan.Open, d)
		carried[d.Waypoint]++
		left = slices.Delete(left, best, best+1)
	}
	plan.Short = missing > 0
	return plan
}

func order(carried map[string]int, a, b Usable) int {
	return cmp.Or(
		cmp.Compare(carried[a.Waypoint], carried[b.Waypoint]),
		cmp.Compare(a.Kind, b.Kind),
		a.Since.Compare(b.Since),
		cmp.Compare(a.ID, b.ID),
	)
}
