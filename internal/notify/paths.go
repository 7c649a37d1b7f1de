package notify

import (
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// takeDirect notices when the direct path is lost, and when it works again. It is lost if the agent says so, or if there
// are connections and none has a direct subflow any more. Without detours they would have ended. If nothing shows whether
// it works, nothing changes.
func (w *Watcher) takeDirect(u *api.Using, now time.Time) []Notice {
	rescued, direct := countDirect(u.Connections)
	lost := u.Direct.IsLost() || direct == 0 && rescued > 0
	if !lost && !u.Direct.Works() && (w.direct.told || rescued+direct == 0) {
		return nil
	}
	if !w.begun {
		w.direct.told = lost
	}
	since := now
	if u.Direct.IsLost() {
		since, rescued = u.Direct.Since, max(rescued, u.Direct.Connections)
	}
	switch bad, good := w.direct.turnSince(lost, since, now); {
	case bad:
		return []Notice{{PathLost, fmt.Sprintf("the direct path is lost: %s over detours alone", continues(rescued))}}
	case good:
		return []Notice{{PathBack, "the direct path works again"}}
	}
	return nil
}

// countDirect counts the connections that continue over detours alone, and those that have a direct subflow.
func countDirect(all []api.Connection) (rescued, direct int) {
	for i := range all {
		detours, has := 0, false
		for j := range all[i].Subflows {
			switch s := &all[i].Subflows[j]; {
			case s.Waypoint != "":
				detours++
			case s.State != api.SubflowJoining && s.State != api.SubflowSilent:
				has = true
			}
		}
		switch {
		case has:
			direct++
		case detours > 0:
			rescued++
		}
	}
	return rescued, direct
}

func continues(connections int) string {
	if connections == 1 {
		return "1 connection continues"
	}
	return fmt.Sprintf("%d connections continue", connections)
}

// takeBudgets notices when the use of a budget reaches one of the shares. Each share causes one notice a month.
func (w *Watcher) takeBudgets(all []api.Budget) (list []Notice) {
	if w.budgets == nil {
		w.budgets = make(map[string]spending)
	}
	for _, b := range all {
		if b.Limit == 0 {
			continue
		}
		key := b.Scope + " " + b.Waypoint
		known, used := w.budgets[key], b.Used*100/b.Limit
		if known.reaches(used, b.Limit, b.Renews) && w.begun {
			list = append(list, Notice{BudgetNear, fmt.Sprintf("%d %% of the month's budget (%s) is used; it begins anew on %s",
				used, budgetName(b), b.Renews.Local().Format(time.DateOnly))})
		}
		w.budgets[key] = known
	}
	return list
}

// budgetName returns the key of the configuration that sets the budget.
func budgetName(b api.Budget) string {
	name := "client.budget." + b.Scope
	if b.Waypoint != "" {
		name += ", " + b.Waypoint
	}
	return name
}

// spending records the largest share of a quota or budget for which there was a notice, in percent, its limit, and when
// it renews.
type spending struct {
	renews time.Time
	limit  uint64
	share  uint64
}

// reaches reports whether used, in percent of limit, has reached a share that had no notice this month. If the limit
// was raised, shares of the new limit may cause notices again.
func (s *spending) reaches(used, limit uint64, renews time.Time) bool {
	reached := uint64(0)
	for _, share := range shares {
		if used >= share {
			reached = share
		}
	}
	before := s.share
	switch {
	case !renews.Equal(s.renews):
		before = 0
	case limit > s.limit:
		before = min(before, reached)
	}
	*s = spending{renews, limit, max(before, reached)}
	return reached > before
}
