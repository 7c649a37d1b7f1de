package chaos

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/lab/chaos/twin"
	"github.com/detour-collective/dcol/lab/testbed"
)

// inspector reads the state of a world's kernels: connections, routes, and what agents hold.
type inspector struct{ *world }

// connections lists a host's MPTCP connections, as its kernel has them.
func (w inspector) connections(host string) ([]mptcp.Connection, error) {
	all, err := testbed.On(w.Host(host), func() (all []mptcp.Connection, err error) {
		n, err := mptcp.Open(slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, n.Close()) }()
		return n.Connections()
	})
	if err != nil {
		return nil, fmt.Errorf("list the connections of %s: %w", host, err)
	}
	return all, nil
}

// eachSubflow yields the client's subflows.
func (w inspector) eachSubflow(yield func(mptcp.Subflow)) error {
	all, err := w.connections(alice)
	for _, c := range all {
		for _, s := range c.Subflows {
			yield(s)
		}
	}
	return err
}

// Paths describes the paths of a connection at a moment.
type Paths struct {
	Local    netip.AddrPort `json:"local"`
	Known    bool           `json:"known"`    // the kernel has it
	Fallback bool           `json:"fallback"` // it is plain TCP
	// Ways lists the paths of its established subflows: the waypoints' names, "direct", or the address within a tunnel. Dead
	// lists the ones whose waypoint drops TCP. Idle lists the dead ones that the client cannot know to be dead.
	Ways []string `json:"ways"`
	Dead []string `json:"dead,omitempty"`
	Idle []string `json:"idle,omitempty"`
	// Excused is the reason why it need not have two paths.
	Excused string `json:"excused,omitempty"`
}

// lacking reports whether the connection has fewer than two paths as far as its client can know, although it should
// have two.
func (p Paths) lacking() bool {
	return p.Excused == "" && len(p.Ways)-len(p.Dead)+len(p.Idle) < 2
}

// moves reports whether the connection has a working path beside the direct one.
func (p Paths) moves() bool { return p.Excused == "" && len(p.Ways)-len(p.Dead) >= 2 }

// paths returns the present paths of connections.
func (s *sequence) paths(conns []*twin.Conn) ([]Paths, error) {
	all, err := s.inspect.connections(alice)
	if err != nil {
		return nil, err
	}
	var tunnels []netip.Addr
	for _, c := range all {
		for _, f := range c.Subflows {
			tunnels = append(tunnels, f.Local.Addr())
		}
	}
	slices.SortFunc(tunnels, netip.Addr.Compare)
	by, err := s.inspect.tunnelEnds(slices.Compact(tunnels))
	if err != nil {
		return nil, err
	}
	relayed := s.relayed(all, by)
	var found []Paths
	for _, conn := range conns {
		p := Paths{Local: conn.Local(), Ways: []string{}}
		if conn.Record().Stream.Converted {
			p, relayed = s.converted(conn, relayed)
			found = append(found, p)
			continue
		}
		for _, c := range all {
			if c.Local == p.Local {
				p.Known, p.Fallback = true, c.Fallback
				s.addWays(&p, c.Subflows, by)
			}
		}
		p.Excused = s.excuse(p, conn)
		found = append(found, p)
	}
	return found, nil
}

// unconverted lists connections that should come through the converter and do not. New ones may not have come anywhere yet.
func (s *sequence) unconverted() (list []string) {
	for _, p := range s.traffic.Pairs() {
		r := p.MPTCP.Record()
		if r.Stream.Converted && p.MPTCP.Alive() && time.Since(r.Began) > converterPatience && p.MPTCP.Seen().Addr() != s.w.Host(converter).Addr() {
			list = append(list, fmt.Sprintf("%s on port %d from %v", r.Stream.Kind, r.Stream.Port, r.Local))
		}
	}
	return list
}

// relayed returns the paths of the client's connections to the converter, those with the most first.
func (s *sequence) relayed(all []mptcp.Connection, by map[netip.Addr]string) (list []Paths) {
	for _, c := range all {
		if c.Remote == s.w.convertsAt() && c.Established {
			p := Paths{Local: c.Local, Known: true, Fallback: c.Fallback, Ways: []string{}}
			s.addWays(&p, c.Subflows, by)
			list = append(list, p)
		}
	}
	slices.SortStableFunc(list, func(a, b Paths) int { return len(b.Ways) - len(b.Dead) - len(a.Ways) + len(a.Dead) })
	return list
}

// converterPatience is the time that a client waits for a converter before it connects directly.
const converterPatience = 2 * time.Second

// converted returns the paths of a connection through the converter, and the remaining elements of relayed. Only the relay
// knows which of the client's connections to the converter belongs to which program. So converted takes one of those with
// the most paths; there must be as many as connections of programs. A connection that began after a fault may be direct,
// because the client does not use a converter that has just failed.
func (s *sequence) converted(c *twin.Conn, relayed []Paths) (p Paths, others []Paths) {
	began := c.Record().Began
	switch {
	case c.Seen().Addr() != s.w.Host(converter).Addr() && s.seen.struckBefore(began.Add(converterPatience)):
		return Paths{Local: c.Local(), Excused: "not converted since a fault"}, relayed
	case c.Seen().Addr() != s.w.Host(converter).Addr() || len(relayed) == 0:
		p = Paths{Local: c.Local(), Ways: []string{}}
	default:
		p, others = relayed[0], relayed[1:]
	}
	switch {
	case !c.Alive():
		p.Excused = "over"
	case p.Fallback && s.seen.inTrouble(began):
		p.Excused = "plain TCP since a fault"
	case s.seen.withoutAgent(began):
		p.Excused = "began while the client had no agent"
	}
	return p, others
}

// excuse returns the reason why a connection need not have two paths, or "". It may be plain
// TCP because its SYN was lost or changed in a fault. It may have begun while no agent ran, so
// that the kernel tells no agent about it. Or it has just ended. There is no other reason for
// plain TCP.
func (s *sequence) excuse(p Paths, c *twin.Conn) string {
	switch {
	case p.Fallback && s.seen.inTrouble(c.Record().Began):
		return "plain TCP since a fault"
	case s.seen.withoutAgent(c.Record().Began):
		return "began while the client had no agent"
	case s.takesOne():
		return "the server takes no other subflow"
	case !p.Known && !c.Alive():
		return "over"
	}
	return ""
}

// takesOne reports whether the server takes no subflow but a connection's first.
func (s *sequence) takesOne() bool { return s.w.plan.ServerTakes != nil && *s.w.plan.ServerTakes == 0 }

func (s *sequence) addWays(p *Paths, subflows []mptcp.Subflow, by map[netip.Addr]string) {
	for _, f := range subflows {
		way := s.inspect.way(f, by)
		if f.State != mptcp.StateEstablished || slices.Contains(p.Ways, way) {
			continue
		}
		p.Ways = append(p.Ways, way)
		dead, idle := s.injector.distrusted.leads(way, f)
		if dead {
			p.Dead = append(p.Dead, way)
		}
		if idle {
			p.Idle = append(p.Idle, way)
		}
	}
}

func (w inspector) way(s mptcp.Subflow, by map[netip.Addr]string) string {
	for _, name := range w.allWaypoints() {
		if s.Remote.Addr() == w.Host(name).Addr() {
			return name
		}
	}
	if s.Local.Addr() == w.client() {
		return "direct"
	}
	if name := by[s.Local.Addr()]; name != "" {
		return name
	}
	return "by way of " + s.Local.Addr().String()
}

// droppedByServer reports whether the server has only the first subflow of a connection,
// while the client has others with nothing to send. The server's kernel ended them, and its
// reset was lost. A client that only receives cannot know that.
func (w inspector) droppedByServer(c *twin.Conn) (bool, error) {
	there, err := w.connections(server)
	if err != nil {
		return false, err
	}
	here, err := w.connections(alice)
	if err != nil {
		return false, err
	}
	known := false
	for _, m := range there {
		known = known || m.Remote == c.Seen()
		if m.Remote == c.Seen() && slices.ContainsFunc(m.Subflows, func(f mptcp.Subflow) bool { return !f.Initial }) {
			return false, nil
		}
	}
	for _, m := range here {
		if m.Local == c.Local() && slices.ContainsFunc(m.Subflows, func(f mptcp.Subflow) bool {
			return !f.Initial && (f.Metrics.Unacked > 0 || f.Metrics.NotSent > 0)
		}) {
			return false, nil
		}
	}
	return known, nil
}

// leadsInto reports whether a waypoint's host has a route to an address by a tunnel.
func (w inspector) leadsInto(waypoint string, addr netip.Addr) (is bool, err error) {
	h := w.Host(waypoint)
	err = h.Do(func() error {
		routes, err := netlink.RouteGet(net.IP(addr.AsSlice()))
		if err != nil || len(routes) == 0 {
			return nil //nolint:nilerr // it has no route
		}
		link, err := netlink.LinkByIndex(routes[0].LinkIndex)
		if err != nil {
			return nil //nolint:nilerr // the tunnel was just removed
		}
		name := link.Attrs().Name
		is = name != "lo" && name != h.Interface(inLink(waypoint)) && name != h.Interface(outLink(waypoint))
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("look at the routes of %s: %w", waypoint, err)
	}
	return is, nil
}
