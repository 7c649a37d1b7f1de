package experiment

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

// startTimeline starts the events during a workload. The returned function stops them and returns the first
// error.
func (l *Lab) startTimeline(ctx context.Context, began time.Time, events []scenario.Event) (finish func() error) {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b scenario.Event) int { return int(a.At - b.At) })
	life := ctx // agents that events start live until it ends
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	var failed error
	done.Go(func() {
		for _, e := range events {
			if crew.Pause(ctx, time.Until(began.Add(e.At.Std()))) != nil {
				return
			}
			l.opts.Log.Info("event", "at", e.At.Std(), "what", describeEvent(e))
			if err := l.happen(ctx, life, e); err != nil && ctx.Err() == nil {
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

// happen carries out an event. What it starts ends when life ends.
func (l *Lab) happen(ctx, life context.Context, e scenario.Event) error {
	switch {
	case e.Kill != "":
		// As in a power cut, the programs end and the links carry nothing. The network then differs from the declared
		// one.
		l.agents.kill(e.Kill)
		return l.net.cutOff(e.Kill)
	case e.Agent != "":
		return l.agents.act(life, e.Host, e.Agent)
	case e.DropTCP != nil:
		return l.net.dropTCP(e.Host, *e.DropTCP)
	case e.Renumber != "":
		return l.net.renumber(ctx, e)
	}
	if e.Shape != (scenario.Shape{}) {
		if err := l.net.changeLink(e.Change); err != nil {
			return err
		}
	}
	if e.Down != nil {
		return l.net.setDown(e.Link, *e.Down)
	}
	return nil
}

func describeEvent(e scenario.Event) string {
	switch {
	case e.Kill != "":
		return e.Kill + " killed"
	case e.Agent != "":
		return "agent of " + e.Host + ": " + string(e.Agent)
	case e.DropTCP != nil && *e.DropTCP:
		return e.Host + " drops TCP"
	case e.DropTCP != nil:
		return e.Host + " forwards TCP again"
	case e.Renumber != "":
		return e.Host + " renumbered"
	case e.Down != nil && *e.Down:
		return "link " + e.Link + " down"
	case e.Down != nil:
		return "link " + e.Link + " up"
	default:
		return "link " + e.Link + " changed"
	}
}

// Marks returns the events as moments of a chart.
func Marks(events []scenario.Event) []report.Mark {
	marks := make([]report.Mark, len(events))
	for i, e := range events {
		marks[i] = report.Mark{Seconds: e.At.Seconds(), Label: describeEvent(e)}
	}
	return marks
}
