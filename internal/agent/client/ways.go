package client

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/path"
)

const (
	// wayLifetime is the time after which ports are searched anew for a new connection: routes far away change unseen.
	wayLifetime = 10 * time.Minute
	// mostWays bounds the servers whose ports are remembered.
	mostWays = 256
	// portsEach is the number of ports that are wanted on each path: as many connections to one server can use it. Browsers open
	// six.
	portsEach = 6
	// placedEach is the same of a path server, which computes them.
	placedEach = 16
	// searchTime bounds one search.
	searchTime = time.Minute
)

// ways remembers the ports that lead to distinct paths, for the servers of connections with the policy paths.
type ways struct {
	policies []waysPolicy
	known    map[netip.AddrPort]*way
	find     findWays
	turn     chan struct{} // held by the search in progress: one at a time
	dropped  []path.Event  // withdraw what was offered for servers that were forgotten
	legs     map[legs]*legPorts
	hearing  map[string]bool // path servers with an open request for moves
}

// findWays returns ports that lead to a server, by path, about each ports on every one.
type findWays func(ctx context.Context, server netip.AddrPort, ways, each int) ([][]uint16, error)

// waysPolicy is a policy that chooses ports: which connections it covers, how many paths they want, and who knows them.
type waysPolicy struct {
	rule    path.Rule
	paths   int    // 0: detours only
	server  string // NAME@HOST:PORT; empty: this host finds them
	bytes   uint64 // the path server is asked for connections that carried as many
	detours bool
}

// way has the ports that are known for one server.
type way struct {
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

func newWays(policies []config.Policy, find findWays) ways {
	w := ways{
		known: make(map[netip.AddrPort]*way), find: find, turn: make(chan struct{}, 1), legs: make(map[legs]*legPorts),
		hearing: make(map[string]bool),
	}
	for _, p := range policies {
		switch {
		case p.Use == config.UsePaths:
			w.policies = append(w.policies, waysPolicy{coverage(&p), p.Paths(), p.Server, uint64(p.AfterBytes), p.Detours})
		case p.Server != "":
			w.policies = append(w.policies, waysPolicy{coverage(&p), 0, p.Server, 0, true})
		}
	}
	return w
}

// wants returns the number of paths that the policies want to a server for programs in a cgroup, after a connection carried
// so many bytes, and the path server to ask; 0: none.
func (w *ways) wants(server netip.AddrPort, cgroup string, carried uint64) (n int, asked string) {
	for _, p := range w.policies {
		if !p.rule.Covers(server.Port(), server.Addr(), cgroup) || p.server != "" && carried < p.bytes {
			continue
		}
		if n == 0 && p.paths > 0 {
			asked = p.server
		}
		n = max(n, p.paths)
	}
	return n, asked
}

// due notes that a connection to the server wants its paths, and reports whether they are to be searched now.
func (w *ways) due(server netip.AddrPort, paths int, asked string, now time.Time) bool {
	known := w.known[server]
	if known == nil {
		if len(w.known) >= mostWays && !w.forget(now) {
			return false
		}
		known = &way{}
		w.known[server] = known
	}
	known.wanted, known.paths, known.asked = now, max(paths, known.paths), asked
	return known.search(now)
}

// search reports whether ports are to be searched now.
func (known *way) search(now time.Time) bool {
	age := now.Sub(known.found)
	if known.searching || age < known.lifetime() && !known.moved {
		return false
	}
	if age >= wayLifetime {
		known.answers = 0
	}
	known.searching, known.moved = true, false
	return true
}

// lifetime returns the time after which ports are searched anew. A path server is soon asked again about new flows.
func (known *way) lifetime() time.Duration {
	switch {
	case known.asked == "":
		return wayLifetime
	case known.answers <= renewsSoon:
		return renewSoon
	}
	return renewAfter
}

// forget drops the server that was wanted least lately, among those for which there is no offer, or else among those that
// were not wanted for wayLifetime. It reports whether there was one.
func (w *ways) forget(now time.Time) bool {
	var oldest netip.AddrPort
	for server, known := range w.known {
		if known.searching || len(known.ports) > 0 && now.Sub(known.wanted) < wayLifetime {
			continue
		}
		than := w.known[oldest]
		offered := len(known.ports) > 0
		if than == nil || !offered && len(than.ports) > 0 || offered == (len(than.ports) > 0) && known.wanted.Before(than.wanted) {
			oldest = server
		}
	}
	if !oldest.IsValid() {
		return false
	}
	for i := range w.known[oldest].ports {
		w.dropped = append(w.dropped, path.DetourWithdrawn{ID: wayID(i, oldest)})
	}
	delete(w.known, oldest)
	return true
}

// stale has all ports searched anew, because routes have changed. It returns the servers that were wanted lately.
func (w *ways) stale(now time.Time) (servers []netip.AddrPort) {
	w.staleLegs()
	for _, server := range slices.SortedFunc(maps.Keys(w.known), netip.AddrPort.Compare) {
		known := w.known[server]
		known.found, known.again = time.Time{}, known.searching
		if now.Sub(known.wanted) < wayLifetime {
			servers = append(servers, server)
		}
	}
	return servers
}

// take notes what a search has found, and returns what the path manager is to be told. After an error, what was known
// stays. If nothing was known and the path server does not answer, subflows take paths by chance.
func (w *ways) take(server netip.AddrPort, ports [][]uint16, err error, now time.Time) (events []path.Event) {
	known := w.known[server]
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
		d := path.Detour{ID: wayID(i, server), Kind: path.Port, Waypoint: wayName(i), Server: server}
		switch {
		case i >= len(ports):
			events = append(events, path.DetourWithdrawn{ID: d.ID})
		case i >= len(before):
			events = append(events, path.DetourOffered{Detour: d})
		case known.asked != "" && len(before[i]) > 0 && !alike(before[i], ports[i]):
			events = append(events, path.DetourMoved{ID: d.ID})
		}
	}
	return events
}

// inPlace returns a path server's new answer with those paths in their old places that it had named before.
func inPlace(before, ports [][]uint16) [][]uint16 {
	placed := make([][]uint16, len(ports))
	var fresh [][]uint16
	for _, p := range ports {
		i := slices.IndexFunc(before, func(b []uint16) bool { return alike(b, p) })
		if i >= 0 && i < len(placed) && placed[i] == nil {
			placed[i] = p
		} else {
			fresh = append(fresh, p)
		}
	}
	for i := range placed {
		if placed[i] == nil {
			placed[i], fresh = fresh[0], fresh[1:]
		}
	}
	return placed
}

// alike reports whether two lists of ports lead along one path, of which each port has only one.
func alike(a, b []uint16) bool {
	return slices.ContainsFunc(a, func(port uint16) bool { return slices.Contains(b, port) })
}

func wayName(i int) string { return fmt.Sprint("path-", i+1) }

func wayID(i int, server netip.AddrPort) path.DetourID {
	return path.DetourID(fmt.Sprint("path ", i+1, " to ", server))
}

// candidates returns the source ports by which a subflow takes its path; nil: any port. Only they are possible for a path by
// ports. A detour has others where they are all in use.
func (w *ways) candidates(a path.CreateSubflow) (ports []uint16, only bool) {
	switch {
	case a.Direct:
		return nil, false
	case a.Kind != path.Port:
		return w.legPorts(a), false
	case a.Waypoint == "":
		return nil, false
	}
	if known := w.known[a.Server]; known != nil {
		for i, ports := range known.ports {
			if wayName(i) == a.Waypoint {
				return ports, ports != nil
			}
		}
	}
	return nil, true
}

// lookForWays searches ports that lead to distinct paths to a connection's server, if its policy wants them and they are
// not known.
func (c *Client) lookForWays(ctx context.Context, server netip.AddrPort, cgroup string, carried uint64, now time.Time) {
	w := &c.host.ways
	if n, asked := w.wants(server, cgroup, carried); n > 0 && w.due(server, n, asked, now) {
		c.backlog, w.dropped = append(c.backlog, w.dropped...), nil
		c.searchWays(ctx, server)
	}
}

// waysChanged searches the ports anew that connections wanted lately.
func (c *Client) waysChanged(ctx context.Context, now time.Time) {
	for _, server := range c.host.ways.stale(now) {
		if c.host.ways.known[server].search(now) {
			c.searchWays(ctx, server)
		}
	}
}

func (c *Client) searchWays(ctx context.Context, server netip.AddrPort) {
	known := c.host.ways.known[server]
	paths, each, find := known.paths, portsEach, c.host.ways.inTurn
	if known.asked != "" {
		each, find = placedEach, c.pathServer(known.asked, server.Addr())
	}
	c.requests.Go(func() {
		limited, cancel := context.WithTimeout(ctx, searchTime)
		defer cancel()
		ports, err := find(limited, server, paths, each)
		c.post(ctx, func(now time.Time) {
			c.log.Debug("paths by ports were searched", "server", server, "ports", ports)
			if err != nil && ctx.Err() == nil {
				c.log.Warn("paths by ports to a server are not known", "server", server, "err", err)
			}
			c.backlog = append(c.backlog, c.host.ways.take(server, ports, err, now)...)
			c.decide(ctx, now)
			c.hearMoves(ctx, known.asked, now)
		})
	})
}

// inTurn searches by probes, one server after the other.
func (w *ways) inTurn(ctx context.Context, server netip.AddrPort, paths, each int) ([][]uint16, error) {
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
		return w.find(ctx, server, paths, each)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
