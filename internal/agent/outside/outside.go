package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/nat/portmap"
	"github.com/detour-collective/dcol/internal/session"
)

const (
	// examineEvery is how often other members are asked where they see us, when nothing has changed, and
	// examineAgain how soon when there were too few of them to ask, doubled each time.
	examineEvery = 10 * time.Minute
	examineAgain = 2 * time.Second
	// freshEvery keeps a NAT from forgetting the port: some forget after half a minute (RFC 4787, 4.3 wants
	// two). It is also how late another address of the NAT is noticed by who has no sessions with others.
	freshEvery = 20 * time.Second
)

// outside finds out how the sessions' port is reached from outside this host's network, in IPv4, and has a
// router open it where that is needed.
type outside struct {
	log       *slog.Logger
	listen    netip.AddrPort
	addresses *netstate.Addresses
	prober    *nat.Prober
	keeper    *portmap.Keeper     // nil: the operator wants no router asked
	fixed     []nat.Observer      // members to ask where they see us, of the configuration
	member    *member             // knows others; nil: there is no directory
	sightings <-chan nat.Sighting // where waypoints that this host uses see it
	// changed is told when others reach us elsewhere; the reader takes it and asks reach.
	changed chan struct{}
	seen    *seen // for the waypoint

	mu       sync.Mutex
	evidence nat.Evidence
	found    nat.Found
	examined bool // found is of evidence
}

// startOutside begins; it ends with ctx.
func startOutside(ctx context.Context, p *Plan, server *session.Server, m *member, sightings <-chan nat.Sighting, group *errgroup.Group) (*outside, error) {
	addresses, err := netstate.OpenAddresses()
	if err != nil {
		return nil, err
	}
	changes, err := netstate.WatchAddresses(ctx)
	if err != nil {
		addresses.Close()
		return nil, err
	}
	other, err := net.ListenUDP("udp", nil)
	if err != nil {
		addresses.Close()
		return nil, fmt.Errorf("open a second UDP port: %w", err)
	}
	log := p.log.With("subsystem", "nat")
	o := &outside{
		log: log, listen: server.Addr(), addresses: addresses, prober: nat.NewProber(server, other, log),
		fixed: fixedObservers(p.config.Client.Waypoints), member: m, sightings: sightings, changed: make(chan struct{}, 1),
		found: nat.Conclude(nat.Evidence{}),
		seen: newSeen(p.config.Collective.Addresses, p.isCoordinator, func() (netip.Addr, error) {
			_, from, err := addresses.Gateway()
			return from, err
		}),
	}
	var using sync.WaitGroup // of addresses
	use := func(run func() error) {
		using.Add(1)
		group.Go(func() error {
			defer using.Done()
			return run()
		})
	}
	if p.config.Waypoint.PortMapping {
		nonce := p.identity.Derive("port mapping")
		o.keeper = portmap.NewKeeper(portmap.Config{
			Wants: wants(o.listen.Port(), p.config.Waypoint), Network: o.network, Nonce: [12]byte(nonce[:12]), Log: log,
			Changed: func(s portmap.State) {
				o.seen.routed(s)
				o.tell()
			},
		})
		use(func() error { return o.keeper.Run(ctx) })
	}
	group.Go(func() error { return errors.Join(o.prober.Run(ctx), other.Close()) })
	use(func() error {
		o.run(ctx, changes)
		return nil
	})
	group.Go(func() error {
		using.Wait()
		addresses.Close()
		return nil
	})
	return o, nil
}

// wants are the ports that members outside must reach: the sessions', where WireGuard is too, and
// OpenVPN's. In-band and mapped detours need the host's own address, whose ports no router passes on.
func wants(session uint16, c config.Waypoint) []portmap.Want {
	list := []portmap.Want{{Protocol: portmap.UDP, Port: session}}
	if c.Gives(config.OpenVPN) {
		list = append(list, portmap.Want{Protocol: portmap.UDP, Port: uint16(c.OpenVPNPort)})
	}
	return list
}

// fixedObservers are those of the configuration.
func fixedObservers(waypoints []config.Peer) []nat.Observer {
	var list []nat.Observer
	for _, w := range waypoints {
		for _, a := range w.Addresses {
			if a.Is4() {
				list = append(list, nat.Observer{Member: w.Name, At: netip.AddrPortFrom(a, uint16(w.Port))})
			}
		}
	}
	return list
}

// tell says that others may reach us elsewhere now.
func (o *outside) tell() {
	select {
	case o.changed <- struct{}{}:
	default: // it has not been looked at yet
	}
}

// network is where the keeper finds the router. Who has a public address needs none.
func (o *outside) network() (portmap.Network, error) {
	gateway, own, err := o.addresses.Gateway()
	if err != nil {
		return portmap.Network{}, err
	}
	if only := o.listen.Addr(); !only.IsUnspecified() {
		own = only
	}
	if !own.Is4() || !nat.IsPrivate(own) {
		gateway = netip.Addr{}
	}
	return portmap.Network{Gateway: gateway, Own: own}, nil
}

// run examines at the beginning, when the network has changed, and now and then.
func (o *outside) run(ctx context.Context, changes <-chan []netstate.Address) {
	var own []netip.Addr
	var network, home portmap.Network
	due, again := time.Now(), examineAgain
	for {
		timer := time.NewTimer(o.wait(due))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case list, ok := <-changes:
			if !ok {
				changes = nil // ctx ends
				continue
			}
			// Routes are told of, too, and often nothing is new.
			addrs, now := addressesOf(list), o.networkOrNone()
			if !slices.Equal(addrs, own) || now != network {
				if now.Own.IsValid() && now != home { // without a way out it is nowhere, and may come back
					o.seen.moved()
					home = now
				}
				o.seen.has(addrs)
				own, network, due, again = addrs, now, time.Now(), examineAgain
				if o.keeper != nil {
					o.keeper.NetworkChanged()
				}
			}
		case s := <-o.sightings:
			o.seen.seenBy(s)
		case <-timer.C:
			if !time.Now().Before(due) {
				wait := examineEvery
				if !o.examine(ctx, own) {
					wait, again = again, min(2*again, examineEvery)
				}
				due = time.Now().Add(wait)
			} else if !o.refresh(ctx) {
				due, again = time.Now(), examineAgain
			}
		}
		timer.Stop()
	}
}

// wait is how long there is nothing to do.
func (o *outside) wait(due time.Time) time.Duration {
	wait := time.Until(due)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.found.Mapping != nat.Untranslated && len(o.evidence.Sightings) > 0 {
		wait = min(wait, freshEvery)
	}
	return wait
}

func addressesOf(list []netstate.Address) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range list {
		addrs = append(addrs, a.Addr)
	}
	return addrs
}

func (o *outside) networkOrNone() portmap.Network {
	n, err := o.network()
	if err != nil {
		return portmap.Network{}
	}
	return n
}

// examine tells whether there were enough members to ask.
func (o *outside) examine(ctx context.Context, own []netip.Addr) (enough bool) {
	q := nat.Question{Own: own, Port: o.listen.Port(), Observers: o.fixed}
	if o.member != nil {
		q.Observers = slices.Concat(q.Observers, o.member.observers(ctx, true))
		q.Third = o.member.third
	}
	var probing sync.WaitGroup
	probing.Go(func() { o.seen.passed(o.routers(ctx)) })
	e := o.prober.Examine(ctx, q)
	probing.Wait()
	if ctx.Err() != nil {
		return false
	}
	found := nat.Conclude(e)
	o.mu.Lock()
	before := o.found
	o.evidence, o.found, o.examined = e, found, true
	o.mu.Unlock()
	o.seen.seenBy(e.Sightings...)
	if found != before {
		o.log.Info("how others see this host", "kind", found.Kind(), "at", found.Outside, "leaves", string(found.Leaves()))
		o.tell()
	}
	return found.Leaves() != nat.LeavesOpen && found.Filtering != nat.PassesSome
}

// refresh keeps a NAT from forgetting us, and tells whether we are still seen at the same place by all that answer.
func (o *outside) refresh(ctx context.Context) bool {
	o.mu.Lock()
	found, before := o.found, o.evidence.Sightings
	o.mu.Unlock()
	now := o.prober.Again(ctx, before)
	o.seen.seenBy(now...)
	return ctx.Err() != nil || found.Holds(before, now)
}

// routers are those that IPv6 packets to the Internet pass first.
func (o *outside) routers(ctx context.Context) []netip.Addr {
	list, err := netstate.FirstHops(ctx)
	if err != nil {
		o.log.Debug("the first routers on the way to the Internet in IPv6 are not known", "err", err)
	}
	return list
}

// reach is how others reach the sessions' port now: where, if anywhere, and what that takes.
func (o *outside) reach() (netip.AddrPort, nat.Leaves) {
	var opened netip.AddrPort
	if o.keeper != nil {
		opened, _ = o.keeper.State().External(portmap.Want{Protocol: portmap.UDP, Port: o.listen.Port()})
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return nat.Reach(o.found, opened, o.evidence.Sightings)
}

// describe is the status's part.
func (o *outside) describe() *api.Outside {
	at, left := o.reach()
	o.mu.Lock()
	out := &api.Outside{
		Address: at, NAT: o.found.Kind(), Leaves: api.Reachability(left), Asked: o.evidence.Asked, Answered: len(o.evidence.Sightings),
	}
	if left == nat.LeavesOpen {
		out.Why = "members are being asked where they see this host"
		if o.examined {
			out.Why = fmt.Sprintf("%s; asked again within %d min", o.found.WhyOpen(o.evidence), int(examineEvery.Minutes()))
		}
		if hidden, _ := o.seen.hidden(); hidden {
			out.Why += "; until its public address is certain (or named: [collective] addresses), members get no detours to IPv4 servers but those of [waypoint] allow"
		}
	}
	if hidden, told := o.seen.hidden(); hidden && told && left != nat.LeavesOpen {
		out.Problem = "members disagree about its public address, or only one has told it: they get no detours to IPv4 servers but those of [waypoint] allow"
		out.Mend = "name the address: [collective] addresses"
	}
	sightings := o.evidence.Sightings
	o.mu.Unlock()
	if o.keeper == nil {
		return out
	}
	s := o.keeper.State()
	out.Own, out.Gateway, out.Router = s.Network.Own, s.Network.Gateway, s.Router
	if s.Problem != "" {
		out.Problem, out.Mend = s.Problem, s.Mend
	}
	for _, m := range s.Mappings {
		out.Opened = append(out.Opened, api.OpenedPort{Protocol: string(m.Protocol), Port: m.Port, External: m.External})
		if m.Port != o.listen.Port() && m.External.Port() != m.Port {
			out.Problem = fmt.Sprintf("the router has opened port %v as %d: members, who are told %d, do not get in", m.Want, m.External.Port(), m.Port)
			out.Mend = "choose another waypoint.openvpn_port: somebody else in this network has that one"
		}
		if nat.BehindAnother(m.External, sightings) {
			out.Problem = fmt.Sprintf("the router %v has opened port %v at %v, where others do not see this host: another NAT is before it",
				s.Network.Gateway, m.Want, m.External)
			out.Mend = "have that one forward the port to the router, or ask the provider for a public address"
		}
	}
	return out
}
