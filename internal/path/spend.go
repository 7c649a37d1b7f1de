package path

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/path/budget"
)

// This file keeps connections within the operator's budgets of bytes through waypoints.
//
//   - When four fifths of a waypoint's budget are used, other waypoints are taken first.
//   - When a budget is used up, no further subflow takes its detours until the next month. Established ones become
//     backups, so that no connection breaks. The direct path carries.
//
// Samples come a second apart, so a budget may be exceeded by what subflows carry in a second.

// account names the budgets and tallies that a subflow's bytes count for.
type account struct {
	carrier
	metered bool
}

// accountOf returns the account of a connection's subflow. known is false if its path is not known.
func (m *Manager) accountOf(c *conn, s *subflow) (a account, known bool) {
	a.carrier, known = carrierOf(s)
	a.metered = m.host.isMetered(s.local.Addr(), c)
	return a, known
}

// count adds what was carried to an account.
func (m *Manager) count(a account, received, sent uint64) {
	m.tally.add(a.carrier, received, sent)
	if a.waypoint != "" && m.detours.budget.Add(a.waypoint, a.metered, received+sent) {
		m.levels = true
	}
}

// followBudgets brings all connections up to date after the level of a budget changed.
func (m *Manager) followBudgets() {
	m.levels = false
	for _, c := range m.conns.all() {
		m.conns.stepAgain(c.token)
	}
}

// isMetered reports whether a subflow from the address local uses a metered interface. A subflow in a tunnel uses the
// interface of its connection.
func (h *hostAddrs) isMetered(local netip.Addr, c *conn) bool {
	if len(h.metered) == 0 {
		return false
	}
	if !local.IsValid() || h.tunnels[local] {
		local = c.local.Addr()
	}
	if local.IsValid() {
		return slices.Contains(h.metered, local)
	}
	is := func(a netip.Addr) bool { return a.Is4() == c.server.Addr().Is4() && !h.tunnels[a] } // as routing may choose
	return slices.ContainsFunc(h.addrs, is) &&
		!slices.ContainsFunc(h.addrs, func(a netip.Addr) bool { return is(a) && !slices.Contains(h.metered, a) })
}

// budgetOf returns the most used of the budgets that apply to a detour of the connection.
func (k *detours) budgetOf(t turn, d *Detour) budget.Standing {
	if !k.budget.Limited() {
		return budget.Standing{}
	}
	return k.budget.Of(d.Waypoint, t.host.isMetered(d.Local, t.conn))
}

// SpentError is the reason for not using a detour whose budget is used up.
type SpentError struct{ budget.Standing }

func (e SpentError) Error() string { return SpentWords(e.Standing) }

// SpentWords returns a sentence that names a budget that is used up.
func SpentWords(s budget.Standing) string {
	amount := amountWords(s.Limit)
	switch s.Scope {
	case budget.Waypoint:
		return fmt.Sprintf("this month's %s through %s are used up (client.budget.waypoint)", amount, s.Waypoint)
	case budget.Metered:
		return fmt.Sprintf("this month's %s for detours from metered interfaces are used up (client.budget.metered)", amount)
	default:
		return fmt.Sprintf("this month's %s for detours are used up (client.budget.total)", amount)
	}
}

// spentBudget returns, for a detour, a sentence that names the budget that is or was used up.
func spentBudget(scope budget.Scope, verb string) string {
	of := "detours"
	switch scope {
	case budget.Waypoint:
		of = "its waypoint"
	case budget.Metered:
		of = "detours from metered interfaces"
	default:
	}
	return fmt.Sprintf("this month's budget for %s %s used up (client.budget.%v)", of, verb, scope)
}

// amountWords returns an amount of bytes in a unit in which it is easy to read.
func amountWords(bytes uint64) string {
	amount, unit := float64(bytes), "B"
	for _, u := range [...]string{"kB", "MB", "GB", "TB"} {
		if amount < 1000 {
			break
		}
		amount, unit = amount/1000, u
	}
	return fmt.Sprintf("%.4g %s", amount, unit)
}

// isSpent reports whether the subflow is set aside because its budget is used up.
func (s *subflow) isSpent() bool { return s.isAside(spent) }

// keepBudgets sets those detours of a connection aside whose budget is used up, and lets them carry again when there
// is a new budget.
func (m *Manager) keepBudgets(t turn) {
	if !m.detours.budget.Limited() {
		return
	}
	for _, s := range t.subflows {
		if s.detour == nil || !s.up {
			continue
		}
		most := m.detours.budgetOf(t, s.detour)
		over := most.Level() == budget.Spent
		switch {
		case over && !s.isSpent() && t.handOver(s, t.isLive):
			if s.aside == nil {
				s.aside = &aside{}
			}
			s.aside.cause, s.aside.scope, s.aside.since = spent, most.Scope, t.now
			if !s.backup {
				t.setBackup(s, true)
				t.departsAside(s)
			}
		case over && s.isSpent():
			s.aside.scope = most.Scope
		case !over && s.isSpent() && !t.open():
			s.aside.cause = notAside // the subflow still waits for the server's first data
		case !over && s.isSpent():
			t.carryAgain(s)
		}
	}
}

// spentFor returns a budget that is used up, and without which a detour would lead to the connection's server. It returns one
// that is not used up if there is none.
func (m *Manager) spentFor(t turn) budget.Standing {
	for o := range m.detours.leading(t.server) {
		if s := m.detours.budgetOf(t, &o.Detour); s.Level() == budget.Spent {
			return s
		}
	}
	return m.detours.budgetOf(t, &Detour{})
}

// allSpent reports whether the budget for all waypoints is used up, so that none need be asked.
func (m *Manager) allSpent(t turn) bool {
	return m.detours.budgetOf(t, &Detour{}).Level() == budget.Spent
}

// Budgets lists the limits that are set, and what is used of them.
func (m *Manager) Budgets() []budget.Standing { return m.detours.budget.Standings() }

// Used returns what is used of the budgets in each month, to be kept for the next Manager.
func (m *Manager) Used() map[budget.Month]budget.Use { return m.detours.budget.Used() }
