package path

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Config is what the operator decides.
type Config struct {
	Policy Policy
	// TLSPorts are the servers' ports on which detours join as backup until the
	// server's first data has come over the direct path.
	TLSPorts []uint16
	// Exclude are destinations that never get a detour.
	Exclude []netip.Prefix
}

// Manager is the path manager's state. It is not safe for concurrent use.
type Manager struct {
	cfg      Config
	conns    map[Token]*conn
	byServer map[netip.AddrPort]map[Token]*conn // by conn.server
	due      deadlines

	detours  map[DetourID]*offered
	general  []*offered                    // lead to any server
	specific map[netip.AddrPort][]*offered // lead to one
	lost     map[via]time.Time             // waypoints that no longer answer, and since when
	retries  map[route]retry
	trials   map[DetourID]*trial
	swept    time.Time // when retries and trials were last looked through
	woken    bool      // a detour was proven: who is short of one may take it
	again    []Token   // connections that have something to do besides the one of the event

	busy      []*conn // that are sampled closely
	round     uint64  // counts complete samples
	checksums checksums
	vanished  []vanished // lately
	blames    map[blamed]blame
	places    map[netip.Addr]places // by server
	// refusedByServers counts subflows that servers closed as one too many.
	refusedByServers uint64

	network uint32              // how often this host moved
	addrs   []netip.Addr        // this host's, sorted; nil: not known
	tunnels map[netip.Addr]bool // those of tunnels, there or on offer

	out     []Action
	inUse   []InUse
	usable  []Usable
	resting []Resting
	unready []Resting // for no connection there
}

// New returns a Manager that knows of no connection and no detour.
func New(cfg Config) *Manager {
	return &Manager{
		cfg:      cfg,
		conns:    make(map[Token]*conn),
		byServer: make(map[netip.AddrPort]map[Token]*conn),
		detours:  make(map[DetourID]*offered),
		specific: make(map[netip.AddrPort][]*offered),
		lost:     make(map[via]time.Time),
		retries:  make(map[route]retry),
		trials:   make(map[DetourID]*trial),
		blames:   make(map[blamed]blame),
		places:   make(map[netip.Addr]places),
		tunnels:  make(map[netip.Addr]bool),
	}
}

// Handle takes in one event and says what to do about it. The slice is valid
// until the next call. Events about connections that are not known are ignored:
// they are the tail of one that was closed.
func (m *Manager) Handle(ev Event, now time.Time) []Action {
	m.out = m.out[:0]
	m.forgetFailures(now)
	switch ev := ev.(type) {
	case ConnEstablished:
		m.established(ev, now)
	case ConnClosed:
		m.forget(ev.Token)
	case SubflowRequested:
		m.with(ev.Token, now, func(c *conn) { c.requested(ev) })
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
		m.lose(via{ev.Waypoint, ev.Addr}, now)
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
	for len(m.again) > 0 { // each may add to it
		token := m.again[0]
		m.again = m.again[1:]
		m.with(token, now, func(*conn) {})
	}
	m.again = nil
	return m.out
}

// Next is when Handle wants a Tick at the latest; false: not until something
// else happens.
func (m *Manager) Next() (time.Time, bool) {
	if c := m.due.first(); c != nil {
		return c.due, true
	}
	return time.Time{}, false
}

func (m *Manager) do(a Action) { m.out = append(m.out, a) }

// with applies change to a known connection and then lets it take its next step.
func (m *Manager) with(t Token, now time.Time, change func(*conn)) {
	if c := m.conns[t]; c != nil {
		change(c)
		m.step(c, now)
	}
}

func (m *Manager) tick(now time.Time) {
	for {
		c := m.due.first()
		if c == nil || c.due.After(now) {
			return
		}
		m.step(c, now) // which is due later, if at all
	}
}

// established is where a connection's life here begins.
func (m *Manager) established(ev ConnEstablished, now time.Time) {
	if ev.ServerSide {
		return
	}
	c := m.conns[ev.Token]
	if c == nil { // else a resync found it before its event came
		c = m.newConn(ev.Token, ev.Local, ev.Remote, now)
		c.subflows = append(c.subflows, &subflow{
			direct: true, up: true, local: ev.Local, remote: ev.Remote, since: now, moved: now,
		})
		m.track(c)
	}
	c.denyInitial = ev.DenyJoinInitial
	m.step(c, now)
}

func (m *Manager) newConn(t Token, local, remote netip.AddrPort, now time.Time) *conn {
	return &conn{
		token: t, local: local, remote: remote, server: remote, since: now, seen: now,
		excluded: m.excludes(remote.Addr()),
		tls:      slices.Contains(m.cfg.TLSPorts, remote.Port()),
	}
}

func (m *Manager) excludes(server netip.Addr) bool {
	return server.IsLoopback() || server.IsLinkLocalUnicast() || slices.Contains(m.addrs, server) ||
		slices.ContainsFunc(m.cfg.Exclude, func(p netip.Prefix) bool { return p.Contains(server) })
}

// track and forget are the only writers of conns and byServer.
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
	m.due.set(c, time.Time{})
	delete(m.conns, t)
	delete(m.byServer[c.server], t)
	if len(m.byServer[c.server]) == 0 {
		delete(m.byServer, c.server)
	}
}

// inOrder makes what is done for many connections the same in every run: the
// oldest first.
func inOrder(conns map[Token]*conn) []*conn {
	return slices.SortedFunc(maps.Values(conns), byAge)
}

func byAge(a, b *conn) int {
	return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.token, b.token))
}
