package chaos

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/mptcp"
	"github.com/detour-collective/dcol/lab/chaos/plan"
)

// spoiled are the waypoints that were struck by what dcol remembers for longer than a
// sequence takes: they changed payload or dropped TCP. One at least is spared, so
// that two paths can always be demanded.
type spoiled struct {
	mu        sync.Mutex
	waypoints map[string]bool
	// swallowing are those that drop TCP until the check is over, with the subflows
	// that were in use when they began to.
	swallowing map[string]map[ends]bool
}

// spoils reports whether a kind of fault makes dcol avoid a waypoint.
func spoils(k plan.Kind) bool {
	return k == plan.LinkTamper || k == plan.DropTCP || k == plan.Swallow
}

// take returns the waypoint to spoil: the busiest one, or, if all others are spoiled,
// one of those.
func (s *spoiled) take(busiest string, waypoints int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.waypoints[busiest] && len(s.waypoints)+1 >= waypoints {
		return slices.Min(slices.Collect(maps.Keys(s.waypoints)))
	}
	if s.waypoints == nil {
		s.waypoints = map[string]bool{}
	}
	s.waypoints[busiest] = true
	return busiest
}

// swallow has a waypoint lose all TCP that it forwards until relent.
func (s *striker) swallow(waypoint string) error {
	used := map[ends]bool{}
	err := s.w.eachSubflow(func(p mptcp.Subflow) {
		if min(p.Metrics.LastDataRecv, p.Metrics.LastDataSent) < recent {
			used[ends{p.Local, p.Remote}] = true
		}
	})
	if err != nil {
		return err
	}
	s.spoiled.mu.Lock()
	defer s.spoiled.mu.Unlock()
	if s.spoiled.swallowing[waypoint] != nil {
		return nil
	}
	if s.spoiled.swallowing == nil {
		s.spoiled.swallowing = map[string]map[ends]bool{}
	}
	s.spoiled.swallowing[waypoint] = used
	return s.drop(waypoint, 1)
}

// relent ends what swallow began.
func (s *striker) relent() error {
	s.spoiled.mu.Lock()
	defer s.spoiled.mu.Unlock()
	for name := range s.spoiled.swallowing {
		delete(s.spoiled.swallowing, name)
		if err := s.drop(name, -1); err != nil {
			return err
		}
	}
	return nil
}

// leads reports how a subflow through a waypoint stands while that drops TCP: dead
// if it does not count as a path, and idle if nothing has shown that to its owner, as
// it was not in use and nothing has been sent over it.
func (s *spoiled) leads(waypoint string, f mptcp.Subflow) (dead, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	used, dropped := s.swallowing[waypoint]
	if !dropped {
		return false, false
	}
	idle = !used[ends{f.Local, f.Remote}] && f.Metrics.Unacked == 0 && f.Metrics.NotSent == 0
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
