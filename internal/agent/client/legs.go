package client

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/paths/pathserver"
)

const (
	// legPaths is the number of paths that are wanted through a waypoint to one server. Its connections take turns on them.
	legPaths = 4
	// legPortsEach is the number of ports that are wanted on each of them: as many connections to one server can use it.
	legPortsEach = 16
	// legTime bounds the time for which a subflow waits for its ports. The path manager wants it to be up after four seconds.
	legTime = time.Second
)

// legs identifies a detour to one server, which leads to its waypoint and from there to the server.
type legs struct {
	kind           path.Kind
	waypoint       string
	local          netip.Addr // of tunnels
	remote, server netip.AddrPort
}

// legPorts has the source ports that a path server chose for both legs of a detour, or that probes found for its first leg.
type legPorts struct {
	asked     time.Time // of the last answer; zero: none yet
	searching bool
	ports     [][]uint16           // by path
	turn      int                  // path of the next subflow
	waiting   []path.CreateSubflow // for the first answer
}

func legsOf(a path.CreateSubflow) legs { return legs{a.Kind, a.Waypoint, a.Local, a.Remote, a.Server} }

// firstLegOf identifies the leg of a detour to its waypoint, which is the same for all servers.
func firstLegOf(a path.CreateSubflow) legs {
	return legs{kind: a.Kind, waypoint: a.Waypoint, remote: a.Remote}
}

// legPorts returns the ports for a subflow, those of the path whose turn it is first. Others follow, in case these are in use.
func (w *ways) legPorts(a path.CreateSubflow) (ports []uint16) {
	known := w.legs[legsOf(a)]
	if known == nil {
		known = w.legs[firstLegOf(a)]
	}
	if known == nil || len(known.ports) == 0 {
		return nil
	}
	turn := known.turn % len(known.ports)
	known.turn = turn + 1
	return slices.Concat(append(slices.Clone(known.ports[turn:]), known.ports[:turn]...)...)
}

// askedOf returns the path server that chooses the ports of a detour; "": none does.
func (w *ways) askedOf(a path.CreateSubflow) string {
	if a.Direct || a.Kind == path.Port || a.Kind == path.Uplink {
		return ""
	}
	i := slices.IndexFunc(w.policies, func(p waysPolicy) bool {
		p.rule.Cgroup = ""
		return p.detours && p.server != "" && p.rule.Covers(a.Server.Port(), a.Server.Addr(), "")
	})
	if i < 0 {
		return ""
	}
	return w.policies[i].server
}

// finds reports whether probes find the ports of a detour's first leg. The waypoint itself must answer them: through a port that is
// mapped, they would go on to the server as connections of their own.
func (w *ways) finds(a path.CreateSubflow) bool {
	return !a.Direct && a.Kind == path.InBand && slices.ContainsFunc(w.policies, func(p waysPolicy) bool {
		p.rule.Cgroup = ""
		return p.detours && p.server == "" && p.rule.Covers(a.Server.Port(), a.Server.Addr(), "")
	})
}

// searchesLeg reports whether the ports of a detour's first leg are to be searched now. That takes seconds, so no subflow waits for it.
func (w *ways) searchesLeg(a path.CreateSubflow, now time.Time) bool {
	known := w.legOf(firstLegOf(a))
	if known == nil || known.searching || now.Sub(known.asked) < wayLifetime {
		return false
	}
	known.searching = true
	return true
}

// legOf returns what is known of a detour, which may be nothing yet; nil: there is no room for it.
func (w *ways) legOf(key legs) *legPorts {
	known := w.legs[key]
	if known == nil && (len(w.legs) < mostWays || w.forgetLegs()) {
		known = &legPorts{}
		w.legs[key] = known
	}
	return known
}

// await has a subflow wait until the ports of its detour are known. It reports whether the subflow waits, and whether the path
// server is to be asked now.
func (w *ways) await(a path.CreateSubflow, now time.Time) (waits, search bool) {
	known := w.legOf(legsOf(a))
	if known == nil {
		return false, false
	}
	if search = !known.searching && now.Sub(known.asked) >= renewAfter; search {
		known.searching = true
	}
	if waits = known.asked.IsZero(); waits {
		known.waiting = append(known.waiting, a)
	}
	return waits, search
}

// forgetLegs drops the detour whose ports were asked for least lately. It reports whether there was one.
func (w *ways) forgetLegs() bool {
	var oldest *legs
	for key, known := range w.legs {
		if !known.searching && (oldest == nil || known.asked.Before(w.legs[*oldest].asked)) {
			oldest = &key
		}
	}
	if oldest == nil {
		return false
	}
	delete(w.legs, *oldest)
	return true
}

// takeLegs notes what a path server answered, and returns the subflows that waited for it. After an error, what was known stays.
func (w *ways) takeLegs(key legs, ports [][]uint16, err error, now time.Time) (waited []path.CreateSubflow) {
	known := w.legs[key]
	known.searching, known.asked = false, now
	if err != nil {
		known.asked = now.Add(askAgain - renewAfter)
	} else {
		known.ports = ports
	}
	waited, known.waiting = known.waiting, nil
	return waited
}

// staleLegs forgets the ports of detours, because routes have changed.
func (w *ways) staleLegs() {
	maps.DeleteFunc(w.legs, func(_ legs, known *legPorts) bool { return !known.searching })
}

// awaitLegs asks the path server of a detour's policy for its ports, if need be. It reports whether the subflow waits for them.
func (c *Client) awaitLegs(ctx context.Context, a path.CreateSubflow, now time.Time) bool {
	w := &c.host.ways
	asked := w.askedOf(a)
	if asked == "" {
		if w.finds(a) && w.searchesLeg(a, now) {
			c.searchLeg(ctx, a)
		}
		return false
	}
	q, ok := c.legsRequest(a)
	if !ok {
		return false
	}
	waits, search := w.await(a, now)
	if !search {
		return waits
	}
	server := c.pathServerAt(asked)
	c.requests.Go(func() {
		limited, cancel := context.WithTimeout(ctx, legTime)
		defer cancel()
		answer, err := server.Place(limited, q)
		var ports [][]uint16
		for _, p := range answer.Paths {
			ports = append(ports, p.Ports)
		}
		c.post(ctx, func(now time.Time) {
			c.log.Debug("ports for both legs of a detour", "waypoint", a.Waypoint, "server", a.Server, "ports", ports)
			if err != nil && ctx.Err() == nil {
				c.log.Warn("the ports of a detour are left to chance", "waypoint", a.Waypoint, "server", a.Server, "err", err)
			}
			for _, waited := range w.takeLegs(legsOf(a), ports, err, now) {
				c.createSubflow(waited)
			}
			c.decide(ctx, now)
		})
	})
	return waits
}

// searchLeg searches ports that lead along distinct paths to a detour's waypoint.
func (c *Client) searchLeg(ctx context.Context, a path.CreateSubflow) {
	w := &c.host.ways
	c.requests.Go(func() {
		limited, cancel := context.WithTimeout(ctx, searchTime)
		defer cancel()
		ports, err := w.inTurn(limited, a.Remote, legPaths, portsEach)
		c.post(ctx, func(now time.Time) {
			c.log.Debug("ports for the first leg of a detour", "waypoint", a.Waypoint, "ports", ports)
			if err != nil && ctx.Err() == nil {
				c.log.Warn("the ports of a detour are left to chance", "waypoint", a.Waypoint, "err", err)
			}
			w.takeLegs(firstLegOf(a), ports, err, now)
		})
	})
}

// legsRequest returns the request for a detour's ports. It reports false if the waypoint's address is not of the server's kind.
func (c *Client) legsRequest(a path.CreateSubflow) (q pathserver.PlaceRequest, ok bool) {
	q = pathserver.PlaceRequest{Source: a.Local, Destination: a.Server, Paths: legPaths, Each: legPortsEach, Waypoint: a.Remote}
	switch a.Kind {
	case path.WireGuard, path.OpenVPN:
		q.Waypoint = netip.AddrPortFrom(c.tunnels.endOf(a), 0)
	default:
		if source, err := c.host.routes.SourceFor(a.Remote.Addr()); !q.Source.IsValid() && err == nil {
			q.Source = source.Addr
		}
	}
	return q, q.Source.IsValid() && q.Waypoint.Addr().BitLen() == a.Server.Addr().BitLen()
}

// endOf returns the waypoint's address to which a subflow's tunnel leads.
func (t *tunnels) endOf(a path.CreateSubflow) netip.Addr {
	for key, s := range t.standings {
		for _, open := range s.Tunnels {
			if key.kind == a.Kind && key.via.Waypoint == a.Waypoint && open.Local == a.Local {
				return key.via.Addr
			}
		}
	}
	return netip.Addr{}
}
