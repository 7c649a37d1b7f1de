package experiment

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

// shift is a runner whose runs take ten seconds of virtual time and end as the test
// says.
type shift struct {
	runner
	now, most int                      // runs under way, and the most there ever were
	trying    atomic.Int32             // runs under way, for them to see
	story     []string                 // what was told, in order
	lasts     map[string]time.Duration // a run of, beyond the ten seconds
}

// newShift has these tasks; end says how an attempt at one ends.
func newShift(jobs int, tasks []string, end func(t *task) (report.Run, error)) *shift {
	s := &shift{runner: runner{governors: newGovernors(jobs)}}
	for _, name := range tasks {
		s.todo = append(s.todo, &task{scenario: &scenario.Scenario{Name: "s"}, variant: scenario.Variant{Name: "base"}, procedure: scenario.Procedure{Name: name}, repetition: 1})
	}
	s.attempt = func(ctx context.Context, t *task) (report.Run, error) {
		s.trying.Add(1)
		defer s.trying.Add(-1)
		select {
		case <-time.After(s.lasts[t.procedure.Name] + 10*time.Second):
			return end(t)
		case <-ctx.Done():
			return report.Run{}, ctx.Err()
		}
	}
	s.begun = func(*task) {
		s.now++
		s.most = max(s.most, s.now)
	}
	s.done = func(t *task, run report.Run, again bool) error {
		s.now--
		word := "ok"
		if again {
			word = "again"
		} else if !run.Valid() {
			word = "given up"
		}
		s.story = append(s.story, fmt.Sprintf("%s-%d %s beside %.1f", t.procedure.Name, run.Attempt, word, run.Networks-1))
		return nil
	}
	return s
}

func ok(*task) (report.Run, error) { return report.Run{}, nil }

func TestRunnerKeepsToTheLevel(t *testing.T) {
	for jobs, want := range map[int]time.Duration{1: 60 * time.Second, 3: 20 * time.Second, 9: 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := newShift(jobs, strings.Fields("a b c d e f"), ok)
			began := time.Now()
			if err := s.work(t.Context()); err != nil {
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
		s := newShift(1, strings.Fields("a b c quiet d e"), ok)
		s.todo[3].scenario = &scenario.Scenario{Name: "s", Workload: scenario.Workload{Kind: scenario.Requests}}
		s.governors.under(maxWait).level = 3
		if err := s.work(t.Context()); err != nil {
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
		var s *shift
		s = newShift(2, strings.Fields("heavy a b c d"), func(t *task) (report.Run, error) {
			if t.procedure.Name == "heavy" && s.trying.Load() > 1 {
				return report.Run{Discarded: "late"}, nil
			}
			return ok(t)
		})
		s.lasts = map[string]time.Duration{"a": time.Second, "b": 2 * time.Second, "d": 2 * time.Second}
		if err := s.work(t.Context()); err != nil {
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
		s := newShift(1, strings.Fields("bad a"), func(t *task) (report.Run, error) {
			if t.procedure.Name == "bad" {
				return report.Run{Discarded: "late"}, nil
			}
			return ok(t)
		})
		if err := s.work(t.Context()); err != nil {
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
		s := newShift(2, strings.Fields("broken a b c d e f g h i j"), func(t *task) (report.Run, error) {
			if t.procedure.Name == "broken" {
				return report.Run{}, broken
			}
			return ok(t)
		})
		err := s.work(t.Context())
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), "s: broken in variant base") {
			t.Errorf("error %v", err)
		}
		if len(s.running) != 0 || len(s.todo) == 0 {
			t.Errorf("%d are under way, %d were not made", len(s.running), len(s.todo))
		}
	})
}

// dcol's own failure is not repeated away: it counts, and the others go on.
func TestRunnerCountsDColsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made []report.Run
		tasks := strings.Fields("dcol tcp dcol dcol dcol dcol")
		s := newShift(1, tasks, nil)
		for i := range s.todo {
			s.todo[i].repetition = i + 1
		}
		s.attempt = func(_ context.Context, t *task) (report.Run, error) {
			if t.procedure.Name == "dcol" && t.repetition != 1 {
				return report.Run{}, fmt.Errorf("wrapped: %w", blameDCol(errors.New("panic")))
			}
			return report.Run{}, nil
		}
		done := s.done
		s.done = func(t *task, run report.Run, again bool) error {
			made = append(made, run)
			return done(t, run, again)
		}
		if err := s.work(t.Context()); err != nil {
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
		broken := blameDCol(errors.New("panic"))
		s := newShift(1, strings.Fields("dcol dcol dcol dcol dcol"), func(*task) (report.Run, error) { return report.Run{}, broken })
		if err := s.work(t.Context()); !errors.Is(err, broken) || len(s.story) != maxAttempts {
			t.Errorf("error %v after %q", err, s.story)
		}
	})
}

// What arrives corrupt is not repeated.
func TestRunnerStopsAtCorruption(t *testing.T) {
	for _, corrupt := range []error{ErrCorrupt, blameDCol(ErrCorrupt)} {
		synctest.Test(t, func(t *testing.T) {
			s := newShift(1, []string{"a"}, func(*task) (report.Run, error) { return report.Run{}, corrupt })
			if err := s.work(t.Context()); !errors.Is(err, ErrCorrupt) || len(s.story) != 1 {
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
			s := newShift(2, strings.Fields("a b c d"), ok)
			err := s.work(ctx)
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
		s := newShift(1, []string{"a"}, func(*task) (report.Run, error) { return report.Run{Discarded: "late"}, nil })
		began := time.Now()
		if err := s.work(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 11*time.Second {
			t.Errorf("error %v after %v", err, time.Since(began))
		}
	})
}
