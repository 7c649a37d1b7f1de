package path_test

import (
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// world models a kernel, servers and waypoints around a Manager, in virtual time. It knows everything, while the
// Manager knows what it is told. The world fails the test if an action breaks a law.
type world struct {
	t     *rapid.T
	cfg   path.Config
	n     int         // subflows wanted
	order []path.Kind // that may be used
	m     *path.Manager
	twin  *path.Manager // gets the same events, and must return the same actions
	now   time.Time
	queue []pending // reports of the kernel and the waypoints that are under way
	deaf  bool      // the kernel's events are being lost

	conns    map[path.Token]*wconn // living
	past     map[path.Token]*wconn // all that ever existed
	addrs    []netip.Addr
	offers   map[path.DetourID]path.Detour // as the Manager was told
	dead     map[string]bool               // waypoints
	lost     map[string]bool               // waypoints, as the Manager was told
	crowded  map[string]time.Time          // connections may leave a loaded waypoint until then
	lossy    map[string]bool               // waypoints through which a connection lost much
	unwanted map[string]bool               // waypoints that are not to be used, as the Manager was told
	steering path.Steering                 // the operator's
	limit    int                           // further subflows that a server takes on a connection
	moody    bool                          // some joins are refused or closed at once
	started  bool                          // the Manager began with connections there already
	inband   inband
	creates  int
	depth    int    // answers to answers
	port     uint16 // the last local port given out
}

type pending struct {
	at     time.Time
	kernel bool // an event of the kernel, which a new agent misses
	handle func()
}

type wconn struct {
	token         path.Token
	local, remote netip.AddrPort
	server        netip.AddrPort
	adopted       bool // from before this Manager
	serverSide    bool
	excluded      bool
	denies        bool
	tls           bool
	heard         bool // the Manager was told that the server lastRemoveAddr on a direct path
	subflows      []*wsub
	held          []*wsub        // subflows beside the first that the server counts
	heardAt       time.Time      // when the server last processed a REMOVE_ADDR
	unsure        bool           // events about it were lost, or another Manager had it
	endedAt       time.Time      // when a subflow last ended; the Manager hears of it a little later
	ids           map[uint8]bool // ids that the kernel has in use: only RemoveAddr frees one
}

type wsub struct {
	id            uint8
	local, remote netip.AddrPort
	detour        *path.Detour // nil: direct, or the peer's
	ours          bool         // made by this Manager
	direct        bool
	passes        bool // for a direct one: a new agent sees a tunnel's join come up
	up, backup    bool
	received      uint64
	stuck         bool // retransmits without an answer
	told          bool // the Manager knows that it is established
	given         bool // up by the Manager
	network       int  // as inband.network
	trip          time.Duration
	doomed        bool // the server has no place for it
	segments      uint64
	late          uint64 // segments that arrived after a gap
	loses         bool   // the Manager saw it lose much
	leaving       bool   // the Manager is to end it
}

var birth = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newWorld(t *rapid.T) *world {
	n := rapid.IntRange(1, 4).Draw(t, "subflows")
	order := rapid.SliceOfNDistinct(rapid.SampledFrom(policy.Kinds()), 1, -1, rapid.ID).Draw(t, "order")
	w := &world{
		t: t, n: n, order: order, now: birth, inband: inband{path: somePath(t)},
		cfg: path.Config{
			Policy: policy.Detours{Subflows: n, Order: order}, TLSPorts: []uint16{443},
			Exclude: []netip.Prefix{netip.MustParsePrefix("203.0.113.99/32")},
			ByWorth: rapid.Bool().Draw(t, "by worth"), Seed: 7,
		},
		conns: make(map[path.Token]*wconn), past: make(map[path.Token]*wconn),
		offers: make(map[path.DetourID]path.Detour), dead: make(map[string]bool), lost: make(map[string]bool), unwanted: make(map[string]bool),
		crowded: make(map[string]time.Time), lossy: make(map[string]bool),
		addrs: []netip.Addr{ip("tun"), ip("tun2"), ip("me"), ip("me6")}, limit: 8, port: 10000,
	}
	w.m, w.twin = path.New(w.cfg), path.New(w.cfg)
	w.tellAddrs()
	return w
}

func ip(name string) netip.Addr { return netip.MustParseAddr(hosts[name]) }

// tell lets the Manager handle an event, and carries out its actions.
func (w *world) tell(ev path.Event) {
	w.inband.told(w, ev)
	actions := slices.Clone(w.m.Handle(ev, w.now))
	w.t.Logf("%v %T%+v: %+v", w.now.Sub(birth), ev, ev, actions)
	if again := w.twin.Handle(ev, w.now); !reflect.DeepEqual(actions, slices.Clone(again)) {
		w.t.Fatalf("%T: one says %+v, the other %+v", ev, actions, again)
	}
	if err := w.m.Sound(); err != nil {
		w.t.Fatalf("after %T: %v", ev, err)
	}
	if _, ok := ev.(path.DetourWithdrawn); ok && len(actions) > 0 {
		w.t.Fatalf("a detour was withdrawn, and so: %+v", actions)
	}
	if len(actions) > 10000 {
		w.t.Fatalf("%T: %d actions", ev, len(actions))
	}
	var answers []path.Event
	for _, a := range actions {
		if ev := w.carryOut(a); ev != nil {
			answers = append(answers, ev)
		}
	}
	if w.depth++; w.depth > 20 {
		w.t.Fatalf("at once again and again: %+v", actions)
	}
	for _, ev := range answers {
		w.tell(ev)
	}
	w.depth--
}

// run lets time pass: what is under way arrives, and the Manager gets its ticks.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for range 200_000 {
		next, tick := w.m.Next()
		switch {
		case len(w.queue) > 0 && !w.queue[0].at.After(end) && (!tick || !w.queue[0].at.After(next)):
			first := w.queue[0]
			w.queue = w.queue[1:]
			w.now = first.at
			first.handle()
		case tick && !next.After(end):
			if next.Before(w.now) {
				w.t.Fatalf("Next is %v ago", w.now.Sub(next))
			}
			w.now = next
			w.tell(path.Tick{})
			if again, ok := w.m.Next(); ok && !again.After(w.now) {
				w.t.Fatalf("Next does not move on after a Tick")
			}
		default:
			w.now = end
			return
		}
	}
	w.t.Fatalf("time does not pass: too much happens in %v", d)
}

// later handles something after a delay, in order, because the Manager is told of everything a little late.
func (w *world) later(delay time.Duration, handle func()) {
	w.put(pending{at: w.now.Add(delay), handle: handle})
}

func (w *world) put(p pending) {
	i, _ := slices.BinarySearchFunc(w.queue, p, func(a, b pending) int {
		if a.at.After(b.at) {
			return 1
		}
		return -1
	})
	w.queue = slices.Insert(w.queue, i, p)
}

const kernelDelay = time.Millisecond

// says tells an event of the kernel.
func (w *world) says(ev path.Event) {
	if !w.deaf {
		w.put(pending{w.now.Add(kernelDelay), true, func() { w.tell(ev) }})
	}
}

// resync does what the agent does when it hears that events were lost.
func (w *world) resync() {
	var ev path.Resync
	for _, token := range slices.Sorted(maps.Keys(w.conns)) {
		c := w.conns[token]
		if c.serverSide {
			continue
		}
		l := path.LiveConn{Token: token, Local: c.local, Remote: c.remote}
		for _, s := range c.subflows {
			if s.up {
				s.told = true
				l.Subflows = append(l.Subflows, path.LiveSubflow{LocalID: s.id, Local: s.local, Remote: s.remote, Backup: s.backup})
			}
		}
		ev.Conns = append(ev.Conns, l)
	}
	w.tell(ev)
}

func (w *world) carryOut(a path.Action) path.Event {
	switch a := a.(type) {
	case path.CreateSubflow:
		return w.create(a)
	case path.DestroySubflow:
		c, s := w.subflow(a.Token, a.Local, a.Remote)
		w.inband.gaveUp(w, c, s)
		if s != nil {
			w.lawfulEnd(c, s)
			s.given = true
			w.end(c, s)
		}
	case path.RemoveAddr:
		w.removeAddr(a)
	case path.SetBackup:
		w.setBackup(a)
	case path.Measure:
		if _, s := w.subflow(a.Token, a.Local, a.Remote); s != nil {
			return w.measured(w.conns[a.Token], s)
		}
		return path.SubflowMissing{Token: a.Token, Local: a.Local, Remote: a.Remote}
	case path.RequestDetours:
		w.request(a.Server)
	case path.ReadAddrs:
		return w.localAddrs()
	}
	return nil
}

func (w *world) subflow(t path.Token, local, remote netip.AddrPort) (*wconn, *wsub) {
	if c := w.conns[t]; c != nil {
		for _, s := range c.subflows {
			if s.local == local && s.remote == remote {
				return c, s
			}
		}
	}
	return nil, nil
}

func (w *world) here(s *wsub) bool {
	return slices.Contains(w.addrs, s.local.Addr())
}

// create checks the laws of a new subflow and then lets the kernel try.
func (w *world) create(a path.CreateSubflow) path.Event {
	w.creates++
	s := w.lawfulCreate(a)
	c := w.conns[a.Token]
	switch {
	case c == nil:
		return path.CreateFailed{Token: a.Token, LocalID: a.LocalID, Err: errors.New("no such connection"), Gone: true}
	case c.ids[a.LocalID]:
		return path.CreateFailed{Token: a.Token, LocalID: a.LocalID, Err: errors.New("id in use")}
	}
	// It may be taken although other connections lost much through its waypoint, until there is another.
	s.loses = a.Backup && (!c.tls || c.heard || s.detour != nil && w.lossy[s.detour.Waypoint])
	c.ids[a.LocalID] = true
	c.subflows = append(c.subflows, s)
	w.join(c, s)
	return path.SubflowRequested{Token: a.Token, LocalID: a.LocalID, Local: s.local}
}

// join plays the handshake. Through a dead waypoint it hangs until the kernel gives up.
func (w *world) join(c *wconn, s *wsub) {
	delay := time.Duration(rapid.IntRange(1, 300).Draw(w.t, "join ms")) * time.Millisecond
	refused := w.moody && rapid.IntRange(0, 3).Draw(w.t, "refused") == 0
	refused = refused || s.inband() && w.inband.path == "stripped" ||
		s.detour != nil && w.forbids(s.detour.Waypoint, c.server)
	if s.detour != nil && w.dead[s.detour.Waypoint] || !w.here(s) || s.inband() && w.inband.path == "dropped" {
		delay, refused = 127*time.Second, true
	}
	w.later(delay, func() {
		if w.conns[c.token] != c || !slices.Contains(c.subflows, s) {
			return
		}
		if refused {
			w.end(c, s)
			return
		}
		s.up, s.told, s.trip = true, !w.deaf, delay
		w.says(path.SubflowEstablished{Token: c.token, LocalID: s.id, Local: s.local, Remote: s.remote})
		if !w.takes(c, s) {
			w.later(delay, func() { w.end(c, s) })
		}
	})
}

// inactivity is the time for which the kernel keeps a connection without subflows.
const inactivity = time.Minute

// end ends a subflow, for whatever reason.
func (w *world) end(c *wconn, s *wsub) {
	i := slices.Index(c.subflows, s)
	if i < 0 || w.conns[c.token] != c {
		return
	}
	c.subflows = slices.Delete(c.subflows, i, i+1)
	c.endedAt = w.now
	if len(c.subflows) == 0 {
		w.later(inactivity, func() {
			if w.conns[c.token] == c && len(c.subflows) == 0 && w.now.Sub(c.endedAt) >= inactivity {
				w.gone(c)
			}
		})
	}
	w.hears(c, s)
	w.inband.ends(w, c, s)
	ev := path.SubflowClosed{Token: c.token, LocalID: s.id, Local: s.local, Remote: s.remote}
	if !s.up { // Linux leaves the port out where the SYN was unanswered
		ev.Remote = netip.AddrPortFrom(s.remote.Addr(), 0)
	}
	w.says(ev)
}

func (w *world) removeAddr(a path.RemoveAddr) {
	c := w.conns[a.Token]
	if c == nil {
		return
	}
	if !a.Local.IsValid() && !c.ids[a.LocalID] {
		return
	}
	delete(c.ids, a.LocalID)
	w.word(c, a)
	for _, s := range slices.Clone(c.subflows) {
		if s.id == a.LocalID && s.up {
			w.lawfulEnd(c, s)
			w.end(c, s)
		}
	}
}
