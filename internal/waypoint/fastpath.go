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

// The fast path: packets of established detours pass by netfilter (package forward), unless a rule
// concerns every packet, as those of bandwidth and quota do. netfilter stays the truth about which
// connections there are. So that conntrack, which sees a connection's beginning, its end and now and
// then a packet, neither forgets it nor takes what it sees for forged, its entry is relaxed. A relaxed
// entry ends with any FIN or RST, so package forward keeps those away from it whose numbers are wrong. It
// learns the numbers while a connection is watched; package flows decides when it has.

// fastPath is implemented by forward.Forwarder.
type fastPath interface {
	Attach(interfaces []int) error
	Watch(forward.Flow, forward.Passed) error
	Forward(forward.Flow) error
	Remove(forward.Flow) (forward.Passed, error)
	Look(forward.Flow) (forward.State, error)
	Left() map[forward.Tuple]uint64
}

// flowEntries is implemented by netstate.Conntrack: one entry at a time.
type flowEntries interface {
	Relax(origin netstate.Tuple, timeout time.Duration) error
	Flow(origin netstate.Tuple) (f netstate.Flow, ok bool, err error)
}

// fastKernel holds what the fast path needs of the system. fast is nil for the reason in noFast.
type fastKernel struct {
	fast   fastPath
	noFast error
	// watchOnly: connections are watched, which keeps strangers' SYNs from conntrack, but none is forwarded.
	watchOnly bool
	entries   flowEntries
	timeouts  flowTimeouts
}

// openFastPath comes after conntrack is there.
func openFastPath(config Config) (k fastKernel, closeAll func() error, err error) {
	nothing := func() error { return nil }
	k.watchOnly = !config.FastPath || config.everyPacket()
	if k.timeouts, err = readFlowTimeouts(); err != nil {
		return k, nothing, err
	}
	fast, err := forward.Open()
	if err != nil {
		k.noFast = err
		return k, nothing, nil //nolint:nilerr // netfilter does it all, at its price
	}
	entries, err := netstate.OpenConntrack()
	if err != nil {
		return k, nothing, errors.Join(err, fast.Close())
	}
	k.fast, k.entries = fast, entries
	return k, func() error { return errors.Join(fast.Close(), entries.Close()) }, nil
}

// flowTimeouts are conntrack's.
type flowTimeouts struct {
	established time.Duration
	// shortest is how long an established connection lives at least without a packet: less than the
	// above while conntrack thinks that data was not acknowledged.
	shortest time.Duration
}

const (
	timeoutEstablished = "net/netfilter/nf_conntrack_tcp_timeout_established"
	timeoutUnanswered  = "net/netfilter/nf_conntrack_tcp_timeout_unacknowledged"
	timeoutRetrying    = "net/netfilter/nf_conntrack_tcp_timeout_max_retrans"

	// afterEnd is for how long an entry stays whose connection ended just when we prolonged it, if no
	// more packet comes: conntrack's own default for connections that are closing.
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

// keepEvery is how often entries are prolonged whose connections are alive: well within the shortest
// time that one is kept for.
func (t flowTimeouts) keepEvery() time.Duration { return max(t.shortest/4, time.Second) }

// watch has an established connection looked at, which is the first step onto the fast path.
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

// check forwards the watched connections whose numbers have become certain, and prolongs conntrack's entries of
// those on the fast path that are alive.
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

// look reports whether a watched connection's numbers are certain by now. One that has ended, as by a host that had
// lost it and opens it anew, is no longer watched, so that the host's next SYN goes to netfilter.
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

// enter takes a connection past netfilter that was watched.
func (c *connections) enter(f *flows.Fast) {
	// Before, since conntrack takes what follows on packets it did not see for forged.
	err := c.entries.Relax(f.Origin, 0)
	if err == nil {
		err = c.fast.Forward(f.Flow)
	}
	if err == nil {
		f.Forwarded(time.Now())
		// And after, since of an acknowledgement in between it would hold a reset to be forged.
		err = c.entries.Relax(f.Origin, 0)
	}
	if err == nil {
		// Of an end before Forward only conntrack knows, of one after it both do.
		var entry netstate.Flow
		if entry, _, err = c.entries.Flow(f.Origin); err == nil && flows.Simple(entry) {
			return
		}
	}
	c.saySlow(err)
	_ = c.leave(f.Origin) // which logs its failure
}

// saySlow says once that connections stay with netfilter for a reason that should not be.
func (c *connections) saySlow(err error) {
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, forward.ErrFull) || c.saidSlow {
		return
	}
	c.log.Warn("connections may stay on the slow path; this is logged only once", "err", err)
	c.saidSlow = true
}

// keep prolongs the entry of a connection that is alive.
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

// leave has netfilter see all packets of a connection.
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

// leaveWhere does so for those of the matching connections that which says yes to.
func (c *connections) leaveWhere(match netstate.MarkMatch, which func(netstate.Flow) bool) error {
	var errs []error
	for _, origin := range c.flows.FastWhere(match, which) {
		errs = append(errs, c.leave(origin))
	}
	return errors.Join(errs...)
}
