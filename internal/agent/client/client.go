// Package client is the client role: it gives the MPTCP connections of this host's programs detours through waypoints.
//
// The loop in client.go owns all state. What happens outside of it comes in through the inbox (inbox.go). events.go
// translates what the kernel reports for the path manager, and carryout.go does what the path manager decides.
// waypoints.go and tunnels.go keep sessions with waypoints and the detours through them. sampler.go reads subflows'
// counters. converters.go knows other members' converters, converterkeeper.go keeps this host admitted to one, and
// converterloop.go connects them with the loop and the relay. portsearch.go searches source ports for package
// sourceports, and statefile.go saves for the next agent what this one learned.
package client

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"

	"github.com/detour-collective/dcol/internal/agent/client/policies"
	"github.com/detour-collective/dcol/internal/agent/client/sourceports"
	"github.com/detour-collective/dcol/internal/agent/relaying"
	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/claim"
	"github.com/detour-collective/dcol/internal/paths/finder"
)

// Config configures a Client.
type Config struct {
	Identity *collective.Identity
	Settings *config.Config
	// Directory chooses waypoints besides those of the settings; nil: there is no directory.
	Directory Directory
	// Sightings takes the addresses at which waypoints see this host; nil: nobody wants them.
	Sightings chan<- nat.Sighting
	// Relay connects to converters, as this role orders.
	Relay Relay
	// GrantedRates has the rates that peers were granted by TCP options; nil: none are.
	GrantedRates *ebpf.Map
	Log          *slog.Logger
}

// Directory chooses waypoints out of the collective's directory.
type Directory interface {
	// Choices delivers the waypoints to use, whenever they change.
	Choices() <-chan []config.Peer
	// Heard is told whether a chosen waypoint has a session and offers a kind of detour.
	Heard(waypoint string, up bool)
	// Way returns a function that punches a hole to a waypoint, for session.ClientConfig.
	Way(waypoint string) func(context.Context, *net.UDPConn, netip.AddrPort) error
	// Steer sets which waypoints are chosen before all others, and which are never chosen.
	Steer(first, never []string)
	// ExchangeClaims gives other members this host's own measurements of waypoints, and returns theirs of the waypoints in about.
	ExchangeClaims(ctx context.Context, own []claim.Claim, about []string) ([]claim.Heard, error)
}

// Relay is the process that connects to converters. It is *relaying.Keeper.
type Relay interface {
	Change(func(*relay.State))
	Settle(context.Context)
	Standing() relaying.Standing
	Servers(connections []relay.Ends) ([]netip.AddrPort, error)
}

// Client is the client role. One goroutine, loop, owns all its state. Events come to it through channels. It carries
// out what the path manager and the book of detours decide about one event before it looks at the next.
type Client struct {
	config     Config
	log        *slog.Logger
	host       *host
	inbox      *inbox
	manager    *path.Manager
	memory     stateFile // of what the manager measured
	budget     stateFile // of the used parts of the budgets
	exchange   exchange
	book       *detour.Book
	backlog    []path.Event // came up while actions were carried out
	roster     roster
	tunnels    *tunnels
	converters converters
	gateway    lanGateway
	steering   steering
	ports      sourceports.Ports
	searcher   *sourceports.Searcher
	sampler    sampler
	policer    policer
	sending    sendingHost
	counters   api.Counters
	ended      lately
}

// inboxRoom is the number of messages that may wait for the loop.
const inboxRoom = 1024

// New takes over the management of this host's MPTCP connections. Run must follow: it gives back what New took.
func New(ctx context.Context, config Config) (*Client, error) {
	log, settings := config.Log.With("subsystem", "client"), config.Settings
	operator := settings.Client
	memory, budgets := newMemoryFile(settings.StateDir, log), newBudgetFile(settings, log)
	managing := policies.PathManager(settings)
	managing.Seed, managing.Memory = rand.Uint64(), readMemory(&memory)
	managing.Budget, managing.Used = limitsOf(operator.Budget), readBudget(&budgets)
	host, err := openHost(ctx, settings, log)
	if err != nil {
		return nil, err
	}
	managing.Inactivity = host.inactivity
	steering, roster, converters := newSteering(operator), newRoster(settings), newConverters(settings)
	converters.agent, converters.will = host.identify(operator.Converter.Capture), steering.will()
	gateway := newGateway(settings, log)
	tunnels := newTunnels(settings, roster.room, host.interfaces(), log)
	host.boundUnsent(operator.Cgroup)
	sending := sendingHost{host.openSetter(operator.Cgroup, config.GrantedRates, settings.Policies)}
	policer := newPolicer(log)
	// The prober must be the last program that is attached to the cgroup: see keepalive.Open.
	prober := host.openProber(operator.Cgroup)
	return &Client{
		config: config, log: log, host: host, inbox: newInbox(inboxRoom),
		manager: path.New(managing), book: detour.New(policies.Kinds(operator.Kinds)), memory: memory, budget: budgets,
		exchange: exchange{publish: operator.PublishMeasurements}, roster: roster, tunnels: tunnels,
		converters: converters, gateway: gateway, steering: steering,
		ports: sourceports.New(settings.Policies), searcher: sourceports.NewSearcher(config.Identity, finder.Find),
		sampler: sampler{log: log, kernel: host.kernel, prober: prober}, policer: policer, sending: sending,
	}, nil
}

// Run works until ctx ends, and then gives the host back. It leaves connections as they are.
func (c *Client) Run(ctx context.Context) error {
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return c.host.listen(running) })
	group.Go(func() error { return c.loop(running) })
	err := group.Wait()
	c.roster.close()
	return errors.Join(err, c.policer.close(), c.gateway.close(), c.tunnels.close(), c.host.close())
}

// loop works until ctx ends.
func (c *Client) loop(ctx context.Context) error {
	start := time.Now()
	c.readAddresses() // first: they show which connections began in an earlier agent's tunnel
	c.resync()
	c.offerUplinks()
	c.backlog = append(c.backlog, path.Steered{Steering: c.steering.will()})
	c.decide(ctx, start)
	c.reconcile(ctx, start)
	due := time.NewTimer(time.Hour)
	defer due.Stop()
	sample := time.NewTimer(sampleEvery)
	defer sample.Stop()
	watch := time.NewTimer(0)
	defer watch.Stop()
	watching := true
	defer func() {
		c.memory.writeLast(memoryOf(c.manager.Memory()))
		c.budget.writeLast(budgetForm{budgetVersion, c.manager.Used()})
	}()
	defer c.inbox.wait()
	var choices <-chan []config.Peer
	if c.config.Directory != nil {
		choices = c.config.Directory.Choices()
	}
	for {
		// The time is taken when something has happened, not when the wait began.
		select {
		case <-ctx.Done():
			return nil
		case ev, ok := <-c.host.events:
			if !ok {
				return errors.New("the kernel's MPTCP events ended")
			}
			c.kernelEvent(ctx, ev, time.Now())
		case end := <-c.host.ends:
			c.handle(ctx, time.Now(), path.SubflowCounted(end))
		case _, ok := <-c.host.addresses:
			if ok { // else the agent stops
				c.addressesChanged(ctx, time.Now())
			}
		case c.roster.chosen = <-choices:
			c.reconcile(ctx, time.Now())
		case f := <-c.inbox.calls:
			f(time.Now())
		case <-c.tunnels.removed():
			c.tunnels.checkGuard()
		case <-c.gateway.removed():
			c.keepGateway(time.Now())
		case <-due.C:
			c.due(ctx, time.Now())
		case <-sample.C:
			sample.Reset(c.sample(ctx, time.Now()))
			c.keepGateway(time.Now())
		case <-watch.C:
			again := c.sampleWatched(ctx, time.Now())
			if watching = c.manager.Watches(); watching {
				watch.Reset(again)
			}
		}
		if !watching && c.manager.Watches() {
			watching = true
			watch.Reset(watchEvery) // a server that takes no subflow has closed it by then
		}
		if at, ok := c.next(); ok {
			due.Reset(time.Until(at))
		}
	}
}

// next returns the time at which due has something to do.
func (c *Client) next() (time.Time, bool) {
	at, ok := c.manager.Next()
	if b, has := c.book.Next(); has && (!ok || b.Before(at)) {
		at, ok = b, true
	}
	if s := c.steering.next(); !s.IsZero() && (!ok || s.Before(at)) {
		at, ok = s, true
	}
	return at, ok
}

func (c *Client) due(ctx context.Context, now time.Time) {
	if c.steering.expire(now) {
		c.steer(ctx, now)
	}
	asks, events := c.book.Due(now)
	c.ask(ctx, asks, now)
	c.backlog = append(append(c.backlog, events...), path.Tick{})
	c.decide(ctx, now)
}

// postFor hands f, which concerns a waypoint, to the loop. The loop drops it if the waypoint was left meanwhile.
func (c *Client) postFor(ctx context.Context, v detour.Via, f func(now time.Time)) {
	c.inbox.post(ctx, func(now time.Time) {
		if c.roster.sessions[v] != nil {
			f(now)
		}
	})
}

// handle passes one event to the path manager, and carries out what it decides.
func (c *Client) handle(ctx context.Context, now time.Time, ev path.Event) {
	c.backlog = append(c.backlog, ev)
	c.decide(ctx, now)
}

// decide passes each event in the backlog to the path manager, and carries out the resulting actions.
// These may add events to the backlog.
func (c *Client) decide(ctx context.Context, now time.Time) {
	for next := 0; next < len(c.backlog); {
		for _, a := range c.manager.Handle(c.backlog[next], now) {
			c.carryOut(ctx, a, now)
		}
		next++
	}
	clear(c.backlog)
	c.backlog = c.backlog[:0]
}
