package runner

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/lab/scenario"
)

// Task is a run to be made: a procedure in a variant of a scenario, for the n-th time.
type Task struct {
	Scenario   *scenario.Scenario // with the congestion control of the run
	Variant    scenario.Variant
	Procedure  scenario.Procedure
	Repetition int
	Attempts   int       // so far, those of former sessions too
	Began      time.Time // the latest attempt

	tries    int       // of those that count against maxAttempts
	lost     int       // attempts that failed beside other runs
	notUntil time.Time // the machine rests until then

	lowered int           // how often its governor had lowered the level then
	company bool          // another ran at the same time
	shared  time.Duration // sum over the attempt of the time, multiplied by the number of runs under way
}

// Key returns a text that identifies the task within its experiment.
func (t *Task) Key() Key {
	return Key{t.Scenario.Name, t.Variant.Name, t.Procedure.Name, t.Scenario.Congestion, t.Repetition}
}

// cell identifies the repetitions of one run.
type cell struct{ scenario, variant, procedure, congestion string }

func (t *Task) cell() cell {
	return cell{t.Scenario.Name, t.Variant.Name, t.Procedure.Name, t.Scenario.Congestion}
}

// Log returns the folder, below logs, of the task's present attempt.
func (t *Task) Log() string {
	name := fmt.Sprintf("%s-%s-%s-%d", t.Variant.Name, t.Procedure.Name, t.Scenario.Congestion, t.Repetition)
	if t.Attempts > 1 {
		name += fmt.Sprintf("-again-%d", t.Attempts-1)
	}
	return filepath.Join(t.Scenario.Name, name)
}

// alone reports whether no other task may run at the same time.
func (t *Task) alone() bool { return t.lost >= inCompany }

// Workload returns the workload of the task's runs.
func (t *Task) Workload() scenario.Workload { return t.Scenario.WorkloadIn(t.Variant) }

// Limit returns the allowed lateness of echoes in the task's runs.
func (t *Task) Limit() time.Duration { return echoLimit(t.Workload()) }

// Key identifies a run. A run that belongs to several parts is executed once.
type Key struct {
	scenario, variant, procedure, congestion string
	repetition                               int
}
