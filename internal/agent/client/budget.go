package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/budget"
)

const (
	// saveBudgetEvery bounds how much an agent that is killed does not count.
	saveBudgetEvery = 20 * time.Second
	// budgetVersion is the version of the file's format.
	budgetVersion = 1
)

// BudgetFile is the file that keeps what is used of the budgets.
func BudgetFile(stateDir string) string { return filepath.Join(stateDir, "client-budget.json") }

// budgetFile keeps what is used of the budgets. Only the client's loop uses it.
type budgetFile struct {
	path string // empty: there are no budgets
	log  *slog.Logger
	last []byte // as written
	saving
}

// budgetForm is the form of the file.
type budgetForm struct {
	Version int                         `json:"version"`
	Months  map[budget.Month]budget.Use `json:"months"`
}

func newBudgetFile(settings *config.Config, log *slog.Logger) budgetFile {
	f := budgetFile{log: log}
	if !limitsOf(settings.Client.Budget).None() {
		f.path = BudgetFile(settings.StateDir)
	}
	return f
}

func limitsOf(b config.Budget) budget.Limits {
	return budget.Limits{Total: uint64(b.Total), Waypoint: uint64(b.Waypoint), Metered: uint64(b.Metered)}
}

// read returns what is in the file. A file that cannot be understood is set aside, and the month begins anew.
func (f *budgetFile) read() map[budget.Month]budget.Use {
	if f.path == "" {
		return nil
	}
	data, err := readBounded(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var months map[budget.Month]budget.Use
	if err == nil {
		months, err = parseBudget(data)
	}
	if err != nil {
		aside := damaged(f.path)
		moved := os.Rename(f.path, aside)
		f.log.Warn("what was used of the budgets of detours is forgotten, and counts from zero: the file is damaged, and was set aside; "+
			"delete it if nobody wants to look at it", "file", aside, "err", errors.Join(err, moved))
		return nil
	}
	return months
}

func parseBudget(data []byte) (map[budget.Month]budget.Use, error) {
	var form budgetForm
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&form); err != nil {
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

func budgetData(used map[budget.Month]budget.Use) ([]byte, error) {
	data, err := json.MarshalIndent(budgetForm{budgetVersion, used}, "", "\t")
	return append(data, '\n'), err
}

// saveBudget saves what is used of the budgets, if that is due and there is anything new.
func (c *Client) saveBudget(ctx context.Context, now time.Time) {
	f := &c.budget
	if f.path == "" || !f.due(now, saveBudgetEvery) {
		return
	}
	data, err := budgetData(c.manager.Used())
	if err != nil || bytes.Equal(data, f.last) {
		f.ended(err)
		return
	}
	f.last = data
	c.requests.Go(func() {
		err := durable.Replace(f.path, data, 0o600)
		c.post(ctx, func(time.Time) { f.ended(err) })
	})
}

// ended records the result of a write. A failure is logged once.
func (f *budgetFile) ended(err error) {
	if err != nil {
		f.last = nil
	}
	if f.saving.ended(err) {
		f.log.Warn("what is used of the budgets of detours cannot be saved; after a restart, less of them counts as used", "file", f.path, "err", err)
	}
}

// saveLast saves what is used of the budgets when the loop has ended.
func (f *budgetFile) saveLast(used map[budget.Month]budget.Use) {
	if f.path == "" {
		return
	}
	data, err := budgetData(used)
	if err == nil {
		err = durable.Replace(f.path, data, 0o600)
	}
	f.ended(err)
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

// budgetProblems returns, for the status, which budgets are used up, and how to mend that.
func budgetProblems(list []budget.Standing) (problems []string) {
	for _, s := range list {
		if s.Level() == budget.Spent {
			problems = append(problems, path.SpentWords(s)+": connections keep to what is left to them until "+
				s.Renews.Format("2 Jan 15:04")+"; raise the budget and restart the agent, or wait")
		}
	}
	return problems
}
