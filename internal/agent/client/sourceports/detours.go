package sourceports

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// A detour has two legs: one to its waypoint, and one from there to the server. A path server chooses ports for both. Without
// one, probes find ports for the first leg.

// detour identifies a detour to one server. Without a server, it stands for the first leg of all such
// detours.
type detour struct {
	kind           path.Kind
	waypoint       string
	local          netip.Addr // of tunnels
	remote, server netip.AddrPort
}

// detourPorts has the source ports of a detour.
type detourPorts struct {
	asked     time.Time // of the last answer; zero: none yet
	searching bool
	ports     [][]uint16           // by path
	turn      int                  // path of the next subflow
	waiting   []path.CreateSubflow // for the first answer
}

func detourOf(a path.CreateSubflow) detour {
	return detour{a.Kind, a.Waypoint, a.Local, a.Remote, a.Server}
}

// firstLegOf identifies the leg of a detour to its waypoint, which is the same for all servers.
func firstLegOf(a path.CreateSubflow) detour {
	return detour{kind: a.Kind, waypoint: a.Waypoint, remote: a.Remote}
}

// ofDetour returns the ports of a detour's subflow, the preferred ones first. Subflows take turns on the
// paths. The ports of this subflow's path come first, and those of the other paths follow, in case the
// first are in use.
func (p *Ports) ofDetour(a path.CreateSubflow) []uint16 {
	known := p.detours[detourOf(a)]
	if known == nil {
		known = p.detours[firstLegOf(a)]
	}
	if known == nil || len(known.ports) == 0 {
		return nil
	}
	turn := known.turn % len(known.ports)
	known.turn = turn + 1
	return slices.Concat(append(slices.Clone(known.ports[turn:]), known.ports[:turn]...)...)
}

// PathServer returns the path server that chooses the ports of a detour, as NAME@HOST:PORT; empty: none does.
func (p *Ports) PathServer(a path.CreateSubflow) string {
	if a.Direct || a.Kind == path.Port || a.Kind == path.Uplink {
		return ""
	}
	i := slices.IndexFunc(p.policies, func(x portPolicy) bool { return x.detours && x.server != "" && x.coversAnyCgroup(a.Server) })
	if i < 0 {
		return ""
	}
	return p.policies[i].server
}

// coversAnyCgroup reports whether the policy covers connections to a server, for programs in some cgroup.
func (x portPolicy) coversAnyCgroup(server netip.AddrPort) bool {
	x.rule.Cgroup = ""
	return x.rule.Covers(server.Port(), server.Addr(), "")
}

// WantFirstLeg reports whether to search the ports of a detour's first leg by probes now. Its subflow does
// not wait for the search, which takes seconds.
func (p *Ports) WantFirstLeg(a path.CreateSubflow, now time.Time) bool {
	return p.probes(a) && p.firstLegDue(a, now)
}

// probes reports whether probes can find the ports of a detour's first leg. The waypoint itself must
// answer the probes: through a mapped port, they would go on to the server as connections.
func (p *Ports) probes(a path.CreateSubflow) bool {
	return !a.Direct && a.Kind == path.InBand && slices.ContainsFunc(p.policies, func(x portPolicy) bool {
		return x.detours && x.server == "" && x.coversAnyCgroup(a.Server)
	})
}

func (p *Ports) firstLegDue(a path.CreateSubflow, now time.Time) bool {
	known := p.entry(firstLegOf(a))
	if known == nil || known.searching || now.Sub(known.asked) < lifetime {
		return false
	}
	known.searching = true
	return true
}

// entry returns the ports of a detour, which may be unknown yet; nil: there is no room for another detour.
func (p *Ports) entry(key detour) *detourPorts {
	known := p.detours[key]
	if known == nil && (len(p.detours) < mostKnown || p.forgetDetour()) {
		known = &detourPorts{}
		p.detours[key] = known
	}
	return known
}

// Await makes a subflow wait until the ports of its detour are known. It reports whether the subflow
// waits, and whether to ask the path server now.
func (p *Ports) Await(a path.CreateSubflow, now time.Time) (waits, ask bool) {
	known := p.entry(detourOf(a))
	if known == nil {
		return false, false
	}
	if ask = !known.searching && now.Sub(known.asked) >= renewAfter; ask {
		known.searching = true
	}
	if waits = known.asked.IsZero(); waits {
		known.waiting = append(known.waiting, a)
	}
	return waits, ask
}

// forgetDetour drops the detour whose ports were requested longest ago. It reports whether there was one.
func (p *Ports) forgetDetour() bool {
	var oldest *detour
	for key, known := range p.detours {
		if !known.searching && (oldest == nil || known.asked.Before(p.detours[*oldest].asked)) {
			oldest = &key
		}
	}
	if oldest == nil {
		return false
	}
	delete(p.detours, *oldest)
	return true
}

// Placed takes in a path server's answer about a detour, ports by path or an error, and returns the subflows that waited for
// it. After an error, the ports that were known stay.
func (p *Ports) Placed(a path.CreateSubflow, ports [][]uint16, err error, now time.Time) (waited []path.CreateSubflow) {
	return p.take(detourOf(a), ports, err, now)
}

// FirstLegFound takes in the result of probes of a detour's first leg. After an error, the ports that were known stay.
func (p *Ports) FirstLegFound(a path.CreateSubflow, ports [][]uint16, err error, now time.Time) {
	p.take(firstLegOf(a), ports, err, now)
}

func (p *Ports) take(key detour, ports [][]uint16, err error, now time.Time) (waited []path.CreateSubflow) {
	known := p.detours[key]
	known.searching, known.asked = false, now
	if err != nil {
		known.asked = now.Add(askAgain - renewAfter)
	} else {
		known.ports = ports
	}
	waited, known.waiting = known.waiting, nil
	return waited
}

// forgetDetours forgets the ports of all detours, because routes have changed.
func (p *Ports) forgetDetours() {
	maps.DeleteFunc(p.detours, func(_ detour, known *detourPorts) bool { return !known.searching })
}
