package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/detour-collective/dcol/lab/chaos/twin"
)

// settled is the age from which a connection should have all its paths.
const settled = 2 * time.Second

// living returns the MPTCP connections that must have two paths. exempt counts the other
// ones that are alive, by reason. A connection is exempt if its twin ended: whatever ended
// the twin, such as a new address or a NAT that forgot it, may have left dead subflows that
// take the places of others at the server.
func (s *sequence) living() (conns []*twin.Conn, exempt map[string]int) {
	exempt = map[string]int{}
	for _, p := range s.traffic.Pairs() {
		switch {
		case !p.MPTCP.Alive():
		case !p.Plain.Alive():
			exempt["the twin ended"]++
		case !s.w.isClient(p.Plain.Local().Addr()):
			exempt["older than the client's address"]++
		case time.Since(p.MPTCP.Record().Began) <= settled:
			exempt["just began"]++
		default:
			conns = append(conns, p.MPTCP)
		}
	}
	return conns, exempt
}

// recover waits until each living connection has two paths. Then it cuts the direct path, to see which connections have
// another path that works: they go on.
func (s *sequence) recover(ctx context.Context) error {
	over := time.Now()
	for {
		if err := s.countPaths(); err != nil {
			return err
		}
		if len(s.seen.Lacking) == 0 {
			s.seen.Recovered = time.Since(over)
			break
		}
		if time.Since(over) > recoverLimit || ctx.Err() != nil {
			s.w.explain(ctx, "fewer than two paths")
			return ctx.Err()
		}
		pause(ctx, 250*time.Millisecond)
	}
	pause(ctx, time.Until(over.Add(recoverLimit/2))) // for what is being retransmitted
	return s.cut(ctx)
}

// countPaths records which living connections lack a second path, and which need none.
func (s *sequence) countPaths() error {
	conns, exempt := s.living()
	paths, err := s.paths(conns)
	if err != nil {
		return err
	}
	s.seen.Lacking, s.seen.Exempt = nil, exempt
	for _, p := range paths {
		switch {
		case p.lacking():
			s.seen.Lacking = append(s.seen.Lacking, p)
		case p.Excused != "":
			exempt[p.Excused]++
		case len(p.Idle) > 0:
			exempt["has an idle path that is dead"]++
		}
	}
	return nil
}

const (
	// cutLimit limits how long a connection may stand still when the direct path dies.
	cutLimit = 8 * time.Second
	// moving is the number of bytes that shows that a connection goes on. Both directions of the path
	// that was cut are dead, so no bytes arrive from there.
	moving = 10_000
)

// cut takes the direct path down for a while, and records which connections stand still.
func (s *sequence) cut(ctx context.Context) (err error) {
	conns, _ := s.living()
	paths, err := s.paths(conns)
	if err != nil {
		return err
	}
	if err := s.w.LinkDown(directLink, true); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.w.LinkDown(directLink, false)) }()
	pause(ctx, 200*time.Millisecond) // until packets behind the link have arrived
	had := map[*twin.Conn]int64{}
	for i, c := range conns {
		if paths[i].moves() {
			had[c] = c.Received()
		}
	}
	awaitProgress(ctx, had)
	if len(had) > 0 {
		s.w.explain(ctx, "no progress without the direct path")
	}
	for c := range had {
		if err := s.blameStill(ctx, c); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// awaitProgress waits until all connections have received more than the given number of bytes, at most for cutLimit. It
// removes those that have, and those that have ended.
func awaitProgress(ctx context.Context, had map[*twin.Conn]int64) {
	for began := time.Now(); len(had) > 0 && ctx.Err() == nil; pause(ctx, 100*time.Millisecond) {
		for c, n := range had {
			if c.Received() > n+moving || !c.Alive() {
				delete(had, c)
			}
		}
		if time.Since(began) > cutLimit {
			break
		}
	}
}

// blameStill records a connection that stood still, by what held it up.
func (s *sequence) blameStill(ctx context.Context, c *twin.Conn) error {
	held, err := s.inspect.heldByKernel(ctx, c)
	if err != nil {
		return err
	}
	r := c.Record()
	what := fmt.Sprintf("%s from %v", r.Stream.Kind, r.Local)
	gone, err := s.inspect.droppedByServer(c)
	switch {
	case err != nil:
		return err
	case held:
		s.seen.HeldStill = append(s.seen.HeldStill, what)
	case gone:
		s.seen.Exempt["the server had dropped its idle path"]++
	default:
		s.seen.Still = append(s.seen.Still, what)
	}
	return nil
}
