package client

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/budget"
)

const (
	// saveBudgetEvery bounds how much an agent that is killed does not count.
	saveBudgetEvery = 20 * time.Second
	// budgetVersion is the version of the file's format.
	budgetVersion = 1
)

// budgetPath returns the name of the file that keeps the used parts of the budgets.
func budgetPath(stateDir string) string { return filepath.Join(stateDir, "client-budget.json") }

// budgetForm is the form of the file.
type budgetForm struct {
	Version int                         `json:"version"`
	Months  map[budget.Month]budget.Use `json:"months"`
}

// newBudgetFile returns a file that keeps nothing if the operator has set no budget.
func newBudgetFile(settings *config.Config, log *slog.Logger) stateFile {
	f := stateFile{
		every: saveBudgetEvery, log: log,
		damage:  "the use of the budgets of detours counts from zero",
		unsaved: "after a restart, less of the budgets of detours counts as used",
	}
	if !limitsOf(settings.Client.Budget).None() {
		f.path = budgetPath(settings.StateDir)
	}
	return f
}

func limitsOf(b config.Budget) budget.Limits {
	return budget.Limits{Total: uint64(b.Total), Waypoint: uint64(b.Waypoint), Metered: uint64(b.Metered)}
}

// readBudget returns what earlier agents used, by month; nil if nothing is known.
func readBudget(f *stateFile) (months map[budget.Month]budget.Use) {
	f.read(func(data []byte) (err error) {
		months, err = parseBudget(data)
		return err
	})
	return months
}

func parseBudget(data []byte) (map[budget.Month]budget.Use, error) {
	var form budgetForm
	if err := parseStrictly(data, &form); err != nil {
		return nil, err
	}
	if form.Version != budgetVersion {
		return nil, fmt.Errorf("its version is %d, not %d", form.Version, budgetVersion)
	}
	for month := range form.Months {
		if _, err := time.Parse("2006-01", string(month)); err != nil {
			return nil, fmt.Errorf("%q is not a month", month)
		}
	}
	return form.Months, nil
}

// describeBudgets describes the limits that are set.
func describeBudgets(list []budget.Standing) (out []api.Budget) {
	for _, s := range list {
		out = append(out, api.Budget{
			Scope: s.Scope.String(), Waypoint: s.Waypoint, Used: s.Used, Limit: s.Limit, Level: s.Level().String(), Renews: s.Renews,
		})
	}
	return out
}

// budgetProblems returns, for the status, which budgets are used up, and how to fix that.
func budgetProblems(list []budget.Standing) (problems []string) {
	for _, s := range list {
		if s.Level() == budget.Spent {
			problems = append(problems, path.SpentWords(s)+": connections keep to what is left to them until "+
				s.Renews.Format("2 Jan 15:04")+"; raise the budget and restart the agent, or wait")
		}
	}
	return problems
}
