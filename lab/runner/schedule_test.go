package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

// testRunner is a Runner whose runs take ten seconds of virtual time and end as the test
// says.
type testRunner struct {
	Runner
	now, most int                      // runs under way, and the most there ever were
	trying    atomic.Int32             // runs under way, for them to see
	story     []string                 // what was told, in order
	lasts     map[string]time.Duration // a run of, beyond the ten seconds
}

// newTestRunner has these tasks; end says how an attempt at one ends.
func newTestRunner(jobs int, tasks []string, end func(t *Task) (report.Run, error)) *testRunner {
	s := &testRunner{Runner: Runner{Governors: NewGovernors(jobs)}}
	for _, name := range tasks {
		s.Todo = append(s.Todo, &Task{Scenario: &scenario.Scenario{Name: "s"}, Variant: scenario.Variant{Name: "base"}, Procedure: scenario.Procedure{Name: name}, Repetition: 1})
	}
	s.Attempt = func(ctx context.Context, t *Task) (report.Run, error) {
		s.trying.Add(1)
		defer s.trying.Add(-1)
		select {
		case <-time.After(s.lasts[t.Procedure.Name] + 10*time.Second):
			return end(t)
		case <-ctx.Done():
			return report.Run{}, ctx.Err()
		}
	}
	s.Begun = func(*Task) {
		s.now++
		s.most = max(s.most, s.now)
	}
	s.Done = func(t *Task, run report.Run, again bool) error {
		s.now--
		word := "ok"
		if again {
			word = "again"
		} else if !run.Valid() {
			word = "given up"
		}
		s.story = append(s.story, fmt.Sprintf("%s-%d %s beside %.1f", t.Procedure.Name, run.Attempt, word, run.Networks-1))
		return nil
	}
	return s
}

func ok(*Task) (report.Run, error) { return report.Run{}, nil }

func TestRunnerKeepsToTheLevel(t *testing.T) {
	for jobs, want := range map[int]time.Duration{1: 60 * time.Second, 3: 20 * time.Second, 9: 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := newTestRunner(jobs, strings.Fields("a b c d e f"), ok)
			began := time.Now()
			if err := s.Work(t.Context()); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took != want || s.most != min(jobs, 6) || len(s.story) != 6 {
				t.Errorf("%d at a time: %v and %d at most, want %v; %q", jobs, took, s.most, want, s.story)
			}
		})
	}
}

// Where latencies are measured a run has as little company as it bears, before and after too.
func TestRunnerKeepsLatenciesApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestRunner(1, strings.Fields("a b c quiet d e"), ok)
		s.Todo[3].Scenario = &scenario.Scenario{Name: "s", Workload: scenario.Workload{Kind: scenario.Requests}}
		s.Governors.under(MaxWait).level = 3
		if err := s.Work(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want := "quiet-1 ok beside 0.0"; s.most != 3 || len(s.story) != 6 || s.story[3] != want {
			t.Errorf("%d at most; %q, want fourth %q", s.most, s.story, want)
		}
	})
}

// Who loses fidelity in company tries again when the others have begun, and after two times
// has the machine to itself; that does not use up its attempts.
func TestRunnerGivesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *testRunner
		s = newTestRunner(2, strings.Fields("heavy a b c d"), func(t *Task) (report.Run, error) {
			if t.Procedure.Name == "heavy" && s.trying.Load() > 1 {
				return report.Run{Discarded: "late"}, nil
			}
			return ok(t)
		})
		s.lasts = map[string]time.Duration{"a": time.Second, "b": 2 * time.Second, "d": 2 * time.Second}
		if err := s.Work(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := []string{
			"heavy-1 again beside 1.0", "a-1 ok beside 1.0", "c-1 ok beside 1.0", "b-1 ok beside 1.0",
			"heavy-2 again beside 1.0", "d-1 ok beside 0.9", "heavy-3 ok beside 0.0",
		}
		if !slices.Equal(s.story, want) {
			t.Errorf("%q, want %q", s.story, want)
		}
	})
}

// What is not sound even alone is given up, and missing; the others are made.
func TestRunnerGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestRunner(1, strings.Fields("bad a"), func(t *Task) (report.Run, error) {
			if t.Procedure.Name == "bad" {
				return report.Run{Discarded: "late"}, nil
			}
			return ok(t)
		})
		if err := s.Work(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := "bad-1 again beside 0.0, a-1 ok beside 0.0, bad-2 again beside 0.0, bad-3 given up beside 0.0"
		if got := strings.Join(s.story, ", "); got != want {
			t.Errorf("%s, want %s: the machine rests before a run is repeated, and others use the time", got, want)
		}
	})
}

// A run that fails every time ends the experiment and those under way.
func TestRunnerStopsAtFailure(t *testing.T) {
	broken := errors.New("no such program")
	synctest.Test(t, func(t *testing.T) {
		s := newTestRunner(2, strings.Fields("broken a b c d e f g h i j"), func(t *Task) (report.Run, error) {
			if t.Procedure.Name == "broken" {
				return report.Run{}, broken
			}
			return ok(t)
		})
		err := s.Work(t.Context())
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), "s: broken in variant base") {
			t.Errorf("error %v", err)
		}
		if len(s.running) != 0 || len(s.Todo) == 0 {
			t.Errorf("%d are under way, %d were not made", len(s.running), len(s.Todo))
		}
	})
}

// A run that fails every time is given up, and the others are made, if that is wanted and any run was made at all.
func TestRunnerKeepsGoing(t *testing.T) {
	broken := errors.New("no such program")
	for first, want := range map[string]int{"a": 5, "broken": MaxAttempts} {
		synctest.Test(t, func(t *testing.T) {
			s := newTestRunner(1, []string{first, "broken", "b"}, func(t *Task) (report.Run, error) {
				if t.Procedure.Name == "broken" {
					return report.Run{}, broken
				}
				return ok(t)
			})
			s.KeepGoing = true
			if err := s.Work(t.Context()); (err == nil) != (first == "a") || len(s.story) != want {
				t.Errorf("%s first: error %v after %q, want %d attempts", first, err, s.story, want)
			}
		})
	}
}

// dcol's own failure is not repeated away: it counts, and the others go on.
func TestRunnerCountsDColsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made []report.Run
		tasks := strings.Fields("dcol tcp dcol dcol dcol dcol")
		s := newTestRunner(1, tasks, nil)
		for i := range s.Todo {
			s.Todo[i].Repetition = i + 1
		}
		s.Attempt = func(_ context.Context, t *Task) (report.Run, error) {
			if t.Procedure.Name == "dcol" && t.Repetition != 1 {
				return report.Run{}, fmt.Errorf("wrapped: %w", DColFailed(errors.New("panic")))
			}
			return report.Run{}, nil
		}
		done := s.Done
		s.Done = func(t *Task, run report.Run, again bool) error {
			made = append(made, run)
			return done(t, run, again)
		}
		if err := s.Work(t.Context()); err != nil {
			t.Fatal(err)
		}
		failed := 0
		for _, run := range made {
			if run.Failed() && run.Attempt == 1 && run.Final() && !run.Valid() {
				failed++
			}
		}
		if len(made) != len(tasks) || failed != 4 {
			t.Errorf("%d runs, of which %d failed; want %d and 4", len(made), failed, len(tasks))
		}
	})
}

// What fails every time ends the experiment.
func TestRunnerStopsAtDColsFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := DColFailed(errors.New("panic"))
		s := newTestRunner(1, strings.Fields("dcol dcol dcol dcol dcol"), func(*Task) (report.Run, error) { return report.Run{}, broken })
		if err := s.Work(t.Context()); !errors.Is(err, broken) || len(s.story) != MaxAttempts {
			t.Errorf("error %v after %q", err, s.story)
		}
	})
}

// What arrives corrupt is not repeated.
func TestRunnerStopsAtCorruption(t *testing.T) {
	for _, corrupt := range []error{ErrCorrupt, DColFailed(ErrCorrupt)} {
		synctest.Test(t, func(t *testing.T) {
			s := newTestRunner(1, []string{"a"}, func(*Task) (report.Run, error) { return report.Run{}, corrupt })
			if err := s.Work(t.Context()); !errors.Is(err, ErrCorrupt) || len(s.story) != 1 {
				t.Errorf("error %v after %q", err, s.story)
			}
		})
	}
}

// An interrupt keeps what is done, and nothing of what is not.
func TestRunnerInterrupted(t *testing.T) {
	for _, at := range []time.Duration{5 * time.Second, 15 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), at)
			defer cancel()
			s := newTestRunner(2, strings.Fields("a b c d"), ok)
			err := s.Work(ctx)
			if !errors.Is(err, context.DeadlineExceeded) || len(s.story) != 2*int(at/(10*time.Second)) {
				t.Errorf("after %v: error %v, and %q", at, err, s.story)
			}
		})
	}
}

// It ends at once too while the machine rests.
func TestRunnerInterruptedAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 11*time.Second)
		defer cancel()
		s := newTestRunner(1, []string{"a"}, func(*Task) (report.Run, error) { return report.Run{Discarded: "late"}, nil })
		began := time.Now()
		if err := s.Work(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 11*time.Second {
			t.Errorf("error %v after %v", err, time.Since(began))
		}
	})
}
