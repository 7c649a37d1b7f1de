package path

import (
	"cmp"
	"slices"
)

// DetourPolicy is the policy of the 2017 system: every connection gets a total of Subflows
// subflows, one of them direct. It prefers the waypoint that carries fewer of the connection's
// subflows, then the one that the operator wants, then the one with fewer recent failures towards the server, then
// one that is to be measured, then the one through which messages wait less, then the kind that comes first in Order, then the detour that was drawn or that was offered
// first. Detours through waypoints that say that they are loaded come after all others, and are taken if there is
// no other. So a second kind of one waypoint is used only when every other waypoint with a detour carries the
// connection already. A detour that lost too much, or that rests and may be tried, is taken if there is no other;
// the former is set aside.
//
// Mappings are requested when the connection is short of detours, and as a reserve: beside a
// mapping in use, which may fail, beside an unproven detour, and where Order prefers them to what
// is used.
type DetourPolicy struct {
	Subflows int
	// Order lists the kinds to use, the preferred first. If empty, it is Kinds().
	Order []Kind
}

var allKinds = Kinds()

// Plan implements Policy.
func (p DetourPolicy) Plan(v View) Plan {
	missing := p.Subflows
	for i := range v.InUse {
		if !v.InUse[i].Aside {
			missing--
		}
	}
	if !slices.ContainsFunc(v.InUse, func(s InUse) bool { return s.Direct }) {
		missing-- // keep its place for when the direct path comes back
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

// round is one connection's view and the choices made so far.
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

// allowed reports whether the detour's kind is in use and it was not chosen yet.
func (r *round) allowed(u *Usable) bool {
	return slices.Contains(r.order, u.Kind) &&
		!slices.ContainsFunc(r.open, func(c Choice) bool { return c.Detour == u.Detour })
}

// bare reports whether the connection has no detour at all.
func (r *round) bare() bool {
	return len(r.open) == 0 && !slices.ContainsFunc(r.InUse, func(s InUse) bool { return !s.Direct })
}

// replaces reports whether a detour that is set aside could give its place to another.
func (r *round) replaces() bool {
	return slices.ContainsFunc(r.InUse, func(s InUse) bool { return s.Aside }) && r.best() != nil
}

func (r *round) compare(a, b *Usable) int {
	return cmp.Or(
		compareFlags(a.LastResort, b.LastResort),
		a.Shunned.Compare(b.Shunned),
		compareFlags(!a.Loaded.IsZero() && !a.Next, !b.Loaded.IsZero() && !b.Next),
		cmp.Compare(r.carried(a.Waypoint), r.carried(b.Waypoint)),
		byWill(a, b),
		cmp.Compare(a.Failures, b.Failures),
		r.preferred(a, b),
	)
}

// byWill compares two detours by the operator's will.
func byWill(a, b *Usable) int { return compareFlags(b.Wanted, a.Wanted) }

// compareFlags compares two flags. One that is not set comes first.
func compareFlags(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// preferred compares two detours without regard to the load and the failures of their waypoints.
func (r *round) preferred(a, b *Usable) int {
	return cmp.Or(
		compareFlags(!a.Next, !b.Next),
		compareFlags(a.Sparing, b.Sparing),
		compareFlags(!r.tries(a), !r.tries(b)),
		a.compare(&b.Prospect),
		cmp.Compare(r.rank(a.Kind), r.rank(b.Kind)),
		cmp.Compare(a.Rank, b.Rank),
		cmp.Compare(a.Draw, b.Draw),
		a.Since.Compare(b.Since),
		cmp.Compare(a.ID, b.ID),
	)
}

// tries reports whether the detour would be taken to measure it.
func (r *round) tries(u *Usable) bool {
	return u.Explores && !slices.ContainsFunc(r.open, func(c Choice) bool { return c.Why.explored })
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
