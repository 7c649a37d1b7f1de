package waypoint

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/forward"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/waypoint/flows"
)

// On the fast path, packets of established detours bypass netfilter (package forward). It is not used if a rule
// must see every packet, such as a limit of bandwidth or a quota. conntrack still decides which connections
// exist. Of a connection on the fast path, it sees the beginning, the end and a packet now and then. Its entry
// is relaxed, so that conntrack neither forgets the connection nor treats these packets as forged. A relaxed
// entry ends with any FIN or RST, so package forward hides those with wrong sequence numbers from it. Package
// forward learns the numbers while a connection is watched, and package flows decides when they are certain.

// fastPath is implemented by forward.Forwarder.
type fastPath interface {
	Attach(interfaces []int) error
	Watch(forward.Flow, forward.Passed) error
	Forward(forward.Flow) error
	Remove(forward.Flow) (forward.Passed, error)
	Look(forward.Flow) (forward.State, error)
	Left() map[forward.Tuple]uint64
}

// flowEntries changes single entries of conntrack. It is implemented by netstate.Conntrack.
type flowEntries interface {
	Relax(origin netstate.Tuple, timeout time.Duration) error
	Flow(origin netstate.Tuple) (f netstate.Flow, ok bool, err error)
}

// fastKernel has the parts of the kernel that the fast path uses. If fast is nil, noFast is the reason.
type fastKernel struct {
	fast   fastPath
	noFast error
	// watchOnly is set if connections are only watched, which hides strangers' SYNs from conntrack, and none is forwarded.
	watchOnly bool
	entries   flowEntries
	timeouts  flowTimeouts
}

// openFastPath opens the fast path, unless the configuration or the kernel forbids it. conntrack must be loaded.
func openFastPath(config Config) (k fastKernel, closeAll func() error, err error) {
	nothing := func() error { return nil }
	k.watchOnly = !config.FastPath || config.everyPacket()
	if k.timeouts, err = readFlowTimeouts(); err != nil {
		return k, nothing, err
	}
	fast, err := forward.Open()
	if err != nil {
		k.noFast = err
		return k, nothing, nil //nolint:nilerr // netfilter forwards everything then, more slowly
	}
	entries, err := netstate.OpenConntrack()
	if err != nil {
		return k, nothing, errors.Join(err, fast.Close())
	}
	k.fast, k.entries = fast, entries
	return k, func() error { return errors.Join(fast.Close(), entries.Close()) }, nil
}

// flowTimeouts has conntrack's timeouts of connections.
type flowTimeouts struct {
	established time.Duration
	// shortest is the least time for which conntrack keeps an established connection without a packet. It is
	// less than the above, because conntrack may believe that data was not acknowledged.
	shortest time.Duration
}

const (
	timeoutEstablished = "net/netfilter/nf_conntrack_tcp_timeout_established"
	timeoutUnanswered  = "net/netfilter/nf_conntrack_tcp_timeout_unacknowledged"
	timeoutRetrying    = "net/netfilter/nf_conntrack_tcp_timeout_max_retrans"

	// afterEnd is the timeout of an entry whose connection ended just when we prolonged it. It is conntrack's
	// own default for connections that are closing.
	afterEnd = 2 * time.Minute
)

func readFlowTimeouts() (t flowTimeouts, err error) {
	seconds := func(key string) time.Duration {
		var n int64
		value, readErr := netstate.Sysctl(key)
		if readErr == nil {
			_, readErr = fmt.Sscan(value, &n)
		}
		err = errors.Join(err, readErr)
		return time.Duration(n) * time.Second
	}
	t.established = seconds(timeoutEstablished)
	t.shortest = min(t.established, seconds(timeoutUnanswered), seconds(timeoutRetrying))
	return t, err
}

// keepEvery is the interval at which the entries of live connections are prolonged. It is well below the
// shortest timeout.
func (t flowTimeouts) keepEvery() time.Duration { return max(t.shortest/4, time.Second) }

// watch makes the program note the sequence numbers of an established connection. That is the first step onto the fast
// path.
func (c *connections) watch(f netstate.Flow) {
	if c.fast == nil {
		return
	}
	flow, passed, ok := c.flows.ToWatch(f)
	if !ok {
		return
	}
	if err := c.fast.Watch(flow, passed); err != nil {
		c.saySlow(err)
		return
	}
	c.flows.Watched(f.Origin, time.Now())
}

// check moves watched connections whose numbers are certain by now onto the fast path, and prolongs conntrack's entries of
// the live connections there.
func (c *connections) check(now time.Time) {
	for _, f := range c.flows.DueWatched(now) {
		certain, err := c.look(f)
		c.saySlow(err)
		if certain && !c.watchOnly {
			c.enter(f)
		}
	}
	for _, f := range c.flows.DueForwarded(now) {
		if err := c.keep(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.log.Warn("conntrack may forget a live connection", "err", err)
		}
	}
}

// look reports whether a watched connection's numbers are certain by now. It ends the watch of a connection that has ended,
// for instance because its host lost it and opens it anew, so that the host's next SYN reaches netfilter.
func (c *connections) look(f *flows.Fast) (certain bool, err error) {
	before, err := c.fast.Look(f.Flow)
	if err != nil || !f.News(before.Seen) {
		return false, err
	}
	entry, there, err := c.entries.Flow(f.Origin)
	if err != nil || !there {
		return false, err
	}
	if !flows.Simple(entry) {
		return false, c.leave(f.Origin)
	}
	after, err := c.fast.Look(f.Flow)
	if err != nil {
		return false, err
	}
	return f.Judge(before.Seen, entry, after.Seen), nil
}

// enter moves a watched connection onto the fast path.
func (c *connections) enter(f *flows.Fast) {
	// Relax first: otherwise conntrack treats packets as forged that follow after packets that it did not see.
	err := c.entries.Relax(f.Origin, 0)
	if err == nil {
		err = c.fast.Forward(f.Flow)
	}
	if err == nil {
		f.Forwarded(time.Now())
		// Relax again: conntrack may have seen an acknowledgement in between, and would treat a reset as forged.
		err = c.entries.Relax(f.Origin, 0)
	}
	if err == nil {
		// The connection may have ended before Forward. Then only conntrack knows it.
		var entry netstate.Flow
		if entry, _, err = c.entries.Flow(f.Origin); err == nil && flows.Simple(entry) {
			return
		}
	}
	c.saySlow(err)
	_ = c.leave(f.Origin) // leave logs its failure
}

// saySlow logs, once, that connections stay with netfilter because of an error.
func (c *connections) saySlow(err error) {
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, forward.ErrFull) || c.saidSlow {
		return
	}
	c.log.Warn("connections may stay on the slow path; this is logged only once", "err", err)
	c.saidSlow = true
}

// keep prolongs conntrack's entry of a live connection.
func (c *connections) keep(f *flows.Fast) error {
	state, err := c.fast.Look(f.Flow)
	if err != nil {
		return err
	}
	switch f.Alive(state) {
	case flows.Leave:
		return c.leave(f.Origin)
	case flows.Prolong:
		return c.prolong(f)
	case flows.Nothing:
	}
	return nil
}

func (c *connections) prolong(f *flows.Fast) error {
	if err := c.entries.Relax(f.Origin, c.timeouts.established); err != nil {
		return err
	}
	state, err := c.fast.Look(f.Flow)
	if err == nil && state.Ended {
		err = c.entries.Relax(f.Origin, afterEnd)
	}
	return err
}

// leave gives a connection back to netfilter, which then sees all its packets. It logs its failure.
func (c *connections) leave(origin netstate.Tuple) error {
	f := c.flows.Fast(origin)
	if f == nil {
		return nil
	}
	passed, err := c.fast.Remove(f.Flow)
	if err != nil {
		c.log.Error("a connection does not leave the fast path", "err", err)
		return err
	}
	c.flows.Left(origin, passed)
	return nil
}

// leaveWhere does the same for the matching connections for which which returns true.
func (c *connections) leaveWhere(match netstate.MarkMatch, which func(netstate.Flow) bool) error {
	var errs []error
	for _, origin := range c.flows.FastWhere(match, which) {
		errs = append(errs, c.leave(origin))
	}
	return errors.Join(errs...)
}
