package experiment

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

// startTimeline makes the events happen while a workload runs. The returned
// function ends it and says what went wrong.
func (l *Lab) startTimeline(ctx context.Context, began time.Time, events []scenario.Event) (finish func() error) {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b scenario.Event) int { return int(a.At - b.At) })
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	var failed error
	done.Go(func() {
		for _, e := range events {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Until(began.Add(e.At.Std()))):
			}
			l.log.Info("event", "at", e.At.Std(), "what", describeEvent(e))
			if err := l.happen(e); err != nil {
				failed = fmt.Errorf("event at %v, %s: %w", e.At, describeEvent(e), err)
				return
			}
		}
	})
	return func() error {
		cancel()
		done.Wait()
		return failed
	}
}

func (l *Lab) happen(e scenario.Event) error {
	if e.Kill != "" {
		return l.killHost(e.Kill)
	}
	if e.Shape != (scenario.Shape{}) {
		if err := l.ChangeLink(e.Change); err != nil {
			return err
		}
	}
	if e.Down != nil {
		return l.LinkDown(e.Link, *e.Down)
	}
	return nil
}

func describeEvent(e scenario.Event) string {
	switch {
	case e.Kill != "":
		return e.Kill + " killed"
	case e.Down != nil && *e.Down:
		return "link " + e.Link + " down"
	case e.Down != nil:
		return "link " + e.Link + " up"
	default:
		return "link " + e.Link + " changed"
	}
}

// Marks are the events as moments of a chart.
func Marks(events []scenario.Event) []report.Mark {
	marks := make([]report.Mark, len(events))
	for i, e := range events {
		marks[i] = report.Mark{Seconds: e.At.Seconds(), Label: describeEvent(e)}
	}
	return marks
}
