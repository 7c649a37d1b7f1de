package waypoint

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/forward"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// The fast path: packets of established detours pass by netfilter (package forward), unless a rule
// concerns every packet, as those of bandwidth and quota do. netfilter stays the truth about which
// connections there are. So that conntrack, which sees a connection's beginning, its end and now and
// then a packet, neither forgets it nor takes what it sees for forged, its entry is relaxed. A relaxed
// entry ends with any FIN or RST, so package forward keeps those away from it whose numbers are wrong. It
// learns the numbers while a connection is watched, and watching.go decides when it has.

// fastPath is forward.Forwarder.
type fastPath interface {
	Attach(interfaces []int) error
	Watch(forward.Flow, forward.Passed) error
	Forward(forward.Flow) error
	Remove(forward.Flow) (forward.Passed, error)
	Look(forward.Flow) (forward.State, error)
	Left() map[forward.Tuple]uint64
}

// flowEntries is netstate.Conntrack, of one entry at a time.
type flowEntries interface {
	Relax(origin netstate.Tuple, timeout time.Duration) error
	Flow(origin netstate.Tuple) (f netstate.Flow, ok bool, err error)
}

// fastKernel is the fast path's part of the system. fast is nil for the reason in noFast.
type fastKernel struct {
	fast   fastPath
	noFast error
	// watchOnly: connections are watched, which keeps strangers' SYNs from them, but none is forwarded.
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
	// shortest is what an established connection lives at least without a packet: less than the
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

// keptAtOnce bounds how long prolonging keeps the owner from requests. The rest is due a second later.
const keptAtOnce = 2000

// fastFlow is a connection on the fast path, or one that is watched and may get there.
type fastFlow struct {
	forward.Flow
	forwarded bool
	sight     sight          // of one that is watched
	passed    forward.Passed // when it was last looked at
	looked    time.Time
}

func fastFlowOf(f netstate.Flow) forward.Flow {
	return forward.Flow{Origin: forward.Tuple(f.Origin), Reply: forward.Tuple(f.Reply)}
}

// watch has an established connection looked at, which is the first step onto the fast path.
func (w *Waypoint) watch(f netstate.Flow) {
	l, known := w.live[f.Origin]
	if w.kernel.fast == nil || !known || !f.Established || w.fast[f.Origin] != nil {
		return
	}
	if !mayBeFast(l.kind) {
		return
	}
	flow := fastFlowOf(l.flow)
	if err := w.kernel.fast.Watch(flow, l.passed); err != nil {
		w.saySlow(err)
		return
	}
	w.fast[f.Origin] = &fastFlow{Flow: flow, passed: l.passed, looked: time.Now()}
	l.passed = forward.Passed{}
	w.live[f.Origin] = l
}

// mayBeFast tells whether connections by a kind of detour go on the fast path. Packets of tunnels have no
// Ethernet header.
func mayBeFast(k wire.Kind) bool { return k == wire.Mapped || k == wire.InBand }

// enterFastPath takes a connection past netfilter that was watched.
func (w *Waypoint) enterFastPath(origin netstate.Tuple, f *fastFlow) {
	// Before, since conntrack takes what follows on packets it did not see for forged.
	err := w.kernel.entries.Relax(origin, 0)
	if err == nil {
		err = w.kernel.fast.Forward(f.Flow)
	}
	if err == nil {
		f.forwarded, f.looked = true, time.Now()
		// And after, since of an acknowledgement in between it would hold a reset to be forged.
		err = w.kernel.entries.Relax(origin, 0)
	}
	if err == nil {
		// Of an end before Forward only conntrack knows, of one after it both do.
		var now netstate.Flow
		if now, _, err = w.kernel.entries.Flow(origin); err == nil && now.Established && !now.Helped {
			return
		}
	}
	w.saySlow(err)
	_ = w.leaveFastPath(origin) // which logs its failure
}

// saySlow says once that connections stay with netfilter for a reason that should not be.
func (w *Waypoint) saySlow(err error) {
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, forward.ErrFull) || w.saidSlow {
		return
	}
	w.log.Warn("connections may stay on the slow path; this is said once", "err", err)
	w.saidSlow = true
}

// leaveFastPath has netfilter see all packets of a connection.
func (w *Waypoint) leaveFastPath(origin netstate.Tuple) error {
	f := w.fast[origin]
	if f == nil {
		return nil
	}
	passed, err := w.kernel.fast.Remove(f.Flow)
	if err != nil {
		w.log.Error("a connection does not leave the fast path", "err", err)
		return err
	}
	delete(w.fast, origin)
	if l, ok := w.live[origin]; ok {
		l.passed = passed
		w.live[origin] = l
	}
	return nil
}

// leaveFastPathEach does so for those of the matching connections that which says yes to.
func (w *Waypoint) leaveFastPathEach(of netstate.MarkMatch, which func(netstate.Flow) bool) error {
	var errs []error
	for origin := range w.fast {
		if f := w.live[origin].flow; f.Mark&of.Mask == of.Value && which(f) {
			errs = append(errs, w.leaveFastPath(origin))
		}
	}
	return errors.Join(errs...)
}

// passedFast is how much of a connection netfilter has not seen.
func (w *Waypoint) passedFast(origin netstate.Tuple) forward.Passed {
	f := w.fast[origin]
	if f == nil {
		return w.live[origin].passed
	}
	state, err := w.kernel.fast.Look(f.Flow)
	if err != nil {
		w.log.Warn("the bytes of a connection are not known", "err", err)
		return f.passed
	}
	return state.Passed
}

// forwarded is how many connections are on the fast path.
func (w *Waypoint) forwarded() (n int) {
	for _, f := range w.fast {
		if f.forwarded {
			n++
		}
	}
	return n
}

// keepEntries prolongs the conntrack entries of connections that are alive.
func (w *Waypoint) keepEntries(now time.Time) {
	left := keptAtOnce
	for origin, f := range w.fast {
		if !f.forwarded || now.Sub(f.looked) < w.kernel.timeouts.keepEvery() {
			continue
		}
		if left--; left < 0 {
			return
		}
		f.looked = now
		if err := w.keepEntry(origin, f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.log.Warn("conntrack may forget a connection that is alive", "err", err)
		}
	}
}

func (w *Waypoint) keepEntry(origin netstate.Tuple, f *fastFlow) error {
	state, err := w.kernel.fast.Look(f.Flow)
	if err != nil || state.Passed == f.passed && !state.Ended {
		return err
	}
	f.passed = state.Passed
	if state.Ended {
		return w.leaveFastPath(origin)
	}
	if err := w.kernel.entries.Relax(origin, w.kernel.timeouts.established); err != nil {
		return err
	}
	if state, err = w.kernel.fast.Look(f.Flow); err == nil && state.Ended {
		err = w.kernel.entries.Relax(origin, afterEnd)
	}
	return err
}

// attachFastPath has established connections looked for on every interface that has them.
func (w *Waypoint) attachFastPath(interfaces []int) {
	err := w.kernel.fast.Attach(interfaces)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != w.notFast {
		w.log.Warn("some interfaces have no fast path", "err", err)
	}
	w.notFast = text
}
