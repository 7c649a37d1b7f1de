// Package outside finds the addresses at which others reach this host, and asks the router to open the sessions' port
// if that is needed.
package outside

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
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/nat/portmap"
	"github.com/detour-collective/dcol/internal/nat/stun"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

const (
	// examineEvery is the time between two examinations, in which other members are asked for our external address, if nothing
	// has changed. examineAgain is the first delay if there were too few members to ask. It doubles each time.
	examineEvery = 10 * time.Minute
	examineAgain = 2 * time.Second
	// freshEvery keeps a NAT from forgetting the port: some forget after half a minute (RFC 4787, 4.3 wants
	// two). A host that has no sessions with other waypoints also notices another address of the NAT within this time.
	freshEvery = 20 * time.Second
)

// Config configures Start.
type Config struct {
	Identity *collective.Identity
	Settings *config.Config
	Server   *session.Server // the port that others are to reach
	// Members are asked in addition to the waypoints of the settings; nil: there is no directory.
	Members Members
	// Trusted reports whether a member's report of this host's address is sufficient by itself.
	Trusted func(member string) bool
	// Sightings delivers the addresses at which waypoints that this host uses see it; nil: it uses none.
	Sightings <-chan nat.Sighting
	Log       *slog.Logger
}

// Members are the waypoints of the collective's directory.
type Members interface {
	// Observers returns members to ask for this host's external address, at addresses of one family.
	Observers(ctx context.Context, is4 bool, except ...string) []nat.Observer
	// Third is for nat.Question.
	Third(ctx context.Context, asked []netip.Addr, outside netip.AddrPort, id stun.ID) error
}

// Outside finds out how others reach the sessions' port from outside this host's network, over IPv4, and asks the router to
// open it if that is needed.
type Outside struct {
	config    Config
	log       *slog.Logger
	listen    netip.AddrPort
	addresses *netstate.Addresses
	prober    *nat.Prober
	keeper    *portmap.Keeper // nil: the operator does not want the router to be asked
	changed   chan struct{}
	seen      *seen // for the waypoint
	changes   <-chan []netstate.Address
	other     *net.UDPConn // a second port, for the prober to send from

	mu       sync.Mutex
	evidence nat.Evidence
	found    nat.Found
	examined bool // found was concluded from evidence
}

// New returns an Outside, which does nothing before Run.
func New(ctx context.Context, config Config) (*Outside, error) {
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
	log := config.Log.With("subsystem", "nat")
	o := &Outside{
		config: config, log: log, listen: config.Server.Addr(), addresses: addresses, prober: nat.NewProber(config.Server, other, log),
		changed: make(chan struct{}, 1), changes: changes, other: other, found: nat.Conclude(nat.Evidence{}),
		seen: newSeen(config.Settings.Collective.Addresses, config.Trusted, func() (netip.Addr, error) {
			_, from, err := addresses.Gateway()
			return from, err
		}),
	}
	if config.Settings.Waypoint.PortMapping {
		nonce := config.Identity.Derive("port mapping")
		o.keeper = portmap.NewKeeper(portmap.Config{
			Wants: wants(o.listen.Port(), config.Settings.Waypoint), Network: o.network, Nonce: [12]byte(nonce[:12]), Log: log,
			Changed: func(s portmap.State) {
				o.seen.routed(s)
				o.notify()
			},
		})
	}
	return o, nil
}

// Run examines the network until ctx ends, and then closes o.
func (o *Outside) Run(ctx context.Context) error {
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return o.prober.Run(running) })
	group.Go(func() error { o.follow(running); return nil })
	if o.keeper != nil {
		group.Go(func() error { return o.keeper.Run(running) })
	}
	return errors.Join(group.Wait(), o.Close())
}

// Close frees what New opened. Run does so, too.
func (o *Outside) Close() error {
	o.addresses.Close()
	return o.other.Close()
}

// Changed delivers a value when the address at which others reach this host has changed. There may be one reader.
func (o *Outside) Changed() <-chan struct{} { return o.changed }

// Seen delivers this host's external addresses after each change. There may be one reader.
func (o *Outside) Seen() <-chan egress.Outside { return o.seen.news }

// Prober returns the prober of the sessions' port.
func (o *Outside) Prober() *nat.Prober { return o.prober }

// wants returns the ports that members outside must reach: that of sessions and WireGuard, and that of OpenVPN. In-band and
// mapped detours need the host's own address: no router forwards their ports.
func wants(session uint16, c config.Waypoint) []portmap.Want {
	list := []portmap.Want{{Protocol: portmap.UDP, Port: session}}
	if c.Gives(config.OpenVPN) {
		list = append(list, portmap.Want{Protocol: portmap.UDP, Port: uint16(c.OpenVPNPort)})
	}
	return list
}

// fixedObservers returns the waypoints of the configuration.
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

// notify reports that others may reach us at another address now.
func (o *Outside) notify() {
	select {
	case o.changed <- struct{}{}:
	default: // it has not been looked at yet
	}
}

// network returns the network whose router the keeper asks. A host with a public address needs none.
func (o *Outside) network() (portmap.Network, error) {
	gateway, own, err := o.addresses.Gateway()
	switch {
	case err != nil && o.onlyIPv6():
		return portmap.Network{}, nil // no NAT, so no router to ask
	case err != nil:
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

// onlyIPv6 reports whether this host has IPv6 addresses and no IPv4 address.
func (o *Outside) onlyIPv6() bool {
	usable, err := o.addresses.Usable()
	return err == nil && len(usable) > 0 && !slices.ContainsFunc(usable, func(a netstate.Address) bool { return a.Addr.Is4() })
}

// follow examines at the beginning, when the network has changed, and now and then.
func (o *Outside) follow(ctx context.Context) {
	changes := o.changes
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
			// Changes of routes are delivered, too, and often concern none of our addresses.
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
		case s := <-o.config.Sightings:
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

// wait returns the time until the next examination or refresh is due.
func (o *Outside) wait(due time.Time) time.Duration {
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

func (o *Outside) networkOrNone() portmap.Network {
	n, err := o.network()
	if err != nil {
		return portmap.Network{}
	}
	return n
}

// examine asks members, and reports whether there were enough of them.
func (o *Outside) examine(ctx context.Context, own []netip.Addr) (enough bool) {
	q := nat.Question{Own: own, Port: o.listen.Port(), Observers: fixedObservers(o.config.Settings.Client.Waypoints)}
	if members := o.config.Members; members != nil {
		q.Observers = slices.Concat(q.Observers, members.Observers(ctx, true))
		q.Third = members.Third
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
		o.notify()
	}
	return found.Leaves() != nat.LeavesOpen && found.Filtering != nat.PassesSome
}

// refresh keeps a NAT from forgetting us, and reports whether all members that answer still see us at the same address.
func (o *Outside) refresh(ctx context.Context) bool {
	o.mu.Lock()
	found, before := o.found, o.evidence.Sightings
	o.mu.Unlock()
	now := o.prober.Again(ctx, before)
	o.seen.seenBy(now...)
	return ctx.Err() != nil || found.Holds(before, now)
}

// routers returns the first routers on the way to the Internet, by their IPv6 addresses.
func (o *Outside) routers(ctx context.Context) []netip.Addr {
	list, err := netstate.FirstHops(ctx)
	if err != nil {
		o.log.Debug("the first routers on the way to the Internet in IPv6 are not known", "err", err)
	}
	return list
}

// Reach returns the address at which others reach the sessions' port now, if there is one, and whether they need hole punching.
func (o *Outside) Reach() (netip.AddrPort, nat.Leaves) {
	var opened netip.AddrPort
	if o.keeper != nil {
		opened, _ = o.keeper.State().External(portmap.Want{Protocol: portmap.UDP, Port: o.listen.Port()})
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return nat.Reach(o.found, opened, o.evidence.Sightings)
}

// Status returns the part of the status on how others reach this host.
func (o *Outside) Status() *api.Outside {
	at, left := o.Reach()
	o.mu.Lock()
	out := &api.Outside{
		Address: at, NAT: o.found.Kind(), Leaves: api.Reachability(left), Asked: o.evidence.Asked, Answered: len(o.evidence.Sightings),
	}
	if left == nat.LeavesOpen {
		out.Why = "members are being asked at which address they see this host"
		if o.examined {
			out.Why = fmt.Sprintf("%s; members are asked again within %d min", o.found.WhyOpen(o.evidence), int(examineEvery.Minutes()))
		}
		if hidden, _ := o.seen.hidden(); hidden {
			out.Why += "; until its public address is certain (or set in [collective] addresses), members get detours only to IPv4 servers in [waypoint] allow"
		}
	}
	if hidden, told := o.seen.hidden(); hidden && told && left != nat.LeavesOpen {
		out.Problem = "members disagree about its public address, or only one has reported it: they get detours only to IPv4 servers in [waypoint] allow"
		out.Fix = "set the address in [collective] addresses"
	}
	found, sightings := o.found, o.evidence.Sightings
	o.mu.Unlock()
	if o.keeper == nil {
		return out
	}
	s := o.keeper.State()
	out.Own, out.Gateway, out.Router = s.Network.Own, s.Network.Gateway, s.Router
	if s.Problem != "" && needsRouter(found) {
		out.Problem, out.Fix = s.Problem, s.Fix
	}
	for _, m := range s.Mappings {
		out.Opened = append(out.Opened, api.OpenedPort{Protocol: string(m.Protocol), Port: m.Port, External: m.External})
		if m.Port != o.listen.Port() && m.External.Port() != m.Port {
			out.Problem = fmt.Sprintf("the router has opened port %v as %d, but members use %d", m.Want, m.External.Port(), m.Port)
			out.Fix = "choose another waypoint.openvpn_port: another host in this network has this one"
		}
		if nat.BehindAnother(m.External, sightings) {
			out.Problem = fmt.Sprintf("the router %v has opened port %v at %v, but others see this host at another address: there is another NAT before the router",
				s.Network.Gateway, m.Want, m.External)
			out.Fix = "let that NAT forward the port to the router, or ask the provider for a public address"
		}
	}
	return out
}

// needsRouter reports whether others may need a port that the router opens. They need none if nothing translates this
// host's addresses and everybody gets in.
func needsRouter(f nat.Found) bool {
	return f.Mapping != nat.Untranslated || f.Leaves() != nat.Reachable
}
