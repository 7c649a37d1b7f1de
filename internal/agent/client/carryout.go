package client

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/path"
)

// carryOut carries out an action of the path manager. It ignores a failure that means that the connection or subflow is
// gone, because the kernel reports that with an event, too.
func (c *Client) carryOut(ctx context.Context, a path.Action, now time.Time) {
	kernel := c.host.kernel
	var err error
	switch a := a.(type) {
	case path.CreateSubflow:
		if !c.awaitPorts(ctx, a, now) {
			c.createSubflow(a)
		}
	case path.DestroySubflow:
		if !a.IfOpen || c.host.open(a.Token) {
			err = kernel.DestroySubflow(uint32(a.Token), a.Local, a.Remote)
		}
	case path.RemoveAddr:
		if !a.Local.IsValid() || c.host.open(a.Token) { // otherwise it would end subflows that were kept
			err = c.host.removeAddress(a)
		}
	case path.Announce:
		err = kernel.Announce(uint32(a.Token), netip.AddrPortFrom(a.Local, 0), a.LocalID)
	case path.SetBackup:
		err = kernel.SetBackup(uint32(a.Token), a.Local, a.Remote, a.Backup)
	case path.RequestDetours:
		c.ask(ctx, c.book.Request(a.Server, now), now)
	case path.Measure:
		c.backlog = append(c.backlog, c.sampler.measure(a)...)
	case path.Watch:
		c.pingSessions()
		if w := (watched{}); c.sampler.watch(&w, a.Token, a.Subflows) {
			c.backlog = append(c.backlog, w.events()...)
		}
	case path.LookUp:
		if _, gone := kernel.Open(uint32(a.Token)); errors.Is(gone, mptcp.ErrNoConnection) {
			c.backlog = append(c.backlog, c.closed(a.Token, now))
		}
	case path.Probe:
		err = c.sampler.probe(a)
	case path.Bound:
		err = c.policer.bound(a, c.host.interfaces)
	case path.Restrict:
		err = errors.Join(c.policer.restrict(a, c.host.interfaces), c.sending.restrict(a))
	case path.Blame:
		c.logBlame(a)
	case path.ReadAddrs:
		c.readAddresses()
	}
	if err != nil && !errors.Is(err, mptcp.ErrNoConnection) && !errors.Is(err, mptcp.ErrNoSubflow) {
		c.log.Debug("the kernel refused", "action", fmt.Sprintf("%T", a), "err", err)
	}
}

// createSubflow asks the kernel for a join. For an in-band join, it prepares the SYN first.
func (c *Client) createSubflow(a path.CreateSubflow) {
	c.counters.SubflowsAsked++
	var ports sources
	ports.first, ports.only = c.ports.Candidates(a)
	local, err := c.host.join(a, ports,
		func(from netip.AddrPort) error { return c.tunnels.expect(a, from) },
		func(from netip.AddrPort) { c.tunnels.forget(from, a.Remote) })
	if err == nil {
		c.log.Debug("subflow asked", "connection", a.Token, "kind", a.Kind.String(), "waypoint", a.Waypoint, "direct", a.Direct, "local", local, "remote", a.Remote)
		c.backlog = append(c.backlog, path.SubflowRequested{Token: a.Token, LocalID: a.LocalID, Local: local})
		return
	}
	c.counters.SubflowsRefused++
	c.log.Debug("subflow refused", "remote", a.Remote, "err", err)
	gone := errors.Is(err, mptcp.ErrNoConnection) || errors.Is(err, mptcp.ErrKernelPM)
	halfClosed := errors.Is(err, unix.ENOTCONN) && !c.host.open(a.Token)
	c.backlog = append(c.backlog, path.CreateFailed{Token: a.Token, LocalID: a.LocalID, Err: err, Gone: gone, HalfClosed: halfClosed})
}

// mapTimeout bounds the time that a waypoint may take to answer a request for a mapping.
const mapTimeout = 5 * time.Second

// ask sends requests to waypoints; their answers come back through the inbox.
func (c *Client) ask(ctx context.Context, asks []detour.Ask, now time.Time) {
	for _, a := range asks {
		w, sole := c.roster.sessions[a.Via], !c.hasOther(a.Via, now)
		c.inbox.inBackground(ctx, func() func(time.Time) {
			asked, cancel := context.WithTimeout(ctx, mapTimeout)
			defer cancel()
			grant, err := w.Map(asked, a.Server, sole)
			return func(now time.Time) {
				if err != nil {
					c.log.Debug("no mapping", "waypoint", a.Via.Waypoint, "server", a.Server, "err", err)
					c.backlog = append(c.backlog, c.book.Refused(a, w.Refusal(err), now)...)
				} else {
					c.backlog = append(c.backlog, c.book.Granted(a, grant, now)...)
				}
				c.decide(ctx, now)
			}
		})
	}
}

// logBlame logs that detours through a waypoint rest.
func (c *Client) logBlame(a path.Blame) {
	server, kind := "all", "all"
	if a.Server.IsValid() {
		server = a.Server.String()
	}
	if !a.AllKinds {
		kind = a.Kind.String()
	}
	c.log.Warn("detours through a waypoint are not used for a while", "waypoint", a.Waypoint, "kind", kind, "server", server,
		"until", a.Until.Format(time.DateTime), "err", a.Err, "fix", a.Fix)
}
