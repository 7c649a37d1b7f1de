package registrar

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/coordinator/register"
	"github.com/detour-collective/dcol/internal/enrol"
)

// A member may renew RenewalBurst times, then once every renewalEvery. Its certificate needs less, but it may have lost
// its JWT, or an answer.
const (
	RenewalBurst = 10
	renewalEvery = time.Minute
)

// InviteOptions restrict an invitation.
type InviteOptions struct {
	Name    string        // of the member; empty: it chooses
	Expires time.Duration // from now on; zero: DefaultExpires
}

const (
	// DefaultExpires is the time for which an invitation is valid by default.
	DefaultExpires = 24 * time.Hour
	maxExpires     = 30 * 24 * time.Hour
)

// Invite makes an invitation line for dcol join. It can be used once.
func (r *Registrar) Invite(o InviteOptions) (enrol.Line, error) {
	if o.Expires == 0 {
		o.Expires = DefaultExpires
	}
	if o.Expires < 0 || o.Expires > maxExpires {
		return enrol.Line{}, fmt.Errorf("invite: an invitation must expire within %v, not %v", maxExpires, o.Expires)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.config.Clock()
	l := enrol.Line{
		Collective: r.signer.ca.Name(), Coordinators: r.config.Coordinators(), Root: enrol.RootOf(r.config.Identity), Secret: enrol.NewSecret(),
		Expires: now.Add(o.Expires).UTC().Truncate(time.Second), Name: o.Name,
	}
	if len(l.Coordinators) == 0 {
		return enrol.Line{}, errors.New("invite: this coordinator has no addresses that others can reach: set them in the configuration ([coordinator] addresses)")
	}
	if err := l.Check(); err != nil {
		return enrol.Line{}, fmt.Errorf("invite: %w", err)
	}
	if l.Root == ([32]byte{}) {
		return enrol.Line{}, errors.New("invite: none of the collective's roots has signed this host's certificate: renew it first")
	}
	e, err := r.register.Invite(l.Secret, o.Name, now, l.Expires)
	if err == nil {
		err = r.save(*e)
	}
	if err != nil {
		return enrol.Line{}, fmt.Errorf("invite: %w", err)
	}
	return l, nil
}

// Join admits a host that has an invitation. The decision is on the disk before the certificate is signed. If the
// answer is lost, the host may send the same request again.
func (r *Registrar) Join(_ context.Context, j enrol.JoinRequest) (*enrol.Welcome, error) {
	request, err := collective.ParseRequest([]byte(j.Request))
	if err != nil {
		return nil, enrol.Refuse(enrol.Malformed, "%v", err)
	}
	now := r.config.Clock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if name := r.signer.ca.Name(); j.Collective != name {
		return nil, enrol.Refuse(enrol.OtherCollective, "this is the coordinator of %q, not of %.200q", name, j.Collective)
	}
	if off := j.Time.Sub(now); max(off, -off) > enrol.MaxClockOff {
		return nil, enrol.Refuse(enrol.ClockWrong, "%s", enrol.SayClocks(now, j.Time))
	}
	r.takeIssued(now) // the operator may just have issued a certificate for the name by hand
	m, e, err := r.register.Admit(register.Applicant{Secret: j.Secret, Name: request.Name(), Key: request.Key(), LANs: j.LANs}, now)
	if err == nil {
		err = r.refuseBanned(m.Name, now)
	}
	if err == nil {
		err = r.save(*e)
	}
	if err != nil {
		return nil, err
	}
	w, err := r.welcome(request, m)
	if err == nil {
		r.config.Log.Info("coordinator: a host has joined", "member", m.Name, "subnet", m.Subnet)
	}
	return w, err
}

// Renew gives the member with this key another certificate.
func (r *Registrar) Renew(_ context.Context, key collective.PublicKey, chain [][]byte, j enrol.RenewRequest) (*enrol.Welcome, error) {
	request, err := collective.ParseRequest([]byte(j.Request))
	if err != nil {
		return nil, enrol.Refuse(enrol.Malformed, "%v", err)
	}
	if request.Key() != key {
		return nil, enrol.Refuse(enrol.Malformed, "the request has another key than the TLS handshake")
	}
	now := r.config.Clock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.followAuthority(now); err != nil { // the member may just have been revoked by hand
		return nil, err
	}
	r.takeIssued(now)
	name := request.Name()
	if shown, err := r.config.Identity.Trust().Verify(chain, now); err == nil && shown.Name == name && shown.Key == key {
		if err := r.readmit(shown); err != nil {
			return nil, err
		}
	}
	m, e, err := r.register.Renew(name, key, j.LANs, now)
	if err != nil {
		return nil, err
	}
	if !r.renewals.May(name, now) {
		refusal := enrol.Refuse(enrol.TooMany, "%s has renewed too often", name)
		refusal.After = int(renewalEvery / time.Second)
		return nil, refusal
	}
	if err := r.refuseBanned(name, now); err != nil {
		return nil, err
	}
	if err := r.save(*e); err != nil {
		return nil, err
	}
	r.renewals.Take(name, now)
	return r.welcome(request, m)
}

// Trust returns the collective's roots and revocation lists.
func (r *Registrar) Trust(context.Context) (*enrol.TrustMessage, error) { return r.trust.Load(), nil }

// readmit adds a member that the register lacks, although the authority has signed its
// certificate. The caller holds mu.
func (r *Registrar) readmit(m collective.Member) error {
	if m.Issuer.Key != r.signer.ca.Key() {
		return nil
	}
	e, err := r.register.Readmit(m)
	if err != nil || e == nil {
		return err
	}
	if err := r.save(*e); err != nil {
		return err
	}
	r.config.Log.Warn("coordinator: the register lacked a member", "member", m.Name)
	return nil
}

// refuseBanned refuses a member that was cut off because of a flood. The caller holds mu.
func (r *Registrar) refuseBanned(name string, now time.Time) error {
	until, banned := r.banned[name]
	if !banned || now.After(until) {
		return nil
	}
	refusal := enrol.Refuse(enrol.TooMany, "%s has flooded its coordinators and was cut off until %s", name, register.FormatTime(until))
	refusal.After = int(until.Sub(now)/time.Second) + 1
	return refusal
}

// welcome signs a certificate and a JWT. The caller holds mu.
func (r *Registrar) welcome(request *collective.SigningRequest, m *register.Member) (*enrol.Welcome, error) {
	signed, err := r.signer.ca.Sign(request, collective.Terms{Name: m.Name, Subnet: m.Subnet})
	if err != nil {
		return nil, err
	}
	jwt, err := r.config.Authority.MemberJWT(m.Name, ed25519.PublicKey(signed.Member.Key[:]), signed.Member.NotAfter)
	if err != nil {
		return nil, err
	}
	return &enrol.Welcome{
		Chain: string(signed.Chain), TrustMessage: *r.trust.Load(), BusJWT: jwt, BusServers: r.config.BusServers(), Coordinators: r.config.Coordinators(),
	}, nil
}
