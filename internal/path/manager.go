package path

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/deadline"
)

// Config holds the operator's settings.
type Config struct {
	Policy Policy
	// TLSPorts lists the server ports on which detours join as backup until the server's first data
	// has arrived over the direct path.
	TLSPorts []uint16
	// Exclude lists destinations that never get a detour.
	Exclude []netip.Prefix
}

// Manager holds the path manager's state. It is not safe for concurrent use.
type Manager struct {
	cfg      Config
	conns    map[Token]*conn
	byServer map[netip.AddrPort]map[Token]*conn // by conn.server
	due      *deadline.Queue[*conn]

	detours  map[DetourID]*offered
	general  []*offered                    // reach any server
	specific map[netip.AddrPort][]*offered // reach one server
	lost     map[via]time.Time             // waypoints that no longer answer, and since when
	retries  map[route]retry
	trials   map[DetourID]*trial
	swept    time.Time // when retries and trials were last cleaned up
	woken    bool      // a detour was proven: connections that lack one may use it
	again    []Token   // connections to step besides the event's own

	busy      []*conn // sampled closely
	round     uint64  // counts complete samples
	checksums checksums
	vanished  []vanished // recently
	blames    map[blamed]blame
	places    map[netip.Addr]places // by server
	// refusedByServers counts subflows that servers closed because they accept no more.
	refusedByServers uint64

	network uint32              // counts changes of network
	addrs   []netip.Addr        // this host's, sorted; nil: unknown
	newer   []netip.Addr        // subflows start from them, addrs lacks them; asked about
	tunnels map[netip.Addr]bool // addresses of tunnels that exist or are on offer

	out      []Action
	failures map[string]int // scratch of view, by waypoint

	inUse   []InUse
	usable  []Usable
	resting []Resting
	unready []Resting // for no connection there
}

// New returns a Manager without connections and detours.
func New(cfg Config) *Manager {
	return &Manager{
		cfg:      cfg,
		conns:    make(map[Token]*conn),
		byServer: make(map[netip.AddrPort]map[Token]*conn),
		due:      deadline.New(func(a, b *conn) int { return cmp.Compare(a.token, b.token) }),
		detours:  make(map[DetourID]*offered),
		specific: make(map[netip.AddrPort][]*offered),
		lost:     make(map[via]time.Time),
		retries:  make(map[route]retry),
		trials:   make(map[DetourID]*trial),
		blames:   make(map[blamed]blame),
		places:   make(map[netip.Addr]places),
		tunnels:  make(map[netip.Addr]bool),
		failures: make(map[string]int),
	}
}

// Handle processes one event and returns the actions it requires. The slice is valid until the next
// call. Events about unknown connections are ignored: they are late events of a closed one.
func (m *Manager) Handle(ev Event, now time.Time) []Action {
	m.out = m.out[:0]
	m.forgetFailures(now)
	switch ev := ev.(type) {
	case ConnEstablished:
		m.established(ev, now)
	case ConnClosed:
		m.forget(ev.Token)
	case SubflowRequested:
		m.with(ev.Token, now, func(c *conn) { m.requested(c, ev) })
	case CreateFailed:
		m.with(ev.Token, now, func(c *conn) { m.createFailed(c, ev, now) })
	case SubflowEstablished:
		m.with(ev.Token, now, func(c *conn) { m.joined(c, ev, now) })
	case SubflowClosed:
		m.with(ev.Token, now, func(c *conn) { m.closed(c, ev, now) })
	case AddrAnnounced:
		m.with(ev.Token, now, func(c *conn) { m.announced(c, ev) })
	case DetourOffered:
		m.offer(ev.Detour, now)
	case DetourWithdrawn:
		m.withdraw(ev, now)
	case WaypointReady:
		m.waypointReady(ev, now)
	case WaypointLost:
		m.waypointLost(via{ev.Waypoint, ev.Addr}, now)
	case WaypointLeft:
		m.leave(via{ev.Waypoint, ev.Addr}, now)
	case ServerRefused:
		m.serverRefused(ev, now)
	case KindUnready:
		m.kindUnready(ev)
	case LocalAddrs:
		m.localAddrs(ev, now)
	case Measured:
		m.measured(ev, now)
	case SubflowMissing:
		m.with(ev.Token, now, func(c *conn) { m.subflowMissing(c, ev, now) })
	case Resync:
		m.resync(ev.Conns, now)
	case Tick:
		m.tick(now)
	}
	if m.woken {
		m.wake(now)
	}
	for len(m.again) > 0 { // step may append to it
		token := m.again[0]
		m.again = m.again[1:]
		m.with(token, now, func(*conn) {})
	}
	m.again = nil
	return m.out
}

// Next returns the time at which Handle needs a Tick. It returns false if no Tick is needed before
// the next event.
func (m *Manager) Next() (time.Time, bool) {
	if first := m.due.First(); first != nil {
		return first.Due(), true
	}
	return time.Time{}, false
}

func (m *Manager) do(a Action) { m.out = append(m.out, a) }

// with applies change to a known connection and then runs its next step.
func (m *Manager) with(t Token, now time.Time, change func(*conn)) {
	if c := m.conns[t]; c != nil {
		change(c)
		m.step(c, now)
	}
}

func (m *Manager) tick(now time.Time) {
	for {
		first := m.due.First()
		if first == nil || first.Due().After(now) {
			return
		}
		m.step(first.Item, now) // step moves its due time, or clears it
	}
}

// established adds a new connection.
func (m *Manager) established(ev ConnEstablished, now time.Time) {
	if ev.ServerSide {
		return
	}
	c := m.conns[ev.Token]
	if c == nil { // otherwise a resync found it before its event arrived
		c = m.newConn(ev.Token, ev.Local, ev.Remote, now)
		c.subflows = append(c.subflows, &subflow{
			direct: true, up: true, local: ev.Local, remote: ev.Remote, since: now, moved: now,
		})
		m.track(c)
	}
	c.denyInitial = ev.DenyJoinInitial
	m.startsFrom(ev.Local)
	m.step(c, now)
}

func (m *Manager) newConn(t Token, local, remote netip.AddrPort, now time.Time) *conn {
	c := &conn{
		token: t, local: local, remote: remote, server: remote, since: now, seen: now,
		excluded: m.excludes(remote.Addr()),
		tls:      slices.Contains(m.cfg.TLSPorts, remote.Port()),
	}
	c.due.Item = c
	return c
}

func (m *Manager) excludes(server netip.Addr) bool {
	return server.IsLoopback() || server.IsLinkLocalUnicast() || slices.Contains(m.addrs, server) ||
		slices.ContainsFunc(m.cfg.Exclude, func(p netip.Prefix) bool { return p.Contains(server) })
}

// track and forget are the only functions that change conns and byServer.
func (m *Manager) track(c *conn) {
	m.conns[c.token] = c
	if m.byServer[c.server] == nil {
		m.byServer[c.server] = make(map[Token]*conn)
	}
	m.byServer[c.server][c.token] = c
}

func (m *Manager) forget(t Token) {
	c := m.conns[t]
	if c == nil {
		return
	}
	m.due.Set(&c.due, time.Time{})
	delete(m.conns, t)
	delete(m.byServer[c.server], t)
	if len(m.byServer[c.server]) == 0 {
		delete(m.byServer, c.server)
	}
}

// inOrder sorts connections, the oldest first, so that every run acts on them in the same order.
func inOrder(conns map[Token]*conn) []*conn {
	return slices.SortedFunc(maps.Values(conns), byAge)
}

func byAge(a, b *conn) int {
	return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.token, b.token))
}
