package registrar

import (
	"fmt"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/coordinator/loop"
	"github.com/detour-collective/dcol/internal/coordinator/register"
	"github.com/detour-collective/dcol/internal/enrol"
)

// TrustChanged has a value after roots or lists have changed.
func (r *Registrar) TrustChanged() <-chan struct{} { return r.changed }

// Message returns the collective's roots and revocation lists.
func (r *Registrar) Message() enrol.TrustMessage { return *r.trust.Load() }

// Follow applies changes that the operator has made by hand (dcol ca), and writes what could not be written before.
func (r *Registrar) Follow() error {
	now := r.config.Clock()
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.followAuthority(now)
	r.takeIssued(now)
	r.saveLater()
	return err
}

// followAuthority reads the authority again if its files have changed. The caller holds mu.
func (r *Registrar) followAuthority(now time.Time) error {
	stamps := r.signer.stamps()
	if slices.Equal(stamps, r.signer.files) {
		return nil
	}
	if err := r.readAuthority(); err != nil {
		return err
	}
	if err := r.withdraw(now); err != nil {
		return err
	}
	r.signer.files = stamps
	return r.renewOwn(now) // there may be another signer
}

// readAuthority reads the authority's files. This host's identity takes the trust first, because it verifies records
// and serves the coordinator's TLS. The caller holds mu.
func (r *Registrar) readAuthority() error {
	ca, err := collective.OpenCA(CADir(r.config.Dir))
	if err != nil {
		return err
	}
	t, err := ca.Trust()
	if err != nil {
		return err
	}
	before := r.trust.Load()
	m := enrol.NewTrustMessage(t)
	changed := before == nil || m.Hash != before.Hash
	if changed {
		if _, err := r.config.Identity.TakeTrust([]byte(m.Roots), []byte(m.Lists)); err != nil {
			return fmt.Errorf("this host refuses the roots and lists of its own authority: %w", err)
		}
	}
	r.trust.Store(&m)
	if ca.Key() != r.signer.ca.Key() {
		// Members must have a new signer's list before they see a certificate that it has signed. Members that are not
		// connected get the list when they connect.
		r.config.Announce(m) //nolint:errcheck // it is announced again
	}
	r.signer.ca = ca
	if before != nil && changed {
		r.config.Recheck()
	}
	loop.Wake(r.changed)
	return nil
}

// takeIssued adds members to whom the operator has given a certificate by hand (dcol ca issue). Their names are taken,
// and they may renew. The caller holds mu.
func (r *Registrar) takeIssued(now time.Time) {
	issued, err := r.signer.newlyIssued(now.Add(-register.Grace))
	if err != nil {
		r.config.Log.Warn("coordinator: some records of what was signed cannot be read", "err", err)
	}
	for _, one := range issued {
		if m := r.register.Member(one.Name); m != nil && m.Expelled != nil && m.Key != one.Key && !one.Revoked {
			r.config.Log.Warn("coordinator: a certificate was made by hand with the name of an expelled member; waypoints accept it until it is revoked (dcol ca revoke)",
				"member", one.Name, "serial", one.Serial)
		}
	}
	entries, _ := r.register.Recover(issued, now)
	for _, e := range entries {
		if err := r.save(e); err != nil {
			r.config.Log.Warn("coordinator: a host with a certificate made by hand is not a member yet, trying again", "member", e.Member.Name, "err", err)
			r.signer.issued = collective.Reading{}
			return
		}
		r.config.Log.Info("coordinator: a host with a certificate made by hand is a member now", "member", e.Member.Name, "until", e.Member.Until)
	}
}

// withdraw expels members whose certificates the operator has revoked by hand, except this host: without it nobody
// could be told. The caller holds mu.
func (r *Registrar) withdraw(now time.Time) error {
	issued, err := r.signer.ca.Issued(now)
	if err != nil {
		return err
	}
	for _, e := range r.register.Withdraw(issued, now) {
		if e.Member.Name == r.config.Identity.Name() {
			continue
		}
		if err := r.save(e); err != nil {
			return err
		}
		r.config.Log.Info("coordinator: expelled, as its certificates were revoked by hand", "member", e.Member.Name)
		loop.Wake(r.config.Withdrawn)
	}
	return nil
}

// RenewOwn renews this host's certificate, and the signer's, when they are due. This coordinator must renew its own:
// once it has expired, as after a long time off, no member accepts it.
func (r *Registrar) RenewOwn() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.renewOwn(r.config.Clock())
}

func (r *Registrar) renewOwn(now time.Time) error {
	renewed, err := r.signer.renew(now)
	if err == nil && renewed {
		err = r.readAuthority()
	}
	if err != nil {
		return err
	}
	id := r.config.Identity
	self := id.Self()
	if now.Before(collective.RenewAt(self.NotBefore, self.NotAfter, 0)) && self.Issuer.Key == r.signer.ca.Key() && id.Usable() == nil {
		return nil
	}
	if err := r.signOwn(id, self, now); err != nil {
		return fmt.Errorf("renew the coordinator's own certificate: %w", err)
	}
	r.config.Log.Info("coordinator: its own certificate is renewed", "until", id.Self().NotAfter)
	return nil
}

func (r *Registrar) signOwn(id *collective.Identity, self collective.Member, now time.Time) error {
	text, err := id.RenewalRequest()
	if err != nil {
		return err
	}
	request, err := collective.ParseRequest(text)
	if err != nil {
		return err
	}
	m := register.Member{Name: self.Name, Key: self.Key, Subnet: self.Subnet, Joined: now.UTC()}
	// The register may have forgotten this host, if it was off for very long.
	if known := r.register.Member(self.Name); known != nil && known.Key == m.Key {
		m = *known
	}
	m.Until = now.Add(collective.MemberValidity).UTC()
	if err := r.save(register.Entry{Member: &m}); err != nil {
		return err
	}
	signed, err := r.signer.ca.Sign(request, collective.Terms{Name: m.Name, Subnet: m.Subnet})
	if err != nil {
		return err
	}
	return id.TakeCertificate(signed.Chain)
}
