package path

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/deadline"
	"github.com/detour-collective/dcol/internal/path/budget"
	"github.com/detour-collective/dcol/internal/path/claim"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// Config holds the operator's settings.
type Config struct {
	Policy policy.Policy
	// Rules decide about the connections that they cover. If several cover a connection, the first of those with the
	// innermost cgroup decides.
	Rules []Rule
	// TLSPorts lists the server ports on which detours join as backups until the server's first data has arrived over
	// the direct path.
	TLSPorts []uint16
	// BulkPorts and MessagePorts list the server ports whose kind of traffic is known. On other ports it is measured.
	BulkPorts, MessagePorts []uint16
	// Exclude lists destinations that never get a detour.
	Exclude []netip.Prefix
	// Tunnels lists the networks of the addresses that tunnels use.
	Tunnels []netip.Prefix
	// ByWorth turns on measurements: they decide which detours a connection takes and which of its subflows carry.
	// Without it, as in the system of 2017, a connection takes the detour that was offered first and uses it as long
	// as it works.
	ByWorth bool
	// Seed makes the choices between equal detours differ from host to host. The same seed and events lead to the same
	// choices.
	Seed uint64
	// Memory has the measurements of an earlier Manager. They are used if this host is on the same network.
	Memory Memory
	// Budget limits the bytes through waypoints in a month. Used has the counts of earlier Managers.
	Budget budget.Limits
	Used   map[budget.Month]budget.Use
	// Inactivity is the time after which the kernel ends a connection that has no subflow. Zero means a minute.
	Inactivity time.Duration
}

// Manager passes each event to the owner of the state that it changes, brings the affected connections up to date,
// and collects the actions. It is not safe for concurrent use.
type Manager struct {
	cfg     Config
	conns   table
	host    hostAddrs
	detours detours
	places  places
	samples samples
	views   views
	lately  lately
	tally   tally
	spared  spared
	bounds  bounds
	reasons reasons

	rules         rules
	doors         doors
	announcements announcements
	unsettled     settlements
	restrictions  restrictions

	// elsewhere has what was measured on the network that this host was on before, in case it comes back.
	elsewhere Memory

	out   actions
	woken bool // a detour became usable, so connections that are short of one look again
	// levels is set when the level of a budget changed, for example because a month began.
	levels bool
	swept  time.Time // when expired knowledge was last dropped
}

// New returns a Manager without connections and detours.
func New(cfg Config) *Manager {
	cfg.Inactivity = cmp.Or(cfg.Inactivity, defaultInactivity)
	elsewhere := cfg.Memory
	elsewhere.Trails = slices.Clone(elsewhere.Trails) // they are changed in place
	cfg.Memory = Memory{}
	m := &Manager{
		rules: newRules(&cfg), doors: make(doors),
		cfg:   cfg,
		views: views{byWorth: cfg.ByWorth, seed: cfg.Seed},
		conns: table{
			byToken:  make(map[Token]*conn),
			byServer: make(map[netip.AddrPort]map[Token]*conn),
			due:      deadline.New(func(a, b *conn) int { return cmp.Compare(a.token, b.token) }),
		},
		tally: newTally(), unsettled: newSettlements(),
		host: hostAddrs{came: make(map[netip.Addr]time.Time), tunnels: make(map[netip.Addr]bool)},
		detours: detours{
			offers: offers{
				byID: make(map[DetourID]*offered), specific: make(map[netip.AddrPort][]*offered), lost: make(map[via]time.Time), unheard: make(map[via]bool),
				addrs: make(map[string][]netip.Addr),
			},
			failures: make(failures), trials: make(trials), suspensions: make(suspensions), silences: make(silences),
			history:  make(history),
			budget:   budget.New(cfg.Budget, cfg.Used),
			sessions: newSessions(), loads: make(loads), counts: make(map[string]int),
			spending: make(spending), claims: claim.NewBook(), sharings: make(sharings), disappointments: make(disappointments), trying: make(map[netip.Prefix]hold),
		},
		places: places{limits: make(map[netip.Addr]limit), noDirect: make(map[netip.Addr]time.Time)},
		bounds: bounds{paths: make(map[string]*bounded)}, restrictions: make(restrictions), announcements: newAnnouncements(),
		elsewhere: elsewhere,
	}
	for _, d := range m.rules.ports() {
		m.detours.offer(d, time.Time{})
	}
	return m
}

// Handle processes one event and returns the actions that it requires. The slice is valid until the next call. Events
// about unknown connections are ignored, because they are late events of closed ones.
func (m *Manager) Handle(ev Event, now time.Time) []Action {
	m.out = m.out[:0]
	m.sweep(now)
	m.levels = m.detours.budget.Turn(now)
	switch ev := ev.(type) {
	case ConnEstablished:
		m.established(ev, now)
	case ConnClosed:
		m.connClosed(ev.Token, now)
	case SubflowRequested:
		m.with(ev.Token, now, func(t turn) { t.requested(ev) })
	case CreateFailed:
		m.with(ev.Token, now, func(t turn) { t.createFailed(ev) })
	case SubflowEstablished:
		m.refuseJoin(ev.Token, ev.Local, ev.Remote)
		m.announcements.joined(ev)
		m.with(ev.Token, now, func(t turn) { m.joined(t, ev) })
	case SubflowClosed:
		m.with(ev.Token, now, func(t turn) { m.closed(t, ev) })
	case AddrAnnounced:
		m.with(ev.Token, now, func(t turn) { m.announced(t.conn, ev) })
	case DetourOffered:
		m.detourOffered(ev.Detour, now)
	case DetourWithdrawn:
		m.detours.drop(ev.ID, now)
	case DetourMoved:
		m.replace(func(d *Detour) bool { return d.ID == ev.ID }, CauseMoved, now)
	case WaypointReady:
		m.waypointReady(ev, now)
	case WaypointLost:
		m.detours.waypointLost(via{ev.Waypoint, ev.Addr}, now)
	case WaypointAddrs:
		m.detours.setAddrs(ev)
	case WaypointLeft:
		m.waypointLeft(via{ev.Waypoint, ev.Addr}, now)
	case WaypointMeasured:
		m.detours.sessions.take(ev, now)
	case ClaimsHeard:
		m.detours.hear(ev, now)
	case WaypointLoaded:
		m.waypointLoaded(via{ev.Waypoint, ev.Addr}, ev.Until, ev.Gives, now)
	case ServerRefused:
		m.woken = m.detours.serverRefused(ev, now) || m.woken
	case Spare:
		m.spared.add(ev.Local, now)
	case Steered:
		m.steered(ev, now)
	case Reconfigured:
		m.reconfigured(ev, now)
	case KindUnready:
		m.detours.setUnready(ev)
	case LocalAddrs:
		m.localAddrs(ev, now)
	case Measured:
		m.measured(ev, now)
	case SubflowMissing:
		m.with(ev.Token, now, func(t turn) { m.subflowMissing(t, ev) })
	case SubflowCounted:
		m.counted(ev, now)
	case Resync:
		m.resync(ev, now)
	case Tick:
		m.tick(now)
	}
	if m.levels {
		m.followBudgets()
	}
	if m.woken {
		m.wake(now)
	}
	for len(m.conns.again) > 0 { // step may append to it
		token := m.conns.again[0]
		m.conns.again = m.conns.again[1:]
		m.with(token, now, func(turn) {})
	}
	m.conns.again = nil
	return m.out
}

// Next returns the time at which Handle needs a Tick. It returns false if Handle needs none before the next event.
func (m *Manager) Next() (time.Time, bool) {
	var at time.Time
	if first := m.conns.due.First(); first != nil {
		at = first.Due()
	}
	if first := m.announcements.due.First(); first != nil && (at.IsZero() || first.Due().Before(at)) {
		at = first.Due()
	}
	return at, !at.IsZero()
}

// Watched returns an iterator over the connections of the next round of close samples, with their subflows. Rounds are
// at most LongestInterval apart. Connections with a detour on which data moved recently qualify. If there are more of them
// than room, the round has about as many as room. A Measured with their samples also has Progress.
func (m *Manager) Watched(now time.Time, room int) iter.Seq2[Token, []Ends] {
	return m.conns.closely(now, room)
}

// Watches reports whether there may be such connections.
func (m *Manager) Watches() bool { return len(m.conns.watched) > 0 }

func (m *Manager) turn(c *conn, now time.Time) turn { return turn{c, now, &m.host, &m.out} }

// with applies change to a known connection and then steps it.
func (m *Manager) with(token Token, now time.Time, change func(turn)) {
	if c := m.conns.byToken[token]; c != nil {
		t := m.turn(c, now)
		change(t)
		m.step(t)
	}
}

func (m *Manager) tick(now time.Time) {
	for first := m.announcements.due.First(); first != nil && !first.Due().After(now); first = m.announcements.due.First() {
		m.announce(first.Item, now)
	}
	for {
		first := m.conns.due.First()
		if first == nil || first.Due().After(now) {
			return
		}
		m.step(m.turn(first.Item, now)) // step moves its due time, or clears it
	}
}

// wake lets connections that are short of a detour look for one again.
func (m *Manager) wake(now time.Time) {
	m.woken = false
	for _, c := range m.conns.where(func(c *conn) bool { return c.isShort() }) {
		m.step(m.turn(c, now))
	}
}

// detourOffered makes a detour available to every connection that can use it.
func (m *Manager) detourOffered(d Detour, now time.Time) {
	o := m.detours.offer(d, now)
	if o == nil {
		return
	}
	if d.Local.IsValid() && d.Kind != Uplink {
		m.host.tunnels[d.Local] = true
	}
	if d.Kind == Uplink {
		m.announceAll(now)
	}
	for _, c := range m.conns.to(d.Server) {
		m.detours.assign(c, &o.Detour)
		m.step(m.turn(c, now))
	}
}

// waypointReady lets every connection that lacks a detour ask at once.
func (m *Manager) waypointReady(ev WaypointReady, now time.Time) {
	is := func(v via) bool { return v.waypoint == ev.Waypoint && (!ev.Addr.IsValid() || v.addr == ev.Addr) }
	maps.DeleteFunc(m.detours.lost, func(v via, _ time.Time) bool { return is(v) })
	maps.DeleteFunc(m.detours.unheard, func(v via, _ bool) bool { return is(v) })
	for _, c := range m.conns.where(func(c *conn) bool { return c.isShort() || c.wants() }) {
		c.ask = retry{}
		m.step(m.turn(c, now))
	}
}

// localAddrs handles a change of the host's addresses. What was measured on the previous network is put aside. Data
// sent from an address that is gone may be lost.
func (m *Manager) localAddrs(ev LocalAddrs, now time.Time) {
	from := m.host.last
	change := m.host.set(ev, now)
	if !change.any {
		return
	}
	if change.switched {
		m.detours.switched()
		m.recallVerdicts(now)
	}
	if change.moved {
		m.move(from, now)
	}
	for _, c := range m.conns.all() {
		if change.switched || m.host.cameNow(c.local.Addr(), now) {
			c.direct, c.room, c.ask = retry{}, retry{}, retry{}
		}
		for _, s := range c.subflows {
			if !m.host.hasSource(s) {
				c.removals.doubt(s) // the subflow survives if its address comes back
			}
		}
		for i := range c.ended {
			e := &c.ended[i]
			e.adrift = e.adrift || !m.host.hasSource(e.subflow) // the address may have been gone before the end
		}
		m.step(m.turn(c, now))
	}
	m.announceAll(now)
}

// sweep drops expired knowledge. It runs at most once in longestBackoff, to bound its cost.
func (m *Manager) sweep(now time.Time) {
	if now.Sub(m.swept) < longestBackoff {
		return
	}
	m.swept = now
	m.detours.forget(now)
	m.elsewhere.forget(now)
	m.places.forget(now)
	m.host.forgetTunnels(m.detours.general)
	m.unsettled.forget(now)
}
