package chaos

import (
	"context"
	"slices"
	"time"

	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/chaos/twin"
)

// finish ends all traffic in order, then by force.
func (s *sequence) finish(ctx context.Context) {
	s.traffic.Stop()
	began := time.Now()
	for _, p := range s.traffic.Pairs() {
		// A plain connection from an address that the client no longer has never ends.
		if local := p.Plain.Local(); !local.IsValid() || s.w.isClient(local.Addr()) {
			waitFor(ctx, p.Plain, time.Until(began.Add(finishLimit)))
		}
		p.Plain.Abort() // its outcome is final
		<-p.Plain.Ended()
	}
	limit := max(finishLimit, plainShare*time.Since(began))
	for _, p := range s.traffic.Pairs() {
		if p.Plain.Record().Whole { // otherwise nothing is required of the other connection
			waitFor(ctx, p.MPTCP, time.Until(began.Add(limit)))
		}
	}
	s.checkHung(ctx)
	for _, p := range s.traffic.Pairs() {
		p.MPTCP.Abort()
		<-p.MPTCP.Ended()
	}
}

// checkHung checks whether connections that have not ended hang in a kernel.
func (s *sequence) checkHung(ctx context.Context) {
	hung := false
	for _, p := range s.traffic.Pairs() {
		if !p.MPTCP.Record().Ended.IsZero() {
			continue
		}
		hung = true
		held, err := s.inspect.heldByKernel(ctx, p.MPTCP)
		if err != nil {
			s.monitor.fail(err)
		}
		s.held[p.MPTCP] = held
	}
	if hung {
		s.w.explain(ctx, "a connection has not ended")
	}
}

func waitFor(ctx context.Context, c *twin.Conn, limit time.Duration) {
	select {
	case <-c.Ended():
	case <-time.After(limit):
	case <-ctx.Done():
	}
}

// restLimit limits how long the state of connections may outlive them. Waypoints look for
// ended flows every few seconds, and later on a busy machine. A relay's kernel keeps a connection
// that has lost its last subflow for a minute (net.mptcp.close_timeout), in case another comes.
const restLimit = 75 * time.Second

// rest waits until hosts hold no more than before any traffic, at most for restLimit.
func (s *sequence) rest(ctx context.Context) (err error) {
	for began := time.Now(); ; {
		if s.seen.IdleAgain, err = s.holdings(ctx); err != nil {
			return err
		}
		var left Verdict
		left.judgeRest(s.seen)
		if len(left.Grown) == 0 || ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(began) > restLimit {
			s.w.explain(ctx, "more than before any traffic")
			return nil
		}
		pause(ctx, 500*time.Millisecond)
	}
}

// conclude collects the observations of background goroutines.
func (s *sequence) conclude() {
	s.seen.Unauthorised = map[string]int{}
	for _, v := range s.watchers {
		<-v.done
		for _, f := range v.findings {
			if !s.hadNoRules(v.waypoint, f.at) {
				s.seen.Unauthorised[f.why]++
			}
		}
		if most := tooFast(v.syns); most != "" {
			s.injector.excess.add("%s %s", v.waypoint, most)
		}
	}
	for _, p := range s.traffic.Pairs() {
		s.seen.Pairs = append(s.seen.Pairs, PairRecord{p.MPTCP.Record(), p.Plain.Record(), s.held[p.MPTCP]})
	}
	s.seen.Excess, s.seen.Stolen, s.seen.Late = s.injector.excess.lines, s.monitor.rerouted, s.monitor.late
}

// restored limits the time until a waypoint on a busy machine has noticed that its rules
// are gone, and has put them back.
const restored = 10 * time.Second

// hadNoRules reports whether a waypoint had no rules at a moment because a fault had
// flushed them. Without rules its kernel translates and denies nothing.
func (s *sequence) hadNoRules(waypoint string, at time.Time) bool {
	return slices.ContainsFunc(s.seen.Strikes, func(k Strike) bool {
		return k.Fault.Kind == plan.FlushRules && k.Hit == waypoint && at.After(k.Began) && at.Before(k.Ended.Add(restored))
	})
}
