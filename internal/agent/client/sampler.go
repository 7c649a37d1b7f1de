package agent

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/path"
)

// What the kernel tells about subflows, for the path manager: each second of all
// (meter.go), more often of those on which a broken detour could be found out, and of
// one when it asks.

// watchEvery is short beside the silence that makes a detour suspect.
const watchEvery = 100 * time.Millisecond

// watched is what was read of the connections that are watched, in the same memory every
// time.
type watched struct {
	path.Measured
	gone []path.SubflowMissing
}

// sampleWatched samples the connections that the path manager wants to see closely, and
// says when to do so again. Each costs a look-up, and one for each of its subflows.
func (c *client) sampleWatched(ctx context.Context, now time.Time) time.Duration {
	w := &c.watched
	w.Samples, w.Received, w.gone = w.Samples[:0], w.Received[:0], w.gone[:0]
	for token, subflows := range c.manager.Watched(now) {
		c.watch(token, subflows)
	}
	if len(w.Received) == 0 {
		return sampleEvery
	}
	c.backlog = append(c.backlog, w.Measured)
	for _, gone := range w.gone {
		c.backlog = append(c.backlog, gone)
	}
	c.decide(ctx, now)
	return max(watchEvery, sampleShare*time.Since(now))
}

// watch reads one connection: how far its data has arrived first, so that what its
// subflows have beyond that is not older.
func (c *client) watch(token path.Token, subflows []path.Ends) {
	upTo, err := c.kernel.DataReceived(uint32(token))
	if err != nil {
		return // it ended, and its event is on the way
	}
	for _, ends := range subflows {
		switch s, err := c.kernel.Subflow(ends.Local, ends.Remote); {
		case err == nil:
			c.watched.Samples = append(c.watched.Samples, sampleOf(&s))
		case errors.Is(err, mptcp.ErrNoSubflow):
			c.watched.gone = append(c.watched.gone, c.missing(token, ends.Local, ends.Remote))
		}
	}
	c.watched.Received = append(c.watched.Received, path.Received{Token: token, UpTo: upTo})
}

// measure answers at once, through the backlog.
func (c *client) measure(a path.Measure) {
	switch s, err := c.kernel.Subflow(a.Local, a.Remote); {
	case err == nil:
		c.backlog = append(c.backlog, path.Measured{Samples: []path.Sample{sampleOf(&s)}})
	case errors.Is(err, mptcp.ErrNoSubflow):
		c.backlog = append(c.backlog, c.missing(a.Token, a.Local, a.Remote))
	}
}

func (c *client) missing(token path.Token, local, remote netip.AddrPort) path.SubflowMissing {
	return path.SubflowMissing{Token: token, Local: local, Remote: remote, ChecksumErrors: c.checksumErrors()}
}

// checksumErrors is the kernel's count; the last one that was read, if it cannot be.
func (c *client) checksumErrors() uint64 {
	n, err := c.kernel.ChecksumErrors()
	if err != nil {
		c.log.Debug("checksum errors cannot be counted", "err", err)
		return c.checksums
	}
	c.checksums = n
	return n
}

func sampleOf(s *mptcp.Subflow) path.Sample {
	m := &s.Metrics
	return path.Sample{
		Token: path.Token(s.Token), Local: s.Local, Remote: s.Remote,
		BytesReceived: m.BytesReceived, BytesAcked: m.BytesAcked,
		Backoff: int(m.Backoff), Probes: int(m.Probes), MinRTT: m.MinRTT,
		SegsIn: uint64(m.SegsIn), DataSegsIn: uint64(m.DataSegsIn), OutOfOrder: uint64(m.OutOfOrder),
		LastData: m.LastDataRecv, LastAnswer: m.LastAckRecv, DataEnd: m.DataEnd,
	}
}

// prober has keep-alive probes sent on single subflows. It is *keepalive.Prober.
type prober interface {
	// Begin and End take effect with the next segment that the subflow sends.
	Begin(local, remote netip.AddrPort) error
	End(local, remote netip.AddrPort) error
}

// probe begins or ends to have probes sent on a subflow. The prober acts with the next
// segment, so one is sent: the priority that the subflow has already, told once more.
func (c *client) probe(a path.Probe) error {
	if c.prober == nil {
		return nil
	}
	change := c.prober.Begin
	if !a.On {
		change = c.prober.End
	}
	if err := change(a.Local, a.Remote); err != nil {
		return err
	}
	return c.kernel.SetBackup(uint32(a.Token), a.Local, a.Remote, a.Backup)
}
