package waypoint

import (
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/forward"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/flows"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// connections carries out for members' connections what package flows decides. Its methods are in fastpath.go and counts.go,
// too.
type connections struct {
	flows  *flows.Flows
	record *attribution.Log
	log    *slog.Logger
	marks  rules.Marks
	fastKernel
	conntrack   flowTable
	conntrackMu sync.Mutex // held during a request to conntrack, which answers one at a time

	eventsLost uint64 // times
	saidSlow   bool   // the log says that connections stay with netfilter
}

// flowNews has events of conntrack, or reports that some were lost.
type flowNews struct {
	events []netstate.FlowEvent
	lost   bool
}

// note takes in conntrack's events.
func (c *connections) note(news flowNews) {
	for _, e := range news.events {
		if e.Closed {
			c.close(e.Flow, true)
		} else {
			c.open(attribution.FlowOpened, e.Flow)
		}
	}
	if news.lost {
		c.eventsLost++
		c.resync()
	}
}

// resync compares the known connections with those of conntrack, after events were lost.
func (c *connections) resync() {
	there := make(map[netstate.Tuple]struct{})
	err := c.list(func(f netstate.Flow) {
		there[f.Origin] = struct{}{}
		c.open(attribution.FlowFound, f)
	})
	if err != nil {
		c.log.Warn("events of connections were lost and cannot be recovered", "err", err)
		return
	}
	for _, f := range c.flows.Gone(there) {
		c.close(f, false)
	}
}

// open records a new connection. If it is established, the fast path's program begins to watch it.
func (c *connections) open(event attribution.Event, f netstate.Flow) {
	if e, ok := c.flows.Open(event, f, time.Now()); ok {
		c.record.Write(e)
	}
	c.watch(f)
}

// close records the end of a connection.
func (c *connections) close(f netstate.Flow, seen bool) {
	_ = c.leave(f.Origin) // leave logs its failure
	if e, ok := c.flows.Close(f, seen, time.Now()); ok {
		c.record.Write(e)
	}
}

// list calls each with the connections that have our marks. It may be called from any goroutine.
func (c *connections) list(each func(netstate.Flow)) error {
	c.conntrackMu.Lock()
	defer c.conntrackMu.Unlock()
	return c.conntrack.Flows(c.marks.Ours(), each)
}

// end makes the kernel forget connections that came from any of the addresses, and returns how many.
func (c *connections) end(match netstate.MarkMatch, from ...netip.Addr) (int, error) {
	is := make(map[netip.Addr]bool, len(from))
	for _, addr := range from {
		is[addr] = true
	}
	which := func(f netstate.Flow) bool { return is[f.Origin.Src.Addr()] }
	left := c.leaveWhere(match, which)
	c.conntrackMu.Lock()
	defer c.conntrackMu.Unlock()
	n, err := c.conntrack.DeleteEach(match, which)
	return n, errors.Join(left, err)
}

// endAll makes the kernel forget all connections with matching marks.
func (c *connections) endAll(match netstate.MarkMatch) error {
	left := c.leaveWhere(match, func(netstate.Flow) bool { return true })
	c.conntrackMu.Lock()
	defer c.conntrackMu.Unlock()
	return errors.Join(left, c.conntrack.Delete(match))
}

// restartConverted makes the kernel forget the converter's connections, so that it tracks them anew. Without a table, the
// kernel may have tracked none of their packets, and would then treat all further ones as invalid.
func (c *connections) restartConverted() error { return c.endAll(c.marks.OfKind(wire.Converter)) }

// usage returns the number and the bytes of members' connections. counted has the bytes that netfilter counted.
func (c *connections) usage(counted map[netstate.Tuple]netstate.Flow) map[rules.MemberID]flows.Usage {
	return c.flows.Usage(counted, c.passed)
}

// passed returns the bytes of a connection that took the fast path, which netfilter has not counted.
func (c *connections) passed(f *flows.Fast) forward.Passed {
	state, err := c.fast.Look(f.Flow)
	if err != nil {
		c.log.Warn("the bytes of a connection are not known", "err", err)
		return f.Passed
	}
	return state.Passed
}
