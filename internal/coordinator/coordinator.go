package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/strangers"
)

// DefaultBusPort is the TCP port of the embedded bus.
const DefaultBusPort = 45673

// Config is what a coordinator needs.
type Config struct {
	Dir      string // what Init made
	Identity *collective.Identity
	// Listen is host:port for those who join and renew, BusListen that of the embedded bus.
	Listen, BusListen string
	// Addresses are where members reach this host: names or IP addresses, without a port.
	Addresses []string
	// BusServers are those of an external cluster; empty: the bus is embedded.
	BusServers []enrol.Endpoint
	Clock      func() time.Time // nil: time.Now
	Log        *slog.Logger
}

// Coordinator is the role, open. Its methods may be called from any goroutine, also while it does not run.
type Coordinator struct {
	config    Config
	now       func() time.Time
	unlock    func() // frees the directory
	reserve   *durable.Reserve
	authority *bus.Authority
	problems  []string // what was damaged when it was opened
	began     time.Time

	// enrolling is held while somebody is made a member, or is none any more: no certificate and no JWT may
	// be made between the decision that somebody is expelled and the revocation of what there is.
	enrolling sync.Mutex
	register  *register
	store     *store
	ca        *collective.CA
	issued    collective.Reading   // of what ca has signed
	banned    map[string]time.Time // until when who flooded us gets no JWT
	renewals  *allowances

	trust    atomic.Pointer[enrol.TrustMessage]
	told     atomic.Pointer[string] // hash of what members were told last of trust
	files    []fileStamp            // of the authority, as last read
	engine   atomic.Pointer[engine]
	gate     atomic.Pointer[gatekeeper]
	reach    *reach
	claims   *claims
	seen     *strangers.Seen // where members were seen
	enforced enforced
	floods   atomic.Uint64
	serving  atomic.Pointer[addresses]
	expel    sync.Mutex    // one expulsion is completed at a time
	retold   chan struct{} // trust has changed: tell all
	unfinish chan struct{} // an expulsion is not complete
	moved    chan struct{} // who can be reached has changed
	claimed  chan struct{} // there is an address to try
	account  chan struct{} // JWTs count no more, and the embedded server does not know
}

// The files of a coordinator's directory.
func rootDir(dir string) string      { return filepath.Join(dir, "root") }
func caDir(dir string) string        { return filepath.Join(dir, "ca") }
func busDir(dir string) string       { return filepath.Join(dir, "bus") }
func registerFile(dir string) string { return filepath.Join(dir, "register") }
func reserveFile(dir string) string  { return filepath.Join(dir, "reserve") }
func copyFile(dir string) string     { return filepath.Join(dir, "directory") }

// Open reads a coordinator's directory. It touches no network. What of the register is damaged is mended as
// far as that is possible, and told in Status.
func Open(c Config) (*Coordinator, error) {
	if c.Clock == nil {
		c.Clock = time.Now
	}
	unlock, err := durable.TryLock(c.Dir) // two agents must not be one coordinator
	if errors.Is(err, durable.ErrLocked) {
		return nil, fmt.Errorf("open the coordinator's directory: %s is in use by another process: it must be stopped first", c.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("open the coordinator's directory: %w", err)
	}
	co := &Coordinator{
		config: c, now: c.Clock, unlock: unlock, reserve: durable.NewReserve(reserveFile(c.Dir), reserved), began: c.Clock(),
		register: newRegister(rand.IntN), banned: map[string]time.Time{}, renewals: newAllowances(renewalBurst, renewalEvery),
		reach: newReach(rand.IntN), claims: newClaims(c.Identity.Name(), rand.IntN), seen: strangers.NewSeen(), enforced: enforced{hashes: map[string]string{}}, retold: make(chan struct{}, 1), unfinish: make(chan struct{}, 1), account: make(chan struct{}, 1), moved: make(chan struct{}, 1), claimed: make(chan struct{}, 1),
	}
	if err := co.open(); err != nil {
		co.Close()
		return nil, err
	}
	co.keepReserve()
	return co, nil
}

func (c *Coordinator) open() (err error) {
	if c.ca, err = collective.OpenCA(caDir(c.config.Dir)); err != nil {
		return fmt.Errorf("open the collective's authority: %w", err)
	}
	if self := c.config.Identity.Self(); self.Collective != c.ca.Name() {
		return fmt.Errorf("this host is a member of %q, and %s is the authority of %q: the coordinator must be a member of its own collective",
			self.Collective, caDir(c.config.Dir), c.ca.Name())
	}
	if c.authority, err = bus.OpenAuthority(busDir(c.config.Dir)); err != nil {
		return fmt.Errorf("open the bus's keys: %w", err)
	}
	return c.openRegister()
}

// openRegister reads the register and makes it agree with what was signed.
func (c *Coordinator) openRegister() error {
	s, d, err := openStore(registerFile(c.config.Dir), c.ca.Name(), c.register.apply)
	if err != nil {
		return err
	}
	c.store = s
	now := c.now()
	var issued []collective.IssuedCertificate
	for _, a := range c.authorities() {
		list := a.Issued
		if a == c.ca { // which is followed from here on
			list = func(since time.Time) ([]collective.IssuedCertificate, error) { return a.IssuedSince(&c.issued, since) }
		}
		some, err := list(now.Add(-grace))
		if err != nil {
			return fmt.Errorf("compare the register with what was signed: %w", err)
		}
		issued = append(issued, some...)
	}
	recovered, lost := c.register.recover(issued, now)
	for i := range recovered {
		c.register.apply(&recovered[i])
		c.config.Log.Warn("coordinator: a member was not in the register as its certificate is", "member", recovered[i].Member.Name)
	}
	if lost {
		d.add(true, "members whose certificates were signed here were missing in the register")
	}
	restored, err := c.takeOwnLists()
	if err != nil {
		return err
	}
	if restored {
		d.add(true, "%s", restoredWords)
	}
	if d.lost {
		void := c.register.voidTokens()
		for i := range void {
			c.register.apply(&void[i])
		}
		d.add(true, "invitations that were open are void: make new ones")
	}
	c.problems = d.what
	for _, what := range d.what {
		c.config.Log.Error("coordinator: its register was damaged", "damage", what)
	}
	if d.lost || len(recovered) > 0 {
		if err := s.rewrite(c.ca.Name(), c.register.all()); err != nil {
			return err
		}
	}
	return c.readAuthority() // the loop looks again, for who was revoked meanwhile
}

// Close frees the directory. Run must have returned.
func (c *Coordinator) Close() {
	if c.store != nil {
		c.store.close()
	}
	c.unlock()
}

// save makes entries last, and then true. The caller holds enrolling.
func (c *Coordinator) save(entries ...entry) error {
	if err := c.store.append(entries...); err != nil {
		return err
	}
	for i := range entries {
		c.register.apply(&entries[i])
	}
	if c.store.due() {
		if err := c.store.rewrite(c.ca.Name(), c.register.all()); err != nil {
			c.config.Log.Warn("coordinator: the register cannot be written anew, it goes on growing", "err", err)
		}
	}
	return nil
}

// InviteOptions say what an invitation is for.
type InviteOptions struct {
	Name    string        // of the member; empty: as it likes
	Expires time.Duration // from now on; zero: DefaultExpires
}

// How long invitations count.
const (
	DefaultExpires = 24 * time.Hour
	maxExpires     = 30 * 24 * time.Hour
)

// Invite makes a line for dcol join. It counts once.
func (c *Coordinator) Invite(o InviteOptions) (enrol.Line, error) {
	if o.Expires == 0 {
		o.Expires = DefaultExpires
	}
	if o.Expires < 0 || o.Expires > maxExpires {
		return enrol.Line{}, fmt.Errorf("invite: an invitation for %v is none: at most for %v", o.Expires, maxExpires)
	}
	c.enrolling.Lock()
	defer c.enrolling.Unlock()
	now := c.now()
	l := enrol.Line{
		Collective: c.ca.Name(), Coordinators: c.coordinators(), Root: enrol.RootOf(c.config.Identity), Secret: enrol.NewSecret(),
		Expires: now.Add(o.Expires).UTC().Truncate(time.Second), Name: o.Name,
	}
	if len(l.Coordinators) == 0 {
		return enrol.Line{}, errors.New("invite: nobody knows where to reach this coordinator: name its addresses in the configuration ([coordinator] addresses)")
	}
	if err := l.Check(); err != nil {
		return enrol.Line{}, fmt.Errorf("invite: %w", err)
	}
	if l.Root == ([32]byte{}) {
		return enrol.Line{}, errors.New("invite: this host's own certificate is under none of the collective's roots: renew it first")
	}
	e, err := c.register.invite(l.Secret, o.Name, now, l.Expires)
	if err == nil {
		err = c.save(*e)
	}
	if err != nil {
		return enrol.Line{}, fmt.Errorf("invite: %w", err)
	}
	return l, nil
}

// Run is the role at work, until the context ends or it cannot go on.
func (c *Coordinator) Run(ctx context.Context) error {
	if err := c.renewOwnNow(); errors.Is(err, syscall.ENOSPC) && c.config.Identity.Usable() == nil {
		c.config.Log.Warn("coordinator: its own certificates are not renewed", "err", err) // tried again
	} else if err != nil {
		return err
	}
	front, err := c.listen()
	if err != nil {
		return err
	}
	e, err := c.startEngine()
	if err != nil {
		return errors.Join(err, front.close())
	}
	c.serving.Store(&addresses{front: front.address(), bus: e.address()})
	c.engine.Store(e)
	ctx, stop := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	for _, loop := range []func(context.Context){c.runGate, c.runTrust, c.runExpulsions, c.runSweeps, c.runReach, c.runClaims, c.runAccount} {
		running.Go(func() { loop(ctx) })
	}
	running.Go(func() {
		select {
		case why := <-e.failed():
			stop(fmt.Errorf("the bus's server cannot go on: %s", why))
		case err := <-front.failed:
			stop(fmt.Errorf("listen for hosts that join: %w", err))
		case <-ctx.Done():
		}
	})
	<-ctx.Done()
	err = errors.Join(front.close())
	running.Wait()
	c.engine.Store(nil)
	c.serving.Store(nil)
	e.close()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err)
	}
	return err
}

// poke wakes a loop that has nothing to do until then.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// runSweeps forgets what is over, and renews what coordinators renew themselves.
func (c *Coordinator) runSweeps(ctx context.Context) {
	for every(ctx, time.Hour, nil) {
		if err := c.renewOwnNow(); err != nil {
			c.config.Log.Warn("coordinator: its own certificates are not renewed", "err", err)
		}
		c.enrolling.Lock()
		now := c.now()
		if err := c.save(c.register.sweep(now)...); err != nil {
			c.config.Log.Warn("coordinator: what is over cannot be forgotten", "err", err)
		}
		for name, until := range c.banned {
			if now.After(until) {
				delete(c.banned, name)
			}
		}
		c.renewals.sweep(now)
		c.keepReserve()
		isMember := func(name string) bool { m := c.register.members[name]; return m != nil && m.Expelled == nil }
		c.enforced.keep(isMember)
		c.seen.Keep(isMember)
		c.claims.keep(isMember, now)
		c.enrolling.Unlock()
	}
}

// every waits for a time, or to be poked, and says whether to go on.
func every(ctx context.Context, d time.Duration, poked <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-poked:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
