package coordinator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

const maxWhy = 150 // bytes of the reason of an expulsion

// ErrNotTold says that a member is expelled, and that not everybody knows it yet. It goes on by itself.
var ErrNotTold = errors.New("expelled, but not everybody was told yet; this is tried again until it is done")

// Expel ends a membership. When it returns without an error, the member's certificates are revoked, its
// connection to the bus is cut, and all members that are connected have been sent the revocation list. From
// the moment it is on the disk, which is first, the member gets no certificate any more, whatever happens.
// It may be called again.
func (c *Coordinator) Expel(ctx context.Context, name, why string) error {
	if name == c.config.Identity.Name() {
		return fmt.Errorf("expel %s: that is this coordinator itself", name)
	}
	why = strings.Join(strings.Fields(why), " ")
	if why == "" || len(why) > maxWhy {
		return fmt.Errorf("expel %s: the reason has %d bytes: 1 to %d", name, len(why), maxWhy)
	}
	c.enrolling.Lock()
	e, err := c.register.expel(name, why, c.now())
	if err == nil {
		err = c.save(*e)
	}
	c.enrolling.Unlock()
	if err != nil {
		return err
	}
	c.config.Log.Info("coordinator: expelled", "member", name, "why", why)
	if err := c.complete(ctx, name); err != nil {
		poke(c.unfinish)
		return fmt.Errorf("%s is %w: %w", name, ErrNotTold, err)
	}
	return nil
}

// complete does all that follows from an expulsion. Each step may be done again, so that after a crash or an
// error it begins anew.
func (c *Coordinator) complete(ctx context.Context, name string) error {
	c.expel.Lock()
	defer c.expel.Unlock()
	m, account, err := c.revoke(name)
	if err != nil || m.Expelled.Done {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, tellWithin)
	defer cancel()
	e, gate := c.engine.Load(), c.gate.Load()
	if e == nil || gate == nil {
		return errors.New("the bus is not up")
	}
	// Waypoints first; then the member itself, which is to hear it too.
	told := c.tellTrust(*c.trust.Load())
	removed := gate.remove(ctx, name, "expelled: "+m.Expelled.Why)
	cut := c.shutOut(ctx, e, name, account)
	if err := errors.Join(told, cut, removed); err != nil {
		return err
	}
	c.enrolling.Lock()
	defer c.enrolling.Unlock()
	return c.save(*c.register.told(name))
}

// accountPause is how long after an expulsion the embedded server applies it to JWTs. It looks at each
// connection for that, in some 0.2 ms: while 10,000 members are being told, that would be too much.
const accountPause = 2 * time.Second

// shutOut ends a member's connections. It comes back to an embedded server as little as with a good JWT, as its
// certificate is revoked; its JWT is refused a little later. After a crash meanwhile, the server begins with the
// account as the authority has it.
func (c *Coordinator) shutOut(ctx context.Context, e *engine, name, account string) error {
	if e.server == nil {
		return e.system.SetAccount(ctx, account)
	}
	e.server.Cut(name)
	poke(c.account)
	return nil
}

// runAccount applies to the embedded server what expulsions have changed: many at once, when they are told.
func (c *Coordinator) runAccount(ctx context.Context) {
	for every(ctx, time.Hour, c.account) && every(ctx, accountPause, nil) {
		e := c.engine.Load()
		if e == nil || e.server == nil {
			continue
		}
		account, err := c.authority.AccountJWT()
		if err == nil {
			err = e.server.SetAccount(ctx, account)
		}
		if err != nil {
			c.config.Log.Warn("coordinator: JWTs of those expelled still count, trying again", "err", err)
			poke(c.account)
		}
	}
}

// revoke makes certificates and JWTs worthless.
func (c *Coordinator) revoke(name string) (m *member, account string, err error) {
	c.enrolling.Lock()
	defer c.enrolling.Unlock()
	m = c.register.members[name]
	if m == nil || m.Expelled == nil {
		return nil, "", fmt.Errorf("%s is not expelled", name)
	}
	if m.Expelled.Done {
		return m, "", nil
	}
	if err := c.followAuthority(); err != nil {
		return nil, "", err
	}
	if err := c.revokeEverywhere(name); err != nil {
		return nil, "", err
	}
	if err := c.readAuthority(); err != nil {
		return nil, "", err
	}
	c.files = c.stamps() // what has changed is ours
	if account, err = c.authority.Revoke(m.Key[:]); err != nil {
		return nil, "", err
	}
	return m, account, nil
}

// revokeEverywhere puts a member's certificates on the lists of the authorities that are here.
func (c *Coordinator) revokeEverywhere(name string) error {
	missing := 0
	all := c.authorities()
	for _, a := range all {
		_, err := a.Revoke(name, collective.PrivilegeWithdrawn)
		if errors.Is(err, collective.ErrNotIssued) {
			missing++
			continue
		}
		if err != nil {
			return err
		}
		if a != c.ca {
			t, err := a.Trust()
			if err == nil {
				_, err = c.ca.TakeTrust(nil, t.Lists())
			}
			if err != nil {
				return fmt.Errorf("take the root's revocation list: %w", err)
			}
		}
	}
	if missing == len(all) {
		c.config.Log.Warn("coordinator: no authority here has issued a certificate that still counts; if another has, revoke it there (dcol ca revoke)", "member", name)
	}
	return nil
}

// runExpulsions completes what a crash, or a bus that was away, has left undone.
func (c *Coordinator) runExpulsions(ctx context.Context) {
	for ctx.Err() == nil {
		c.enrolling.Lock()
		names := c.register.unfinished()
		c.enrolling.Unlock()
		for _, name := range names {
			if err := c.complete(ctx, name); err != nil && ctx.Err() == nil {
				c.config.Log.Warn("coordinator: an expulsion is not complete, trying again", "member", name, "err", err)
			}
		}
		wait := retryEvery
		if len(names) == 0 {
			wait = time.Hour
		}
		every(ctx, wait, c.unfinish)
	}
}
