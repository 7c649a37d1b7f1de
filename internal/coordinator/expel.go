package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/coordinator/gate"
	"github.com/detour-collective/dcol/internal/coordinator/loop"
	"github.com/detour-collective/dcol/internal/coordinator/records"
	"github.com/detour-collective/dcol/internal/coordinator/registrar"
	"github.com/detour-collective/dcol/internal/printable"
)

const (
	// maxWhy bounds the reason of an expulsion, in bytes.
	maxWhy     = 150
	tellWithin = 10 * time.Second
	retryEvery = 5 * time.Second
	// accountPause is the time after an expulsion at which the embedded server applies it to JWTs. The server then checks
	// each connection, in some 0.2 ms. That is too slow while 10,000 members are sent the list.
	accountPause = 2 * time.Second
)

// ErrNotTold is returned if a member is expelled but not all members were told. The coordinator keeps telling them.
var ErrNotTold = errors.New("expelled, but not all members were notified yet; the agent keeps trying")

// expulsions carries out decisions to expel.
type expulsions struct {
	self       string // the coordinator's own host
	registrar  *registrar.Registrar
	authority  *bus.Authority
	bus        *gate.Bus
	records    *records.Store
	trust      *trustFeed
	reserve    *reserve
	log        *slog.Logger
	unfinished chan struct{} // has a value when an expulsion is to be completed
	account    chan struct{} // has a value when the embedded server still accepts JWTs of expelled members

	completing sync.Mutex // one expulsion at a time
}

func (x *expulsions) expel(ctx context.Context, name, why string) error {
	if name == x.self {
		return fmt.Errorf("expel %s: this is the coordinator's own host", name)
	}
	why = strings.Join(strings.Fields(printable.Text(why)), " ")
	if why == "" || len(why) > maxWhy {
		return fmt.Errorf("expel %s: the reason must have 1 to %d bytes, not %d", name, maxWhy, len(why))
	}
	x.reserve.use()
	if err := x.registrar.Expel(name, why); err != nil {
		return err
	}
	x.log.Info("coordinator: expelled", "member", name, "why", why)
	if err := x.complete(ctx, name); err != nil {
		loop.Wake(x.unfinished)
		return fmt.Errorf("%s is %w: %w", name, ErrNotTold, err)
	}
	return x.registrar.Unrevoked(name)
}

// complete carries out an expulsion. Each step may be repeated, so it starts over after a crash or an error.
func (x *expulsions) complete(ctx context.Context, name string) error {
	x.completing.Lock()
	defer x.completing.Unlock()
	x.reserve.use()
	revocation, err := x.registrar.Revoke(name)
	if err != nil || revocation.Done {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, tellWithin)
	defer cancel()
	if !x.bus.Up() || !x.records.View(func(*directory.Directory) {}) {
		return errors.New("the bus is not up")
	}
	// Waypoints are told first, then the expelled member, which is still connected.
	told := x.trust.announce(x.registrar.Message())
	why := "expelled: " + revocation.Why
	if revocation.Left {
		why = revocation.Why
	}
	removed := x.records.Remove(ctx, name, why)
	cut := x.shutOut(ctx, name, revocation.Account)
	if err := errors.Join(told, cut, removed); err != nil {
		return err
	}
	return x.registrar.Complete(name, revocation)
}

// shutOut ends a member's connections. The embedded server refuses new ones, because the member's certificate is
// revoked. A little later it refuses the member's JWT, too. If the agent crashes meanwhile, the server starts with the
// authority's new account.
func (x *expulsions) shutOut(ctx context.Context, name, account string) error {
	if !x.bus.Embedded() {
		return x.bus.SetAccount(ctx, account)
	}
	x.bus.Cut(name)
	loop.Wake(x.account)
	return nil
}

// runAccount gives the embedded server the account that refuses the JWTs of expelled members, once for many.
func (x *expulsions) runAccount(ctx context.Context) {
	for loop.Wait(ctx, time.Hour, x.account) && loop.Wait(ctx, accountPause, nil) {
		if !x.bus.Embedded() {
			continue
		}
		account, err := x.authority.AccountJWT()
		if err == nil {
			err = x.bus.SetAccount(ctx, account)
		}
		if err != nil {
			x.log.Warn("coordinator: the bus still accepts JWTs of expelled members, trying again", "err", err)
			loop.Wake(x.account)
		}
	}
}

// run completes expulsions that were interrupted.
func (x *expulsions) run(ctx context.Context) {
	for ctx.Err() == nil {
		names := x.registrar.Unfinished()
		for _, name := range names {
			if err := x.complete(ctx, name); err != nil && ctx.Err() == nil {
				x.log.Warn("coordinator: an expulsion is not complete, trying again", "member", name, "err", err)
			}
		}
		wait := retryEvery
		if len(names) == 0 {
			wait = time.Hour
		}
		loop.Wait(ctx, wait, x.unfinished)
	}
}
