package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/path"
)

// carryOut does what the path manager decided. A command that fails because its
// connection or subflow is gone needs no care: the event that says so is on its
// way.
func (c *client) carryOut(ctx context.Context, a path.Action, now time.Time) {
	var err error
	switch a := a.(type) {
	case path.CreateSubflow:
		c.createSubflow(a)
	case path.DestroySubflow:
		err = c.kernel.DestroySubflow(uint32(a.Token), a.Local, a.Remote)
	case path.RemoveAddr:
		err = c.removeAddress(a)
	case path.SetBackup:
		err = c.kernel.SetBackup(uint32(a.Token), a.Local, a.Remote, a.Backup)
	case path.RequestDetours:
		c.ask(ctx, c.book.Request(a.Server, now))
	case path.Measure:
		c.measure(a)
	case path.Probe:
		err = c.probe(a)
	case path.Blame:
		c.blame(a)
	case path.ReadAddrs:
		if local, ok := c.localAddrs(c.interfaces()); ok {
			c.backlog = append(c.backlog, local)
		}
	}
	if err != nil && !errors.Is(err, mptcp.ErrNoConnection) && !errors.Is(err, mptcp.ErrNoSubflow) {
		c.log.Debug("the kernel refused", "action", fmt.Sprintf("%T", a), "err", err)
	}
}

// removeAddress tells the peer that an address is gone. The kernel forgets an
// address when any subflow from it is destroyed, and then knows of nothing to
// tell; announcing it once more reminds it (docs/kernel-behaviour.md).
func (c *client) removeAddress(a path.RemoveAddr) error {
	err := c.kernel.RemoveAddress(uint32(a.Token), a.LocalID)
	if !errors.Is(err, mptcp.ErrNoAddress) {
		return err
	}
	if !a.Local.IsValid() {
		return nil
	}
	if err := c.kernel.Announce(uint32(a.Token), a.Local, a.LocalID); err != nil {
		return err
	}
	return c.kernel.RemoveAddress(uint32(a.Token), a.LocalID)
}

// createSubflow asks for a join from a port of our choice: only with ports of
// their own may two subflows from one address have different address ids.
func (c *client) createSubflow(a path.CreateSubflow) {
	c.counters.SubflowsAsked++
	local, err := a.Local, error(nil)
	if !local.IsValid() {
		source, serr := c.routes.SourceFor(a.Remote.Addr())
		local, err = source.Addr, serr
	}
	for range portTries {
		if err != nil {
			break
		}
		from := netip.AddrPortFrom(local, c.ports.pick())
		if err = c.tunnels.expect(a, from); err != nil {
			break
		}
		err = c.kernel.CreateSubflow(mptcp.NewSubflow{
			Token: uint32(a.Token), Local: from, LocalID: a.LocalID, Remote: a.Remote, Backup: a.Backup,
		})
		if err != nil {
			c.tunnels.forget(from, a.Remote)
		} else {
			c.backlog = append(c.backlog, path.SubflowRequested{Token: a.Token, LocalID: a.LocalID, Local: from})
			return
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			err = nil
		}
	}
	if err == nil {
		err = syscall.EADDRINUSE
	}
	c.counters.SubflowsRefused++
	c.log.Debug("subflow refused", "remote", a.Remote, "err", err)
	gone := errors.Is(err, mptcp.ErrNoConnection) || errors.Is(err, mptcp.ErrKernelPM)
	c.backlog = append(c.backlog, path.CreateFailed{Token: a.Token, LocalID: a.LocalID, Err: err, Gone: gone})
}

// blame puts on record that detours through a waypoint rest.
func (c *client) blame(a path.Blame) {
	server, kind := "all", "all"
	if a.Server.IsValid() {
		server = a.Server.String()
	}
	if !a.AllKinds {
		kind = a.Kind.String()
	}
	c.log.Warn("detours through a waypoint are not used for a while", "waypoint", a.Waypoint, "kind", kind, "server", server,
		"until", a.Until.Format(time.DateTime), "err", a.Err, "mend", a.Mend)
}

// portTries is how many ports in use are passed over: with half of all ports
// taken, one subflow in a million is refused.
const portTries = 20

// portPicker draws local ports as the kernel itself does: from its range, without those that are
// reserved for programs that name them.
type portPicker struct {
	netstate.PortRange
	reserved netstate.Ports
}

func newPortPicker() (p portPicker, err error) {
	if p.PortRange, err = netstate.LocalPorts(); err != nil {
		return p, err
	}
	p.reserved, err = netstate.ReservedPorts()
	return p, err
}

// reservedTries bounds how many reserved ports are skipped. After that many, a reserved one is used.
const reservedTries = 1000

func (p portPicker) pick() (port uint16) {
	for range reservedTries {
		port = p.First + uint16(rand.N(int(p.Last)-int(p.First)+1))
		if !p.reserved.Has(port) {
			break
		}
	}
	return port
}
