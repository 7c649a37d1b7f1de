package coordinator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/printable"
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
	why = strings.Join(strings.Fields(printable.Text(why)), " ")
	if why == "" || len(why) > maxWhy {
		return fmt.Errorf("expel %s: the reason has %d bytes: 1 to %d", name, len(why), maxWhy)
	}
	c.makeRoom()
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
	c.enrolling.Lock()
	defer c.enrolling.Unlock()
	if until, is := c.register.unrevoked(c.now())[name]; is {
		return fmt.Errorf("%s is expelled, %w", name, c.notRevoked(name, until))
	}
	return nil
}

// notRevoked says what can be done where the records of what was signed are damaged.
func (c *Coordinator) notRevoked(name string, until time.Time) error {
	return fmt.Errorf("but certificates of %s that no record here tells of may count at waypoints until %s, as they cannot be revoked: "+
		"put the folder issued of %s back from its backup, or revoke them where they were signed (dcol ca revoke), then expel %s again",
		name, stamp(until), caDir(c.config.Dir), name)
}

// complete does all that follows from an expulsion. Each step may be done again, so that after a crash or an
// error it begins anew.
func (c *Coordinator) complete(ctx context.Context, name string) error {
	c.expel.Lock()
	defer c.expel.Unlock()
	c.makeRoom()
	m, account, counts, err := c.revoke(name)
	if err != nil || account == "" {
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
	return c.save(*c.register.told(name, counts))
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

// revoke makes certificates and JWTs worthless; counts is until when such certificates may count that nobody
// here can revoke. No account: all was done before.
func (c *Coordinator) revoke(name string) (m *member, account string, counts time.Time, err error) {
	c.enrolling.Lock()
	defer c.enrolling.Unlock()
	m = c.register.members[name]
	if m == nil || m.Expelled == nil {
		return nil, "", counts, fmt.Errorf("%s is not expelled", name)
	}
	if m.Expelled.Done && !c.now().Before(m.Expelled.Counts) {
		return m, "", counts, nil
	}
	if err := c.followAuthority(); err != nil {
		return nil, "", counts, err
	}
	if counts, err = c.revokeEverywhere(m); err != nil {
		return nil, "", counts, err
	}
	if err := c.readAuthority(); err != nil {
		return nil, "", counts, err
	}
	c.files = c.stamps() // what has changed is ours
	if account, err = c.authority.Revoke(m.Key[:]); err != nil {
		return nil, "", counts, err
	}
	return m, account, counts, nil
}

// revokeEverywhere puts a member's certificates on the lists of the authorities that are here. If their records
// lack what the member must have, they are damaged, or another authority has signed: then the certificate in
// the member's own record is revoked, and others may count, until the time that is returned.
func (c *Coordinator) revokeEverywhere(m *member) (counts time.Time, err error) {
	all := c.authorities()
	last, err := c.revokeIn(all, m.Name)
	if err != nil {
		return counts, err
	}
	until := m.Until
	if end := c.ca.NotAfter(); end.Before(until) {
		until = end // no certificate lasts longer than what signed it
	}
	if !last.Before(until.Add(-time.Minute)) || !c.now().Before(until) {
		return counts, nil
	}
	c.config.Log.Error("coordinator: the records of what was signed lack a member's certificates", "member", m.Name, "until", until)
	if recalled, err := c.recall(all, m.Name); err != nil {
		return counts, err
	} else if recalled {
		_, err = c.revokeIn(all, m.Name)
		return until, err
	}
	return until, nil
}

// revokeIn revokes what authorities have signed for a member, and returns the end of what lasts longest.
func (c *Coordinator) revokeIn(all []*collective.CA, name string) (last time.Time, err error) {
	for _, a := range all {
		revoked, err := a.Revoke(name, collective.PrivilegeWithdrawn)
		if errors.Is(err, collective.ErrNotIssued) {
			continue
		}
		if err != nil {
			return last, err
		}
		for _, r := range revoked {
			if r.NotAfter.After(last) {
				last = r.NotAfter
			}
		}
		if a != c.ca {
			t, err := a.Trust()
			if err == nil {
				_, err = c.ca.TakeTrust(nil, t.Lists())
			}
			if err != nil {
				return last, fmt.Errorf("take the root's revocation list: %w", err)
			}
		}
	}
	return last, nil
}

// recall has an authority know again the certificate that a member's record in the directory shows.
func (c *Coordinator) recall(all []*collective.CA, name string) (done bool, err error) {
	gate := c.gate.Load()
	if gate == nil {
		return false, nil
	}
	var holder collective.Member
	gate.view(func(d *directory.Directory) {
		if v, there := d.Get(name); there {
			holder = v.Holder
		}
	})
	for _, a := range all {
		if holder.Name == name && a.Key() == holder.Issuer.Key {
			return true, a.Recall(holder)
		}
	}
	return false, nil
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
