package registrar

import (
	"context"
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/coordinator/loop"
	"github.com/detour-collective/dcol/internal/coordinator/register"
	"github.com/detour-collective/dcol/internal/enrol"
)

// Expel saves the decision to expel a member. From then on the member gets no certificate.
func (r *Registrar) Expel(name, why string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, err := r.register.Expel(name, why, r.config.Clock())
	if err != nil {
		return err
	}
	return r.save(*e)
}

// Leave implements enrol.Service: it ends the membership of the host with this key. As after an expulsion, its certificates
// are revoked and all members are told; Config.Withdrawn wakes what does that.
func (r *Registrar) Leave(_ context.Context, key collective.PublicKey) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if key == r.config.Identity.Self().Key {
		return enrol.Refuse(enrol.Malformed, "this is the coordinator's own host")
	}
	name, e, err := r.register.Leave(key, r.config.Clock())
	if err == nil {
		err = r.save(*e)
	}
	if err != nil {
		return err
	}
	r.config.Log.Info("coordinator: a member has left", "member", name)
	loop.Wake(r.config.Withdrawn)
	return nil
}

// Revocation describes an expulsion whose certificates and JWTs are revoked.
type Revocation struct {
	Why     string    // why the member was expelled
	Left    bool      // it has left
	Account string    // the bus's new account, which refuses the member's JWTs
	Counts  time.Time // until then, certificates may be valid that cannot be revoked here
	Done    bool      // all members were told, so nothing remains
}

// Revoke revokes an expelled member's certificates and JWTs.
func (r *Registrar) Revoke(name string) (x Revocation, err error) {
	now := r.config.Clock()
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.register.Member(name)
	if m == nil || m.Expelled == nil {
		return x, fmt.Errorf("%s is not expelled", name)
	}
	x.Why, x.Left = m.Expelled.Why, m.Expelled.Left
	if m.Expelled.Done && !now.Before(m.Expelled.Counts) {
		x.Done = true
		return x, nil
	}
	if err := r.followAuthority(now); err != nil {
		return x, err
	}
	reason := collective.PrivilegeWithdrawn
	if x.Left {
		reason = collective.CessationOfOperation
	}
	if x.Counts, err = r.signer.revokeAll(name, reason, m.Until, now, r.config.Shown); err != nil {
		return x, err
	}
	if err := r.readAuthority(); err != nil {
		return x, err
	}
	r.signer.files = r.signer.stamps() // this change is our own
	x.Account, err = r.config.Authority.Revoke(m.Key[:])
	return x, err
}

// Complete saves that all members were notified of an expulsion.
func (r *Registrar) Complete(name string, x Revocation) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.save(*r.register.Complete(name, x.Counts))
}

// Unfinished returns the names of expelled members whose expulsion some members have not been told yet.
func (r *Registrar) Unfinished() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.register.Unfinished()
}

// Unrevoked returns an error if an expelled member may have valid certificates. The error says what to do.
func (r *Registrar) Unrevoked(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unrevoked(name, r.config.Clock())
}

func (r *Registrar) unrevoked(name string, now time.Time) error {
	m := r.register.Member(name)
	if m == nil || m.Expelled == nil || !now.Before(m.Expelled.Counts) {
		return nil
	}
	state := "expelled"
	if m.Expelled.Left {
		state = "no longer a member"
	}
	return fmt.Errorf("%s is %s, but waypoints may accept certificates of %s until %s that are not in the records here, so cannot be revoked: "+
		"put the folder issued of %s back from its backup, or revoke them where they were signed (dcol ca revoke), then expel %s again",
		name, state, name, register.FormatTime(m.Expelled.Counts), CADir(r.config.Dir), name)
}

// Ban refuses JWTs to a member until a time, and returns the bus's new account, which refuses the JWT that the member
// has. known is false if there is no such member.
func (r *Registrar) Ban(name string, until time.Time) (account string, known bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.register.Member(name)
	if m == nil {
		return "", false, nil
	}
	r.banned[name] = until
	account, err = r.config.Authority.Revoke(m.Key[:])
	return account, true, err
}
