package history

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

const (
	// observeEvery is the time between two observations. keepEvery is the time between two writes, so a power cut loses
	// no more than that.
	observeEvery = 3 * time.Second
	keepEvery    = time.Minute
	// mostPending bounds the minutes that wait until they can be written.
	mostPending = 120
	// mostPeriods bounds the periods in an answer.
	mostPeriods = 3000
)

// File returns the file of the history.
func File(stateDir string) string { return filepath.Join(stateDir, "history.db") }

// Recorder records the agent's history.
type Recorder struct {
	status func(context.Context) (api.Status, error)
	store  *Store // nil: the file could not be opened
	log    *slog.Logger

	mu      sync.Mutex
	pending byMinute // not written yet
	open    byMinute // what transfers that continue have gained, which is not written until it is known
	problem string
}

// NewRecorder returns a Recorder that keeps its file in stateDir. If that is not possible, it logs this and records
// nothing. status is called every observeEvery. Of its answer, the Recorder uses Since, and the client's counters and
// connections on which data moves.
func NewRecorder(stateDir string, status func(context.Context) (api.Status, error), log *slog.Logger) *Recorder {
	r := &Recorder{status: status, log: log}
	err := os.MkdirAll(stateDir, 0o700)
	if err == nil {
		r.store, err = Open(File(stateDir))
	}
	if damaged, ok := errors.AsType[*DamagedError](err); ok {
		log.Error("the history begins anew", "err", damaged)
	} else if err != nil {
		log.Error("no history is kept", "err", err)
		r.problem = err.Error()
	}
	return r
}

// Run records until ctx ends.
func (r *Recorder) Run(ctx context.Context) error {
	if r.store == nil {
		return nil
	}
	var observer Observer
	if left, err := r.store.left(); err == nil {
		observer.Resume(left)
	} // otherwise the history lacks some seconds
	look, keep := time.NewTicker(observeEvery), time.NewTicker(keepEvery)
	defer look.Stop()
	defer keep.Stop()
	for {
		select {
		case <-ctx.Done():
			observer.Settle()
			r.take(&observer)
			r.keep()
			if err := r.store.leave(observer.Leave()); err != nil {
				r.log.Warn("the history will lack some seconds of transfers that go on", "err", err)
			}
			return r.store.Close()
		case now := <-look.C:
			if s, err := r.status(ctx); err == nil {
				observer.Observe(&s, now)
			}
			r.take(&observer)
		case <-keep.C:
			r.keep()
		}
	}
}

// take moves what was observed into pending.
func (r *Recorder) take(o *Observer) {
	seen, open := o.Take(), o.Open()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = open
	for i := range seen {
		merge(r.pending.at(seen[i].Start), &seen[i])
	}
}

// keep writes pending. If that fails, it is tried again with the data that follows.
func (r *Recorder) keep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending) == 0 {
		return
	}
	err := r.store.Add(r.pending...)
	if err == nil {
		r.pending, r.problem = nil, ""
		return
	}
	r.pending.shorten(mostPending)
	if r.problem == "" {
		r.log.Error("the history cannot be written; it is tried again every minute", "err", err)
	}
	r.problem = err.Error()
}

// Problem returns why the history is not written, or "" if it is.
func (r *Recorder) Problem() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problem
}

// History answers a request. The answer includes what has not been written yet.
func (r *Recorder) History(q api.HistoryRequest, now time.Time) (api.History, error) {
	switch q.Step {
	case api.StepMinute, api.StepHour, api.StepDay, api.StepMonth:
	default:
		return api.History{}, fmt.Errorf("%q is not a step: choose minute, hour, day or month", q.Step)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := api.History{Schema: api.HistorySchema, Step: q.Step, Problem: r.problem, Periods: []api.Period{}, Total: api.Period{Paths: []api.PathUsed{}}}
	if q.Until.IsZero() {
		q.Until = now.Add(time.Second)
	}
	var list []api.Period
	since := begin(q.Since.Local(), unit(q.Step))
	if r.store != nil {
		var err error
		if list, err = r.store.Read(q.Step, since, q.Until); err != nil {
			return api.History{}, err
		}
	}
	for _, p := range slices.Concat(r.pending, r.open) {
		if !p.Start.Before(since) && p.Start.Before(q.Until) {
			list = append(list, p)
		}
	}
	slices.SortStableFunc(list, func(a, b api.Period) int { return a.Start.Compare(b.Start) })
	out.Periods = append(out.Periods, group(list, q.Step)...)
	out.Periods = out.Periods[max(len(out.Periods)-mostPeriods, 0):]
	for i := range out.Periods {
		merge(&out.Total, &out.Periods[i])
		if out.Periods[i].Paths == nil { // nothing was carried, which is an empty list in JSON, too
			out.Periods[i].Paths = []api.PathUsed{}
		}
	}
	if len(out.Periods) > 0 {
		out.Total.Start = out.Periods[0].Start
	}
	return out, nil
}
