package chaos

import (
	"net/netip"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/lab/chaos/plan"
)

// spoiled is the waypoint of a world that is struck by what dcol remembers for longer
// than a sequence takes: it changed payload or dropped TCP. There is only one. So two
// paths can always be demanded; and Linux 6.18 as a server never stops counting a
// subflow that it reset after a failed checksum, and refuses others at two by default.
type spoiled struct {
	mu       sync.Mutex
	waypoint string
	// used are the subflows that were in use when the waypoint began to drop TCP
	// until the check is over; nil: it does not.
	used map[ends]bool
}

// take returns the waypoint to spoil: the busiest one at the first time.
func (s *spoiled) take(busiest string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waypoint == "" {
		s.waypoint = busiest
	}
	return s.waypoint
}

// swallow has a waypoint lose all TCP that it forwards until relent.
func (s *striker) swallow(waypoint string) error {
	used := map[ends]bool{}
	err := s.w.eachSubflow(func(p mptcp.Subflow) {
		// The kernel counts the time since the join where there were no data.
		if min(p.Metrics.LastDataRecv, p.Metrics.LastDataSent) < recent && p.Metrics.BytesReceived+p.Metrics.BytesAcked >= carrying {
			used[ends{p.Local, p.Remote}] = true
		}
	})
	if err != nil {
		return err
	}
	s.spoiled.mu.Lock()
	defer s.spoiled.mu.Unlock()
	if s.spoiled.used != nil {
		return nil
	}
	s.spoiled.used = used
	return s.drop(waypoint, 1)
}

// relent ends what swallow began.
func (s *striker) relent() error {
	s.spoiled.mu.Lock()
	defer s.spoiled.mu.Unlock()
	if s.spoiled.used == nil {
		return nil
	}
	s.spoiled.used = nil
	return s.drop(s.spoiled.waypoint, -1)
}

// leads reports how a subflow through a waypoint stands while that drops TCP: dead
// if it does not count as a path, and idle if nothing has shown that to its owner, as
// it was not in use and nothing has been sent over it.
func (s *spoiled) leads(waypoint string, f mptcp.Subflow) (dead, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used == nil || waypoint != s.waypoint {
		return false, false
	}
	idle = !s.used[ends{f.Local, f.Remote}] && f.Metrics.Unacked == 0 && f.Metrics.NotSent == 0
	return true, idle
}

// inTrouble reports whether a connection that began then did so while a fault was on.
func (o Observations) inTrouble(began time.Time) bool {
	for _, k := range o.Strikes {
		if began.Before(k.Ended.Add(beginning)) && began.Add(beginning).After(k.Began) {
			return true
		}
	}
	return false
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

// comesUp is how long an agent takes to come up on a busy machine.
const comesUp = 3 * time.Second

// beginning is how long a connection takes to begin: its SYNs may be repeated.
const beginning = 5 * time.Second

// tunnelEnds are the client's addresses in tunnels, by the waypoint at the other end.
func (w *world) tunnelEnds(locals []netip.Addr) (map[netip.Addr]string, error) {
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
