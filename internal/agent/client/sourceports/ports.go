// Package sourceports makes the subflows of a connection take distinct paths by their source ports.
// Routers that balance load choose a packet's path by its addresses and ports. Only the client role
// imports the package.
//
// Ports remembers which source ports lead along which path, and decides when to search them. It does no
// I/O and is told the time. A Searcher finds the ports, by probes or by asking a path server. That takes
// up to a minute, so it runs outside the client's loop.
package sourceports

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/agent/client/policies"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/path"
)

const (
	// lifetime is the time after which ports are searched anew for a new connection: routes far away change unseen.
	lifetime = 10 * time.Minute
	// mostKnown bounds the servers whose ports are remembered, and the detours.
	mostKnown = 256
	// renewAfter is the time after which a path server is asked again while connections use its answer. It counts their flows
	// for twice as long.
	renewAfter = 5 * time.Minute
	// renewSoon is the same for the first renewsSoon times. A path server places flows without knowing those that come later,
	// and moves one of a host's flows each time that the host asks again.
	renewSoon  = 30 * time.Second
	renewsSoon = 3
	// askAgain is the time after which a path server that did not answer is asked again for a new connection.
	askAgain = 30 * time.Second
)

// Ports remembers the source ports by which subflows take distinct paths, for the connections whose policy wants that. One
// goroutine uses it. The zero value is for a client without such policies.
type Ports struct {
	policies []portPolicy
	servers  map[netip.AddrPort]*serverPorts
	dropped  []path.Event // withdraw what was offered for servers that were forgotten
	detours  map[detour]*detourPorts
	hearing  map[string]bool // path servers with an open request for moves
}

// portPolicy is a policy that chooses ports.
type portPolicy struct {
	rule    path.Rule // covers its connections
	paths   int       // wanted by each of them; 0: only detours get ports
	server  string    // path server, NAME@HOST:PORT; empty: probes find the paths
	bytes   uint64    // that a connection must have carried before the path server is asked about it
	detours bool      // detours get ports, too
}

// serverPorts has the ports to one server.
type serverPorts struct {
	wanted    time.Time // by a connection
	paths     int       // wanted
	asked     string    // path server; empty: probes find the paths
	found     time.Time // zero: never, or routes have changed since
	searching bool
	again     bool       // routes have changed during the search
	moved     bool       // by the path server since it was asked
	answers   int        // of the path server, since its flows were placed
	ports     [][]uint16 // by path
}

// New returns the ports of a client with these policies. None are known yet.
func New(list []config.Policy) Ports {
	p := Ports{
		servers: make(map[netip.AddrPort]*serverPorts), detours: make(map[detour]*detourPorts), hearing: make(map[string]bool),
	}
	for _, x := range list {
		switch {
		case x.Use == config.UsePaths:
			p.policies = append(p.policies, portPolicy{policies.Coverage(&x), x.Paths(), x.Server, uint64(x.AfterBytes), x.Detours})
		case x.Server != "":
			p.policies = append(p.policies, portPolicy{policies.Coverage(&x), 0, x.Server, 0, true})
		}
	}
	return p
}

// Search is a request to a Searcher for ports on several paths to a server.
type Search struct {
	Server     netip.AddrPort
	Paths      int
	PathServer string // NAME@HOST:PORT; empty: probes find the paths
}

// Want is called when a connection to a server has begun, or has carried that number of bytes. It reports
// whether to search ports now: the connection's policy wants them, and they are not known. Want also
// returns changes for the path manager.
func (p *Ports) Want(server netip.AddrPort, cgroup string, carried uint64, now time.Time) (s Search, search bool, changes []path.Event) {
	n, asked := p.wants(server, cgroup, carried)
	if n == 0 || !p.due(server, n, asked, now) {
		return s, false, nil
	}
	changes, p.dropped = p.dropped, nil
	return p.searchFor(server), true, changes
}

func (p *Ports) searchFor(server netip.AddrPort) Search {
	known := p.servers[server]
	return Search{server, known.paths, known.asked}
}

// wants returns how many paths the policies want to a server, for programs in a cgroup and after a
// connection has carried that number of bytes, and the path server to ask; 0: none.
func (p *Ports) wants(server netip.AddrPort, cgroup string, carried uint64) (n int, asked string) {
	for _, x := range p.policies {
		if !x.rule.Covers(server.Port(), server.Addr(), cgroup) || x.server != "" && carried < x.bytes {
			continue
		}
		if n == 0 && x.paths > 0 {
			asked = x.server
		}
		n = max(n, x.paths)
	}
	return n, asked
}

// due notes that a connection to the server wants its paths, and reports whether they are to be searched now.
func (p *Ports) due(server netip.AddrPort, paths int, asked string, now time.Time) bool {
	known := p.servers[server]
	if known == nil {
		if len(p.servers) >= mostKnown && !p.forget(now) {
			return false
		}
		known = &serverPorts{}
		p.servers[server] = known
	}
	known.wanted, known.paths, known.asked = now, max(paths, known.paths), asked
	return known.search(now)
}

// search reports whether ports are to be searched now, and notes that they are.
func (known *serverPorts) search(now time.Time) bool {
	age := now.Sub(known.found)
	if known.searching || age < known.lifetime() && !known.moved {
		return false
	}
	if age >= lifetime {
		known.answers = 0
	}
	known.searching, known.moved = true, false
	return true
}

// lifetime returns the time after which ports are searched anew. A path server is soon asked again about new flows.
func (known *serverPorts) lifetime() time.Duration {
	switch {
	case known.asked == "":
		return lifetime
	case known.answers <= renewsSoon:
		return renewSoon
	}
	return renewAfter
}

// forget drops the server that was wanted longest ago. It prefers servers without an offer. A server with
// an offer is dropped only if it was not wanted for a lifetime. It reports whether there was one to drop.
func (p *Ports) forget(now time.Time) bool {
	var oldest netip.AddrPort
	for server, known := range p.servers {
		if known.searching || len(known.ports) > 0 && now.Sub(known.wanted) < lifetime {
			continue
		}
		than := p.servers[oldest]
		offered := len(known.ports) > 0
		if than == nil || !offered && len(than.ports) > 0 || offered == (len(than.ports) > 0) && known.wanted.Before(than.wanted) {
			oldest = server
		}
	}
	if !oldest.IsValid() {
		return false
	}
	for i := range p.servers[oldest].ports {
		p.dropped = append(p.dropped, path.DetourWithdrawn{ID: pathID(i, oldest)})
	}
	delete(p.servers, oldest)
	return true
}

// RoutesChanged marks all ports as outdated. It returns the searches to begin now, for the servers that
// were wanted lately.
func (p *Ports) RoutesChanged(now time.Time) (list []Search) {
	for _, server := range p.stale(now) {
		if p.servers[server].search(now) {
			list = append(list, p.searchFor(server))
		}
	}
	return list
}

// stale marks all ports as unknown, and returns the servers that were wanted lately.
func (p *Ports) stale(now time.Time) (servers []netip.AddrPort) {
	p.forgetDetours()
	for _, server := range slices.SortedFunc(maps.Keys(p.servers), netip.AddrPort.Compare) {
		known := p.servers[server]
		known.found, known.again = time.Time{}, known.searching
		if now.Sub(known.wanted) < lifetime {
			servers = append(servers, server)
		}
	}
	return servers
}

// Found takes in the result of a search, ports by path or an error, and returns changes for the path manager. After an
// error, the ports that were known stay. If none were known and the path server does not answer, subflows take paths by
// chance.
func (p *Ports) Found(server netip.AddrPort, ports [][]uint16, err error, now time.Time) (changes []path.Event) {
	known := p.servers[server]
	known.searching = false
	if known.found = now; known.again {
		known.found, known.again = time.Time{}, false
	}
	if err == nil {
		known.answers++
	}
	if err != nil && known.asked != "" {
		known.found = known.found.Add(askAgain - known.lifetime())
		ports = make([][]uint16, known.paths)
	}
	if err != nil && (known.asked == "" || len(known.ports) > 0) {
		return nil
	}
	before := known.ports
	if known.asked != "" {
		ports = inPlace(before, ports)
	}
	known.ports = ports
	for i := range max(len(before), len(ports)) {
		d := path.Detour{ID: pathID(i, server), Kind: path.Port, Waypoint: pathName(i), Server: server}
		switch {
		case i >= len(ports):
			changes = append(changes, path.DetourWithdrawn{ID: d.ID})
		case i >= len(before):
			changes = append(changes, path.DetourOffered{Detour: d})
		case known.asked != "" && len(before[i]) > 0 && !alike(before[i], ports[i]):
			changes = append(changes, path.DetourMoved{ID: d.ID})
		}
	}
	return changes
}

// inPlace returns a path server's new answer in the order of its last one, so that a path that it names again keeps its place.
func inPlace(before, ports [][]uint16) [][]uint16 {
	placed := make([][]uint16, len(ports))
	var fresh [][]uint16
	for _, x := range ports {
		i := slices.IndexFunc(before, func(b []uint16) bool { return alike(b, x) })
		if i >= 0 && i < len(placed) && placed[i] == nil {
			placed[i] = x
		} else {
			fresh = append(fresh, x)
		}
	}
	for i := range placed {
		if placed[i] == nil {
			placed[i], fresh = fresh[0], fresh[1:]
		}
	}
	return placed
}

// alike reports whether two lists of ports lead along the same path. They do if they have a port in
// common, because a port has one path.
func alike(a, b []uint16) bool {
	return slices.ContainsFunc(a, func(port uint16) bool { return slices.Contains(b, port) })
}

func pathName(i int) string { return fmt.Sprint("path-", i+1) }

func pathID(i int, server netip.AddrPort) path.DetourID {
	return path.DetourID(fmt.Sprint("path ", i+1, " to ", server))
}

// Candidates returns the source ports with which a subflow takes its path, the best first; nil: any port
// does. If only is set, the subflow must not use another port. A detour may use another port if all of
// these are in use.
func (p *Ports) Candidates(a path.CreateSubflow) (ports []uint16, only bool) {
	switch {
	case a.Direct:
		return nil, false
	case a.Kind != path.Port:
		return p.ofDetour(a), false
	case a.Waypoint == "":
		return nil, false
	}
	if known := p.servers[a.Server]; known != nil {
		for i, ports := range known.ports {
			if pathName(i) == a.Waypoint {
				return ports, ports != nil
			}
		}
	}
	return nil, true
}
