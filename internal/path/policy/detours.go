package policy

import (
	"cmp"
	"slices"
)

// Detours is the policy of the 2017 system: every connection gets Subflows subflows in total, one of them
// direct. It compares detours by these criteria, in this order:
//
//   - the number of the connection's subflows through the waypoint, so that a second kind of one waypoint is used
//     only when the connection uses every other waypoint that has a detour
//   - whether the operator wants the waypoint
//   - the waypoint's recent failures towards the server
//   - whether the connection has freed a place for the waypoint (Prospect.Next)
//   - whether its budget is nearly used up
//   - for a connection that explores: whether the detour was not measured
//   - what bulk traffic may expect, then how long messages wait, both roughly
//   - the place of its kind in Order
//   - other members' measurements, then a random number, then the age of the offer
//
// A detour that lost too much, whose waypoint is loaded, or that rests and may be tried, is taken only by a
// connection that would have no other. If it lost too much, its subflow begins set aside.
//
// Mappings are requested when the connection is short of detours, and as a reserve: beside a mapping in use, which
// may fail, beside an unproven detour, and where Order prefers mappings to the detours in use.
type Detours struct {
	Subflows int
	// Order lists the kinds to use, the preferred ones first. If it is empty, it is Kinds().
	Order []Kind
}

var allKinds = Kinds()

// Plan implements Policy.
func (p Detours) Plan(v View) Plan {
	missing := p.Subflows + v.Extra
	for i := range v.InUse {
		if !v.InUse[i].Aside {
			missing--
		}
	}
	if !slices.ContainsFunc(v.InUse, func(s InUse) bool { return s.Direct }) {
		missing-- // keeps a place for the direct path
	}
	capped := v.RoomKnown && missing > v.Room
	if capped {
		missing = v.Room
	}
	r := round{View: v, order: p.Order}
	if len(r.order) == 0 {
		r.order = allKinds
	}
	if missing <= 0 {
		return Plan{Capped: capped, Replace: capped && r.replaces()}
	}
	spare := false
	for ; missing > 0; missing-- {
		best := r.best()
		if best == nil {
			break
		}
		spare = spare || best.Unproven || r.rank(Mapped) <= r.rank(best.Kind)
		r.open = append(r.open, Choice{Detour: best.Detour, Why: r.reason(best), Aside: !best.Shunned.IsZero()})
	}
	plan := Plan{Open: r.open, Short: missing > 0, Capped: capped}
	plan.Ask = (plan.Short || spare) && slices.Contains(r.order, Mapped)
	return plan
}

// round holds one connection's view and the choices made so far.
type round struct {
	View
	order []Kind
	open  []Choice
}

// best returns the next detour to take, or nil if there is none.
func (r *round) best() *Usable {
	var best *Usable
	for i := range r.Usable {
		if u := &r.Usable[i]; r.allowed(u) && (u.Shunned.IsZero() && (u.Loaded.IsZero() || u.Next) && !u.LastResort || r.bare()) && (best == nil || r.compare(u, best) < 0) {
			best = u
		}
	}
	return best
}

// allowed reports whether the detour's kind is to be used and the detour was not chosen yet.
func (r *round) allowed(u *Usable) bool {
	return slices.Contains(r.order, u.Kind) &&
		!slices.ContainsFunc(r.open, func(c Choice) bool { return c.Detour == u.Detour })
}

// bare reports whether the connection has no detour and none was chosen.
func (r *round) bare() bool {
	return len(r.open) == 0 && !slices.ContainsFunc(r.InUse, func(s InUse) bool { return !s.Direct })
}

// replaces reports whether a detour with InUse.Aside could give its place to another.
func (r *round) replaces() bool {
	return slices.ContainsFunc(r.InUse, func(s InUse) bool { return s.Aside }) && r.best() != nil
}

func (r *round) compare(a, b *Usable) int {
	return cmp.Or(r.byUse(a, b), r.preferred(a, b))
}

// byUse compares two detours by whether they may be used, how the connection uses their waypoints, the operator's will and
// failures.
func (r *round) byUse(a, b *Usable) int {
	return cmp.Or(
		CompareFlags(a.LastResort, b.LastResort),
		a.Shunned.Compare(b.Shunned),
		CompareFlags(!a.Loaded.IsZero() && !a.Next, !b.Loaded.IsZero() && !b.Next),
		cmp.Compare(r.carried(a.Waypoint), r.carried(b.Waypoint)),
		byWill(a, b),
		cmp.Compare(a.Failures, b.Failures),
	)
}

// byWill compares two detours by the operator's will. The one that the operator wants comes first.
func byWill(a, b *Usable) int { return CompareFlags(b.Wanted, a.Wanted) }

// CompareFlags compares two flags. An unset one comes first.
func CompareFlags(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// preferred compares two detours without regard to the connection's subflows through their waypoints and to failures.
func (r *round) preferred(a, b *Usable) int {
	return cmp.Or(r.byWorth(a, b), cmp.Compare(a.Draw, b.Draw), a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID))
}

// byWorth is preferred without the random number.
func (r *round) byWorth(a, b *Usable) int {
	return cmp.Or(
		CompareFlags(!a.Next, !b.Next),
		CompareFlags(a.Sparing, b.Sparing),
		CompareFlags(!r.tries(a), !r.tries(b)),
		a.compare(&b.Prospect),
		cmp.Compare(r.rank(a.Kind), r.rank(b.Kind)),
		cmp.Compare(a.Rank, b.Rank),
	)
}

// tries reports whether the detour would be taken to measure it. A connection takes one such detour.
func (r *round) tries(u *Usable) bool {
	return u.Explores && !slices.ContainsFunc(r.open, func(c Choice) bool { return c.Why.Explored })
}

// carried counts the connection's subflows through a waypoint.
func (r *round) carried(waypoint string) (n int) {
	for i := range r.InUse {
		if r.InUse[i].Waypoint == waypoint {
			n++
		}
	}
	for i := range r.open {
		if r.open[i].Waypoint == waypoint {
			n++
		}
	}
	return n
}

// rank returns the kind's place in the order, or -1 if it is not used.
func (r *round) rank(k Kind) int { return slices.Index(r.order, k) }
