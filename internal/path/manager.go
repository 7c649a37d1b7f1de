package path

import (
	"net/netip"
	"slices"
	"time"
)

const (
	// joinTimeout is how long a SYN may go unanswered. The kernel itself would
	// try for two minutes, in which another detour could have served.
	joinTimeout = 4 * time.Second
	// verdictDelay is how long the end of a subflow is left unjudged: when a
	// whole connection closes, its subflows close first.
	verdictDelay = 250 * time.Millisecond
	// provenAfter is the life after which a subflow's end is no sign that its
	// route is bad: counting failures begins anew.
	provenAfter = 10 * time.Second
	// stalledAfter is how long a subflow through a waypoint that no longer
	// answers may stand still while its connection moves on.
	stalledAfter = 3 * time.Second
	// stalledBackoff is how often a subflow's retransmission timer may double
	// (0.2 s, 0.4 s, … on a short path) before its place is given to another.
	stalledBackoff = 5
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

	detours  map[DetourID]*offered
	general  []*offered                    // lead to any server
	specific map[netip.AddrPort][]*offered // lead to one
	records  map[route]record

	addrs []netip.Addr // this host's; nil: not known
	due   deadlines
	out   []Action
}

// New returns a Manager that knows of no connection and no detour.
func New(cfg Config) *Manager {
	return &Manager{
		cfg:      cfg,
		conns:    make(map[Token]*conn),
		byServer: make(map[netip.AddrPort]map[Token]*conn),
		detours:  make(map[DetourID]*offered),
		specific: make(map[netip.AddrPort][]*offered),
		records:  make(map[route]record),
	}
}

// Handle takes in one event and says what to do about it. The slice is valid
// until the next call. Events about connections that are not known are ignored:
// they are the tail of one that was closed.
func (m *Manager) Handle(ev Event, now time.Time) []Action {
	m.out = m.out[:0]
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
		m.with(ev.Token, now, func(c *conn) { c.subflowClosed(ev, now) })
	case AddrAnnounced:
		m.with(ev.Token, now, func(c *conn) { m.announced(c, ev) })
	case DetourOffered:
		m.offer(ev.Detour, now)
	case DetourWithdrawn:
		m.withdraw(ev, now)
	case WaypointReady:
		m.askAgain(now)
	case LocalAddrs:
		m.addrs = slices.Clone(ev.Addrs)
		m.stepAll(now)
	case Measured:
		m.measured(ev.Samples, now)
	case Resync:
		m.resync(ev.Conns, now)
	case Tick:
		m.tick(now)
	}
	return m.out
}

// Next is when Handle wants a Tick at the latest; false: not until something
// else happens.
func (m *Manager) Next() (time.Time, bool) { return m.due.next(m.conns) }

func (m *Manager) do(a Action) { m.out = append(m.out, a) }

// with applies change to a known connection and then lets it take its next step.
func (m *Manager) with(t Token, now time.Time, change func(*conn)) {
	if c := m.conns[t]; c != nil {
		change(c)
		m.step(c, now)
	}
}

func (m *Manager) stepAll(now time.Time) {
	for _, c := range m.conns {
		m.step(c, now)
	}
}

func (m *Manager) tick(now time.Time) {
	for {
		c := m.due.pop(m.conns, now)
		if c == nil {
			break
		}
		m.step(c, now)
	}
	if len(m.records) > 1024 {
		for r, rec := range m.records {
			if now.Sub(rec.until) > backoff(7) {
				delete(m.records, r)
			}
		}
	}
}

// established is where a connection's life here begins.
func (m *Manager) established(ev ConnEstablished, now time.Time) {
	if ev.ServerSide {
		return
	}
	if c := m.conns[ev.Token]; c != nil { // found by a resync before its event came
		c.denyInitial = ev.DenyJoinInitial
		return
	}
	c := m.newConn(ev.Token, ev.Local, ev.Remote, now)
	c.denyInitial = ev.DenyJoinInitial
	c.subflows = append(c.subflows, &subflow{direct: true, up: true, local: ev.Local, remote: ev.Remote, since: now})
	m.track(c)
	m.step(c, now)
}

func (m *Manager) newConn(t Token, local, remote netip.AddrPort, now time.Time) *conn {
	return &conn{
		token: t, local: local, remote: remote, server: remote, since: now,
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
	delete(m.conns, t)
	delete(m.byServer[c.server], t)
	if len(m.byServer[c.server]) == 0 {
		delete(m.byServer, c.server)
	}
}

// announced: a server that denies joins to its first address may be joined at
// one it announced instead.
func (m *Manager) announced(c *conn, ev AddrAnnounced) {
	if !c.denyInitial || c.server != c.remote || c.server.Addr().Is4() != ev.Remote.Addr().Is4() {
		return
	}
	port := ev.Remote.Port()
	if port == 0 {
		port = c.remote.Port()
	}
	m.forget(c.token)
	c.server = netip.AddrPortFrom(ev.Remote.Addr(), port)
	m.track(c)
}

// offer makes a detour known to every connection it fits.
func (m *Manager) offer(d Detour, now time.Time) {
	if old := m.detours[d.ID]; old != nil {
		if old.Detour == d {
			old.deadSince = time.Time{}
			m.stepOffered(old, now)
			return
		}
		m.drop(old)
	}
	o := &offered{Detour: d, since: now}
	m.detours[d.ID] = o
	if d.Server.IsValid() {
		m.specific[d.Server] = append(m.specific[d.Server], o)
	} else {
		m.general = append(m.general, o)
	}
	m.stepOffered(o, now)
}

func (m *Manager) stepOffered(o *offered, now time.Time) {
	conns := m.conns
	if o.Server.IsValid() {
		conns = m.byServer[o.Server]
	}
	for _, c := range conns {
		c.recognise(o)
		m.step(c, now)
	}
}

// withdraw takes a detour off offer. Subflows over it stay; they keep o.
func (m *Manager) withdraw(ev DetourWithdrawn, now time.Time) {
	o := m.detours[ev.ID]
	if o == nil {
		return
	}
	if ev.Dead {
		o.deadSince = now
	}
	m.drop(o)
}

func (m *Manager) drop(o *offered) {
	delete(m.detours, o.ID)
	is := func(x *offered) bool { return x == o }
	if !o.Server.IsValid() {
		m.general = slices.DeleteFunc(m.general, is)
		return
	}
	rest := slices.DeleteFunc(m.specific[o.Server], is)
	if len(rest) == 0 {
		delete(m.specific, o.Server)
	} else {
		m.specific[o.Server] = rest
	}
}

// askAgain lets every connection that lacks a detour ask now, not at the end of
// its backoff.
func (m *Manager) askAgain(now time.Time) {
	for _, c := range m.conns {
		if c.short {
			c.asks, c.nextAsk = 0, now
			m.step(c, now)
		}
	}
}

// failed notes that a subflow over o did not come up or did not stay.
func (m *Manager) failed(o *offered, server netip.AddrPort, lived time.Duration, now time.Time) {
	r := route{o.ID, server}
	n := m.records[r].failures + 1
	if lived >= provenAfter {
		n = 1
	}
	m.records[r] = record{failures: n, until: now.Add(backoff(n))}
}
