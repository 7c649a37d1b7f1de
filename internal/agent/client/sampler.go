package client

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/path"
)

const sampleEvery = time.Second

// sampler reads subflows' counters for the path manager: each second those of all subflows, more often those of
// connections that a broken detour could hold up, and those of a single subflow on request.
type sampler struct {
	log       *slog.Logger
	kernel    mptcp.Kernel
	prober    prober        // nil: detours cannot be probed
	part      []path.Sample // of a complete sample; its memory is reused
	watched   watched
	pace      pace
	checksums uint64 // errors, as last read
}

// watched holds a part of the samples of the closely sampled connections. Its memory is reused.
type watched struct {
	path.Measured
	gone []path.SubflowMissing
}

// events returns the samples as events.
func (w *watched) events() []path.Event {
	events := []path.Event{w.Measured}
	for _, gone := range w.gone {
		events = append(events, gone)
	}
	return events
}

// sample gives the path manager all subflows' counters, does the other work of each second, and returns the time until it is
// due again.
func (c *Client) sample(ctx context.Context, now time.Time) time.Duration {
	c.saveState(ctx, now)
	c.exchangeClaims(ctx, now)
	c.tunnels.checkGuard()
	c.host.checkPathManager()
	for v, w := range c.roster.sessions {
		c.measuredWaypoint(v, w.Measured())
	}
	c.offerUplinks()
	if err := c.sampleAll(ctx, now); err != nil {
		c.log.Warn("subflows cannot be measured", "err", err)
		return sampleEvery
	}
	return max(sampleEvery, sampleShare*time.Since(now))
}

// sampleAll gives the path manager all subflows' counters, in parts. It carries out the actions afterwards, because most of
// them need the kernel, which is busy with the list until then.
func (c *Client) sampleAll(ctx context.Context, now time.Time) error {
	var actions []path.Action
	var concerned []path.Sample // path servers may be asked about their connections
	err := c.sampler.all(func(part path.Measured) {
		concerned = append(concerned, c.ports.Concerned(part.Samples)...)
		actions = append(actions, c.manager.Handle(part, now)...)
	})
	if err != nil {
		return err
	}
	c.askPathServers(ctx, concerned, now)
	for _, a := range actions {
		c.carryOut(ctx, a, now)
	}
	c.decide(ctx, now)
	return nil
}

// sampleWatched performs a round of close samples: it gives the path manager the counters of connections that the manager
// watches, in parts. It returns the time until the next round is due. A connection costs one look-up, and one more for each
// of its subflows.
func (c *Client) sampleWatched(ctx context.Context, now time.Time) time.Duration {
	measured, sampled := false, 0
	for token, subflows := range c.manager.Watched(now, c.sampler.pace.room()) {
		sampled++
		if len(c.sampler.watched.Progress) == partSize {
			c.takeWatched(ctx, true, now)
		}
		if c.sampler.watch(&c.sampler.watched, token, subflows) && !measured {
			measured = true
			c.measureSessions(now)
		}
	}
	if !measured {
		return watchEvery
	}
	c.takeWatched(ctx, false, now)
	return c.sampler.pace.next(time.Since(now), sampled)
}

// takeWatched gives the path manager a part of the watched connections' counters. More is as in path.Measured.
func (c *Client) takeWatched(ctx context.Context, more bool, now time.Time) {
	w := &c.sampler.watched
	w.More = more
	c.backlog = append(c.backlog, w.events()...)
	c.decide(ctx, now)
	w.Samples, w.Progress, w.gone = w.Samples[:0], w.Progress[:0], w.gone[:0]
}

// measureSessions gives the path manager the sessions' round trips and begins to measure them again, if it wants that now.
func (c *Client) measureSessions(now time.Time) {
	if c.manager.MeasuresSessions(now) {
		c.pingSessions()
	}
}

// pingSessions gives the path manager the sessions' round trips and begins to measure them again.
func (c *Client) pingSessions() {
	for v, w := range c.roster.sessions {
		c.measuredWaypoint(v, w.Measured())
		w.Ping()
	}
}

// partSize is the number of samples that are kept at a time, or of connections that are sampled closely.
const partSize = 256

// all reads the counters of all subflows that this host's programs opened, and calls yield for each part. The kernel cannot be
// asked for anything else meanwhile.
func (s *sampler) all(yield func(path.Measured)) error {
	s.part = s.part[:0]
	part := path.Measured{Complete: true, More: true, ChecksumErrors: s.checksumErrors()}
	take := func() {
		part.Samples = s.part
		yield(part)
		part.Continues, s.part = true, s.part[:0]
	}
	err := s.kernel.Subflows(func(subflow *mptcp.Subflow) bool {
		if subflow.ServerSide {
			return true
		}
		if len(s.part) == partSize {
			take()
		}
		s.part = append(s.part, sampleOf(subflow))
		return true
	})
	if err != nil {
		return err
	}
	part.More = false
	take()
	return nil
}

// watch adds the counters of one connection to w. First it reads up to which point the connection's data has arrived in order.
// So the subflows' counters, which it reads afterwards, are not older. It returns false if there is no such connection.
func (s *sampler) watch(w *watched, token path.Token, subflows []path.Ends) bool {
	progress, err := s.kernel.Progress(uint32(token))
	if err != nil {
		return false // it ended, and its event is on the way
	}
	for _, ends := range subflows {
		switch subflow, err := s.kernel.Subflow(ends.Local, ends.Remote); {
		case err == nil:
			w.Samples = append(w.Samples, sampleOf(&subflow))
		case errors.Is(err, mptcp.ErrNoSubflow):
			w.gone = append(w.gone, s.missing(token, ends.Local, ends.Remote))
		}
	}
	w.Progress = append(w.Progress, path.Progress{Token: token, Received: progress.Received, Acked: progress.Acked, SendFull: progress.SendFull})
	return true
}

// measure reads one subflow.
func (s *sampler) measure(a path.Measure) []path.Event {
	switch subflow, err := s.kernel.Subflow(a.Local, a.Remote); {
	case err == nil:
		return []path.Event{path.Measured{Samples: []path.Sample{sampleOf(&subflow)}}}
	case errors.Is(err, mptcp.ErrNoSubflow):
		return []path.Event{s.missing(a.Token, a.Local, a.Remote)}
	}
	return nil
}

func (s *sampler) missing(token path.Token, local, remote netip.AddrPort) path.SubflowMissing {
	return path.SubflowMissing{Token: token, Local: local, Remote: remote, ChecksumErrors: s.checksumErrors()}
}

// checksumErrors returns the kernel's count, or the last one that was read if it cannot be read now.
func (s *sampler) checksumErrors() uint64 {
	n, err := s.kernel.ChecksumErrors()
	if err != nil {
		s.log.Debug("checksum errors cannot be counted", "err", err)
		return s.checksums
	}
	s.checksums = n
	return n
}

func sampleOf(s *mptcp.Subflow) path.Sample {
	m := &s.Metrics
	return path.Sample{
		Token: path.Token(s.Token), Local: s.Local, Remote: s.Remote,
		BytesReceived: m.BytesReceived, BytesAcked: m.BytesAcked, BytesSacked: m.BytesSacked(),
		Unacked: int(m.Unacked), Backoff: int(m.Backoff), Probes: int(m.Probes),
		MinRTT: m.MinRTT, RTT: m.RTT, ReceiverRTT: m.ReceiverRTT,
		DataSegsOut: m.DataSegsOut, Retransmitted: m.TotalRetrans, Needless: m.NeedlessSent, Limited: m.NotSent > 0 || m.Unacked >= m.SndCwnd,
		SegsIn: uint64(m.SegsIn), DataSegsIn: uint64(m.DataSegsIn), OutOfOrder: uint64(m.OutOfOrder), Gap: m.Gap,
		LastData: m.LastDataRecv, LastAnswer: m.LastAckRecv, LastSent: m.LastDataSent, DataEnd: m.DataEnd, ECN: m.ECN, Timestamps: m.Timestamps,
	}
}

// prober sends keep-alive probes on single subflows. It is *keepalive.Prober.
type prober interface {
	// Begin and End take effect with the next segment that the subflow sends.
	Begin(local, remote netip.AddrPort) error
	End(local, remote netip.AddrPort) error
}

// probe begins or ends probes on a subflow. The prober acts with the next segment that the subflow sends,
// so probe causes one: it announces the priority that the subflow already has.
func (s *sampler) probe(a path.Probe) error {
	if s.prober == nil {
		return nil
	}
	change := s.prober.Begin
	if !a.On {
		change = s.prober.End
	}
	if err := change(a.Local, a.Remote); err != nil {
		return err
	}
	return s.kernel.SetBackup(uint32(a.Token), a.Local, a.Remote, a.Backup)
}
