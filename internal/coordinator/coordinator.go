package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/coordinator/gate"
	"github.com/detour-collective/dcol/internal/coordinator/loop"
	"github.com/detour-collective/dcol/internal/coordinator/reach"
	"github.com/detour-collective/dcol/internal/coordinator/records"
	"github.com/detour-collective/dcol/internal/coordinator/registrar"
	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/strangers"
)

// Config holds a coordinator's settings.
type Config struct {
	Dir      string // made by Init
	Identity *collective.Identity
	// Listen is host:port for hosts that join and members that renew, BusListen that of the embedded bus.
	Listen, BusListen string
	// Addresses are names or IP addresses at which members reach this host, without a port.
	Addresses []string
	// BusServers are the servers of an external cluster. If empty, the bus is embedded.
	BusServers []enrol.Endpoint
	Clock      func() time.Time // nil: time.Now
	Log        *slog.Logger
}

// Coordinator is an open coordinator role. Its methods may be called from any goroutine until Close.
type Coordinator struct {
	config    Config
	began     time.Time
	unlock    func() // frees the directory
	reserve   *reserve
	addresses *gate.Addresses
	seen      *strangers.Seen // addresses of members
	bus       *gate.Bus
	trust     *trustFeed
	enforced  *confirmations
	prober    *reach.Prober
	records   *records.Store
	registrar *registrar.Registrar
	expelling *expulsions
	floods    atomic.Uint64
}

// Files of a coordinator's directory. See registrar for the others.
func busDir(dir string) string { return filepath.Join(dir, "bus") }

// Open reads a coordinator's directory. It touches no network. A damaged register is repaired as far as possible, and
// Status lists what was damaged.
func Open(c Config) (*Coordinator, error) {
	if c.Clock == nil {
		c.Clock = time.Now
	}
	unlock, err := durable.TryLock(c.Dir) // two agents must not be one coordinator
	if errors.Is(err, durable.ErrLocked) {
		return nil, fmt.Errorf("open the coordinator's directory: %s is in use by another process: stop it first", c.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("open the coordinator's directory: %w", err)
	}
	co, err := compose(c, unlock)
	if err != nil {
		unlock()
		return nil, err
	}
	co.reserve.keep()
	return co, nil
}

// compose builds the parts, each after the parts that it needs.
func compose(c Config, unlock func()) (*Coordinator, error) {
	name := c.Identity.Name()
	co := &Coordinator{
		config: c, began: c.Clock(), unlock: unlock, reserve: newReserve(c.Dir, c.Log), seen: strangers.NewSeen(), enforced: newConfirmations(),
		addresses: gate.NewAddresses(name, c.Addresses, c.Listen, c.BusListen, c.BusServers),
	}
	authority, err := bus.OpenAuthority(busDir(c.Dir))
	if err != nil {
		return nil, fmt.Errorf("open the bus's keys: %w", err)
	}
	co.bus = gate.NewBus(gate.BusConfig{
		Identity: c.Identity, Authority: authority, External: c.BusServers, Listen: c.BusListen,
		Store: filepath.Join(busDir(c.Dir), "store"), Seen: co.seen, Log: c.Log,
	})
	co.trust = &trustFeed{bus: co.bus, log: c.Log}
	unfinished := make(chan struct{}, 1)
	co.prober = reach.NewProber(name, co.bus, c.Clock, c.Log)
	co.records = records.NewStore(records.Config{
		Identity: c.Identity, Bus: co.bus, Replicas: replicas(len(c.BusServers)), File: filepath.Join(c.Dir, "directory"),
		Unshown: co.prober.Unshown, Opened: unfinished, Clock: c.Clock, Log: c.Log,
	})
	co.registrar, err = registrar.Open(registrar.Config{
		Dir: c.Dir, Identity: c.Identity, Authority: authority, Clock: c.Clock, Log: c.Log,
		Coordinators: co.addresses.Coordinators, BusServers: co.addresses.BusServers,
		Shown: co.records.Shown, Announce: co.trust.announce, Recheck: co.records.Recheck, Withdrawn: unfinished,
	})
	if err != nil {
		return nil, err
	}
	co.expelling = &expulsions{
		self: name, registrar: co.registrar, authority: authority, bus: co.bus, records: co.records, trust: co.trust, reserve: co.reserve,
		log: c.Log, unfinished: unfinished, account: make(chan struct{}, 1),
	}
	return co, nil
}

// replicas returns the number of the bus's servers that keep the directory's store.
func replicas(servers int) int {
	if servers >= 3 {
		return 3
	}
	return 1
}

// Close frees the directory. Run must have returned.
func (c *Coordinator) Close() {
	c.registrar.Close()
	c.unlock()
}

// InviteOptions restrict an invitation.
type InviteOptions = registrar.InviteOptions

// DefaultExpires is the time for which an invitation is valid by default.
const DefaultExpires = registrar.DefaultExpires

// Invite makes an invitation line for dcol join. It can be used once.
func (c *Coordinator) Invite(o InviteOptions) (enrol.Line, error) { return c.registrar.Invite(o) }

// Expel ends a membership. When it returns without an error, the member's certificates are revoked, its connection to
// the bus is cut, and all connected members have been sent the revocation list. The decision is on the disk first: from
// then on the member gets no certificate, whatever happens. Expel may be called again.
func (c *Coordinator) Expel(ctx context.Context, name, why string) error {
	return c.expelling.expel(ctx, name, why)
}

// Run serves members until ctx ends or a part fails.
func (c *Coordinator) Run(ctx context.Context) error {
	if err := c.registrar.RenewOwn(); errors.Is(err, syscall.ENOSPC) && c.config.Identity.Usable() == nil {
		c.config.Log.Warn("coordinator: its own certificates are not renewed", "err", err) // tried again
	} else if err != nil {
		return err
	}
	front, err := gate.Listen(gate.FrontConfig{
		Listen: c.config.Listen, Identity: c.config.Identity, Service: c.registrar, Seen: c.seen, Clock: c.config.Clock, Log: c.config.Log,
	})
	if err != nil {
		return err
	}
	if err := c.bus.Start(bus.Handlers{Handle: c.handle, Flood: c.flood}, c.records.Resync); err != nil {
		return errors.Join(err, front.Close())
	}
	c.addresses.Listening(front.Address(), c.bus.Address())
	ctx, stop := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	for _, run := range []func(context.Context){
		c.records.Run, c.runTrust, c.expelling.run, c.expelling.runAccount, c.runSweeps,
		func(ctx context.Context) { c.prober.Run(ctx, c.records.View) },
	} {
		running.Go(func() { run(ctx) })
	}
	running.Go(func() {
		select {
		case why := <-c.bus.Failed():
			stop(fmt.Errorf("the bus's server failed: %s", why))
		case err := <-front.Failed():
			stop(err)
		case <-ctx.Done():
		}
	})
	<-ctx.Done()
	err = front.Close()
	running.Wait()
	c.addresses.Closed()
	c.bus.Stop()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err)
	}
	return err
}

// runTrust announces roots and revocation lists when they change.
func (c *Coordinator) runTrust(ctx context.Context) {
	for ctx.Err() == nil {
		if err := c.registrar.Follow(); err != nil {
			c.config.Log.Warn("coordinator: the authority's new files cannot be used", "err", err)
		}
		c.trust.follow(c.registrar.Message(), time.Now())
		loop.Wait(ctx, followEvery, c.registrar.TrustChanged())
	}
}

// runSweeps forgets memberships and invitations that ended long ago, and renews the coordinator's own certificates.
func (c *Coordinator) runSweeps(ctx context.Context) {
	for loop.Wait(ctx, time.Hour, nil) {
		if err := c.registrar.RenewOwn(); err != nil {
			c.config.Log.Warn("coordinator: its own certificates are not renewed", "err", err)
		}
		c.registrar.Sweep()
		c.reserve.keep()
		for _, keep := range []func(func(string) bool){c.enforced.keep, c.seen.Keep, c.prober.Keep} {
			keep(c.registrar.IsMember)
		}
	}
}
