package chaos

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/lab/chaos/plan"
)

// distrusted is the waypoint that changes payload or drops TCP. dcol remembers that for longer than a
// sequence takes, so there is only one such waypoint: two paths must always be possible. Besides, Linux
// 6.18 as a server goes on counting a subflow that it reset after a failed checksum, and by default
// refuses others once there are two.
type distrusted struct {
	mu       sync.Mutex
	waypoint string
	// used holds the subflows that were in use when the waypoint began to drop TCP until the check is over. nil: it does
	// not drop TCP.
	used map[ends]bool
}

// take returns the distrusted waypoint: the busiest one at the first call.
func (s *distrusted) take(busiest string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waypoint == "" {
		s.waypoint = busiest
	}
	return s.waypoint
}

// dropUntilEnd makes a waypoint drop all TCP that it forwards until stopDropping.
func (s *injector) dropUntilEnd(waypoint string) error {
	used := map[ends]bool{}
	err := s.inspect.eachSubflow(func(p mptcp.Subflow) {
		// The kernel counts the time since the join where there were no data.
		if min(p.Metrics.LastDataRecv, p.Metrics.LastDataSent) < recent && p.Metrics.BytesReceived+p.Metrics.BytesAcked >= carrying {
			used[ends{p.Local, p.Remote}] = true
		}
	})
	if err != nil {
		return err
	}
	s.distrusted.mu.Lock()
	defer s.distrusted.mu.Unlock()
	if s.distrusted.used != nil {
		return nil
	}
	s.distrusted.used = used
	return s.drop(waypoint, 1)
}

// stopDropping ends what dropUntilEnd began.
func (s *injector) stopDropping() error {
	s.distrusted.mu.Lock()
	defer s.distrusted.mu.Unlock()
	if s.distrusted.used == nil {
		return nil
	}
	s.distrusted.used = nil
	return s.drop(s.distrusted.waypoint, -1)
}

// leads judges a subflow through a waypoint. The subflow is dead, and does not count as a path, if the waypoint drops TCP.
// It is idle if the client cannot know that, because the subflow was not in use and nothing has been sent over it.
func (s *distrusted) leads(waypoint string, f mptcp.Subflow) (dead, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used == nil || waypoint != s.waypoint {
		return false, false
	}
	idle = !s.used[ends{f.Local, f.Remote}] && f.Metrics.Unacked == 0 && f.Metrics.NotSent == 0
	return true, idle
}

// inTrouble reports whether a connection began during a fault.
func (o Observations) inTrouble(began time.Time) bool {
	for _, k := range o.Strikes {
		if began.Before(k.Ended.Add(beginning)) && began.Add(beginning).After(k.Began) {
			return true
		}
	}
	return false
}

// struckBefore reports whether there was a fault before a moment.
func (o Observations) struckBefore(at time.Time) bool {
	return slices.ContainsFunc(o.Strikes, func(k Strike) bool { return k.Began.Before(at) })
}

// withoutAgent reports whether the client's agent was ended when a connection began, or
// had not come up again.
func (o Observations) withoutAgent(began time.Time) bool {
	for _, k := range o.Strikes {
		ended := k.Fault.Kind == plan.Kill || k.Fault.Kind == plan.Stop
		if ended && k.Hit == alice && began.After(k.Began) && began.Before(k.Ended.Add(comesUp)) {
			return true
		}
	}
	return false
}

// comesUp is the time that an agent takes to start on a busy machine.
const comesUp = 3 * time.Second

// beginning is the time that a connection takes to be established. Its SYNs may be repeated.
const beginning = 5 * time.Second

// tunnelEnds are the client's addresses in tunnels, by the waypoint at the other end.
func (w inspector) tunnelEnds(locals []netip.Addr) (map[netip.Addr]string, error) {
	by := map[netip.Addr]string{}
	for _, name := range w.waypoints {
		for _, local := range locals {
			if is, err := w.leadsInto(name, local); err != nil {
				return nil, err
			} else if is {
				by[local] = name
			}
		}
	}
	return by, nil
}
