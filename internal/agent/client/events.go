package client

import (
	"context"
	"errors"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/path"
)

// kernelEvent translates one event of the kernel's path-manager interface.
func (c *Client) kernelEvent(ctx context.Context, ev mptcp.Event, now time.Time) {
	token := path.Token(ev.Token)
	switch ev.Kind {
	case mptcp.Established:
		if !ev.ServerSide {
			c.counters.Connections++
		}
		cgroup := c.host.cgroupOf(ev.Local, ev.Remote)
		if !ev.ServerSide {
			c.wantPorts(ctx, ev.Remote, cgroup, 0, now)
		}
		c.handle(ctx, now, path.ConnEstablished{
			Token: token, Local: ev.Local, Remote: ev.Remote,
			ServerSide: ev.ServerSide, DenyJoinInitial: ev.DenyJoinInitial, Cgroup: cgroup,
		})
	case mptcp.Closed:
		c.handle(ctx, now, c.closed(token, now))
	case mptcp.SubflowEstablished:
		c.counters.SubflowsUp++
		c.log.Debug("subflow up", "connection", token, "local", ev.Local, "remote", ev.Remote)
		c.handle(ctx, now, path.SubflowEstablished{
			Token: token, LocalID: ev.LocalID, Local: ev.Local, Remote: ev.Remote, Backup: ev.Backup,
		})
	case mptcp.SubflowClosed:
		c.log.Debug("subflow ended", "connection", token, "local", ev.Local, "remote", ev.Remote, "err", ev.Err)
		c.handle(ctx, now, c.subflowClosed(ev))
	case mptcp.Announced:
		c.handle(ctx, now, path.AddrAnnounced{Token: token, Remote: ev.Remote})
	case mptcp.EventsLost:
		c.counters.EventsLost++
		c.resync()
		c.decide(ctx, now)
	case mptcp.Created, mptcp.Removed, mptcp.SubflowPriority, mptcp.ListenerCreated, mptcp.ListenerClosed:
		// Nothing to decide: the kernel itself closes what a removal concerns.
	}
}

// closed records that a connection ended.
func (c *Client) closed(token path.Token, now time.Time) path.Event {
	c.ended.add(api.Ended{Token: tokenText(token), At: now})
	return path.ConnClosed{Token: token}
}

var errOutsideCgroup = errors.New("the program is outside the cgroup that gets in-band detours ([client] cgroup)")

// subflowClosed translates the end of a subflow. If its SYN left without the in-band option, the waypoint could not
// recognise it. Then its end is no evidence about the path or the server.
func (c *Client) subflowClosed(ev mptcp.Event) path.Event {
	if c.tunnels.forget(ev.Local, ev.Remote) {
		return path.CreateFailed{Token: path.Token(ev.Token), LocalID: ev.LocalID, Err: errOutsideCgroup}
	}
	closed := path.SubflowClosed{
		Token: path.Token(ev.Token), LocalID: ev.LocalID, Local: ev.Local, Remote: ev.Remote,
		Corrupt: ev.ResetReason == mptcp.ResetMiddlebox,
	}
	if ev.Err != 0 {
		closed.Err = ev.Err
	}
	return closed
}

// resync asks the kernel for all connections. It runs between two events: the answer is newer than the
// events that were handled before, and older than those that still wait.
func (c *Client) resync() {
	c.counters.Resyncs++
	conns, err := c.host.kernel.Connections()
	if err != nil {
		c.log.Error("existing connections cannot be listed", "err", err)
		return
	}
	var live path.Resync
	for i := range conns {
		// A connection that is not established yet still has its event to come.
		switch conn := &conns[i]; {
		case conn.ServerSide:
			live.Accepted = append(live.Accepted, path.Token(conn.Token))
		case conn.Established && conn.Remote.Port() != 0:
			live.Conns = append(live.Conns, c.liveConn(conn))
		}
	}
	c.log.Debug("resynced", "connections", len(live.Conns))
	c.backlog = append(c.backlog, live)
}

func (c *Client) liveConn(conn *mptcp.Connection) path.LiveConn {
	l := path.LiveConn{
		Token: path.Token(conn.Token), Local: conn.Local, Remote: conn.Remote, Cgroup: c.host.cgroupOf(conn.Local, conn.Remote),
	}
	for i := range conn.Subflows {
		if s := &conn.Subflows[i]; s.State == mptcp.StateEstablished {
			l.Subflows = append(l.Subflows, path.LiveSubflow{
				LocalID: s.LocalID, Local: s.Local, Remote: s.Remote, Backup: s.BackupLocal,
			})
		}
	}
	return l
}

// readAddresses reports this host's addresses to the path manager.
func (c *Client) readAddresses() {
	if local, ok := c.host.localAddrs(c.host.interfaces()); ok {
		c.backlog = append(c.backlog, local)
	}
}

// addressesChanged reports this host's addresses to sessions, tunnels, the relay and the path manager.
func (c *Client) addressesChanged(ctx context.Context, now time.Time) {
	interfaces := c.host.interfaces()
	local, ok := c.host.localAddrs(interfaces)
	if !ok {
		return
	}
	for _, w := range c.roster.sessions {
		w.NetworkChanged()
	}
	c.tunnels.attach(interfaces)
	c.policer.attach(interfaces)
	c.pokeTunnels()
	if c.converters.wanted.Load() {
		c.tellRelay(now)
	}
	c.backlog = append(c.backlog, local)
	c.offerUplinks()
	c.searchPortsAnew(ctx, now)
	c.decide(ctx, now)
}
