package client

import (
	"bytes"
	"log/slog"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/path/budget"
)

// budgeting returns the file of a client with budgets, and what it logs.
func budgeting(t *testing.T) (*stateFile, *bytes.Buffer) {
	t.Helper()
	var logged bytes.Buffer
	settings := &config.Config{StateDir: t.TempDir(), Client: config.Client{Budget: config.Budget{Total: 5}}}
	f := newBudgetFile(settings, slog.New(slog.NewTextHandler(&logged, nil)))
	return &f, &logged
}

func TestBudgetIsKept(t *testing.T) {
	f, logged := budgeting(t)
	if got := readBudget(f); got != nil || logged.Len() > 0 {
		t.Errorf("without a file: %v, %s", got, logged)
	}
	want := map[budget.Month]budget.Use{
		"2026-05": {Total: 1 << 60, Metered: 7, Waypoints: map[string]uint64{"bob": 12}},
		"2026-06": {},
	}
	if err := f.write(budgetForm{budgetVersion, want}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, readBudget(f)); d != "" || logged.Len() > 0 {
		t.Errorf("read back (-want +is)\n%s%s", d, logged)
	}
}

func TestDamagedBudget(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "cut short": `{"version": 1, "mon`, "of another version": `{"version": 2, "months": {}}`,
		"a month that is none": `{"version": 1, "months": {"may": {"total": 1}}}`,
		"negative":             `{"version": 1, "months": {"2026-05": {"total": -1}}}`,
		"an unknown key":       `{"version": 1, "months": {}, "more": 1}`,
	} {
		t.Run(name, func(t *testing.T) {
			f, logged := budgeting(t)
			if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := readBudget(f); len(got) > 0 {
				t.Errorf("it reads %v", maps.Collect(maps.All(got)))
			}
			if kept, err := os.ReadFile(damaged(f.path)); err != nil || string(kept) != text || !strings.Contains(logged.String(), "set aside") {
				t.Errorf("kept %q, %v, logged %s", kept, err, logged)
			}
		})
	}
}

// Without budgets there is no file.
func TestNoBudget(t *testing.T) {
	f := newBudgetFile(&config.Config{StateDir: t.TempDir()}, slog.New(slog.DiscardHandler))
	if f.path != "" || readBudget(&f) != nil {
		t.Errorf("the file is %s", f.path)
	}
}

func TestBudgetProblems(t *testing.T) {
	list := []budget.Standing{{Scope: budget.Total, Used: 9, Limit: 10}, {Scope: budget.Waypoint, Waypoint: "bob", Used: 2e9, Limit: 2e9}}
	problems := budgetProblems(list)
	if len(problems) != 1 || !strings.Contains(problems[0], "this month's 2 GB through bob are used up (client.budget.waypoint)") {
		t.Errorf("%q", problems)
	}
}
