package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// eventRoom is how many events of the kernel may wait for the loop: a second of
// a very busy host. More wait in the kernel.
const eventRoom = 16384

// startClient begins the client role.
func startClient(ctx context.Context, p *Plan, m *member, sightings chan<- nat.Sighting, group *errgroup.Group) (*client, error) {
	kernel, err := mptcp.Open(p.log)
	if err != nil {
		return nil, err
	}
	events := make(chan mptcp.Event, eventRoom)
	c := &client{
		log: p.log.With("subsystem", "client"), kernel: kernel, checkPM: kernel.CheckUserspacePM, events: events,
		inbox: make(chan func(time.Time), 1024), waypoints: make(map[detour.Via]asker), sightings: sightings,
		kinds:   kinds(p.config.Client.Kinds),
		manager: path.New(pathConfig(p.config.Client)), book: detour.New(kinds(p.config.Client.Kinds)),
		tunnels: newTunnels(),
		plan:    p, fixed: p.config.Client.Waypoints, room: len(p.config.Client.Waypoints),
		using: make(map[string]*using), leaving: make(map[string]config.Peer), numbers: make(map[int]bool),
	}
	if c.ports, err = newPortPicker(); err != nil {
		return nil, errors.Join(err, kernel.Close())
	}
	if c.routes, err = netstate.OpenAddresses(); err != nil {
		return nil, errors.Join(err, kernel.Close())
	}
	if c.listeners, err = netstate.OpenListeners(); err != nil {
		return nil, errors.Join(err, kernel.Close())
	}
	if c.addresses, err = netstate.WatchAddresses(ctx); err != nil {
		return nil, errors.Join(err, kernel.Close())
	}
	// Whoever manages paths must be listening before the first socket relies on
	// it: the kernel refuses joins where nobody does.
	if err := takeOver(kernel, p.config.StateDir); err != nil {
		return nil, errors.Join(err, kernel.Close())
	}
	hook, problem, err := mptcpify(p.config.Client.Mptcpify)
	if err != nil {
		return nil, errors.Join(err, kernel.Close(), restoreClient(p.config.StateDir, c.log))
	}
	if problem != "" {
		c.problems = append(c.problems, problem)
		c.log.Warn("a way of making sockets MPTCP is not there", "problem", problem)
	}
	if m != nil {
		// Those that are left take their time to end.
		c.choices, c.heard, c.way, c.room = m.choices, m.Heard, m.way, c.room+2*p.config.Collective.Waypoints
	}
	c.prepareTunnels(p.config.Client)
	bound := boundUnsent(p.config.Client.Cgroup, c.log)
	// After what else is attached to the cgroup, see keepalive.Open.
	probes := openProber(p.config.Client.Cgroup, c.log)
	if probes != nil {
		c.prober = probes
	}
	group.Go(func() error { return kernel.Listen(ctx, events) })
	group.Go(func() error {
		err := c.run(ctx)
		for _, u := range c.using {
			u.close()
		}
		return errors.Join(err, hook.Close(), bound.Close(), probes.Close(), c.tunnels.close(), restoreClient(p.config.StateDir, c.log), c.listeners.Close(), kernel.Close())
	})
	return c, nil
}

func pathConfig(c config.Client) path.Config {
	pc := path.Config{Policy: path.DetourPolicy{Subflows: c.Subflows, Order: kinds(c.Kinds)}, Exclude: c.Exclude}
	for _, port := range c.TLSPorts {
		pc.TLSPorts = append(pc.TLSPorts, uint16(port))
	}
	return pc
}

// kinds are the operator's, as the path manager knows them.
func kinds(list []config.Kind) []path.Kind {
	var out []path.Kind
	for _, word := range list {
		if k, ok := path.ParseKind(string(word)); ok {
			out = append(out, k)
		}
	}
	return out
}

// offered are a waypoint's kinds, as the path manager knows them; one that is
// newer than us is left out.
func offered(list []wire.Kind) []path.Kind {
	var out []path.Kind
	for _, k := range list {
		if known, ok := path.ParseKind(k.String()); ok {
			out = append(out, known)
		}
	}
	return out
}

// spent tells whether a waypoint's quota is used up: what ran through it has ended there, of which the
// kernel of an end that sends nothing does not hear.
func spent(s session.State) bool { return s.Closed != nil && s.Closed.Code == wire.QuotaTraffic }

// given is what a waypoint gives now.
func given(s session.State) []path.Kind {
	if s.Closed != nil {
		return nil
	}
	return offered(s.Offers)
}

// takeOver gives new sockets of the namespace to us, and notes what was before
// where a crash cannot lose it.
func takeOver(kernel *mptcp.Namespace, stateDir string) error {
	key, value, err := kernel.UserspacePMSysctl()
	if err != nil {
		return err
	}
	record, err := netstate.OpenRecord(clientRecord(stateDir))
	if err != nil {
		return err
	}
	_, err = record.Set(key, value)
	return err
}

// link is a session as the client role sees it.
type link struct {
	*session.Client
	name string
	at   netip.AddrPort
}

// Map implements asker.
func (l *link) Map(ctx context.Context, server netip.AddrPort) (detour.Grant, error) {
	// The server's own port first: the waypoint changes it if it must.
	g, err := l.Client.Map(ctx, server, server.Port())
	if err != nil {
		return detour.Grant{}, fmt.Errorf("ask %s for a mapping to %v: %w", l.name, server, err)
	}
	return detour.Grant{Port: g.Port, Lease: g.Lease}, nil
}

// Refusal implements asker.
func (l *link) Refusal(err error) detour.Refusal {
	var r *wire.Refusal
	if !errors.As(err, &r) {
		return detour.Refusal{Why: err.Error(), Unanswered: true}
	}
	whole := r.Code == wire.RateLimited || r.Code == wire.Busy || r.Code == wire.ShuttingDown ||
		r.Code == wire.QuotaMappings || r.Code == wire.NotOffered || r.Code.Closed()
	wait := r.RetryAfter
	if r.Code.Closed() {
		wait = 0 // not that long: the session tells of the end, and may have done so already
	}
	return detour.Refusal{Why: r.Error(), For: wait, All: whole, Forbidden: r.Code == wire.DestinationForbidden}
}

// Describe implements asker.
func (l *link) Describe() api.Waypoint {
	s := l.State()
	d := api.Waypoint{
		Name: l.name, Addr: l.at, State: api.WaypointDown, Since: s.Since,
		RTT: milliseconds(s.RTT), Loss: s.Loss,
	}
	switch {
	case s.Usable() && s.Closed != nil:
		d.State, d.Why = api.WaypointClosed, s.Closed.String()
	case s.Usable():
		d.State = api.WaypointUp
	case s.Moving:
		d.State, d.Why = api.WaypointMoving, "this host's address has changed, the session follows"
	case s.Problem != nil:
		d.Why = s.Problem.Error()
	}
	return d
}
