package coordinator

import (
	"context"
	"crypto/ed25519"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/enrol"
)

// How often one member may renew: who lost its JWT, or an answer, comes sooner than when it is time.
const (
	renewalBurst = 10
	renewalEvery = time.Minute
)

// desk is where hosts become members, and stay so: the service behind HTTPS.
type desk struct{ *Coordinator }

// Join admits who has a token. What was decided is on the disk before the certificate is signed; when a
// crash, or the network, takes the answer away, the same request gets another.
func (d desk) Join(_ context.Context, r enrol.JoinRequest) (*enrol.Welcome, error) {
	request, err := collective.ParseRequest([]byte(r.Request))
	if err != nil {
		return nil, enrol.Refuse(enrol.Malformed, "%v", err)
	}
	now := d.now()
	if name := d.authorityName(); r.Collective != name {
		return nil, enrol.Refuse(enrol.OtherCollective, "this is the coordinator of %q, not of %.200q", name, r.Collective)
	}
	if off := r.Time.Sub(now); max(off, -off) > enrol.MaxClockOff {
		return nil, enrol.Refuse(enrol.ClockWrong, "%s", enrol.SayClocks(now, r.Time))
	}
	d.enrolling.Lock()
	defer d.enrolling.Unlock()
	d.takeIssued() // a name may have been given away by hand this moment
	m, e, err := d.register.admit(joining{Secret: r.Secret, Name: request.Name(), Key: publicKey(request.Key()), LANs: r.LANs}, now)
	if err == nil {
		err = d.mayHaveJWT(m.Name, now)
	}
	if err == nil {
		err = d.save(*e)
	}
	if err != nil {
		return nil, err
	}
	w, err := d.grant(request, m)
	if err == nil {
		d.config.Log.Info("coordinator: a host has joined", "member", m.Name, "subnet", m.Subnet)
	}
	return w, err
}

// Renew grants another certificate to who has the key of a member.
func (d desk) Renew(_ context.Context, key collective.PublicKey, chain [][]byte, r enrol.RenewRequest) (*enrol.Welcome, error) {
	request, err := collective.ParseRequest([]byte(r.Request))
	if err != nil {
		return nil, enrol.Refuse(enrol.Malformed, "%v", err)
	}
	if request.Key() != key {
		return nil, enrol.Refuse(enrol.Malformed, "the request is for another key than that in the TLS handshake")
	}
	now := d.now()
	d.enrolling.Lock()
	defer d.enrolling.Unlock()
	if err := d.followAuthority(); err != nil { // who was revoked this moment gets no other certificate
		return nil, err
	}
	d.takeIssued()
	name := request.Name()
	if shown, err := d.config.Identity.Trust().Verify(chain, now); err == nil && shown.Name == name && shown.Key == key {
		if err := d.readmit(shown); err != nil {
			return nil, err
		}
	}
	m, e, err := d.register.renew(name, publicKey(key), r.LANs, now)
	switch {
	case err != nil:
		return nil, err
	case !d.renewals.may(name, now):
		refusal := enrol.Refuse(enrol.TooMany, "%s has renewed too often in a short time", name)
		refusal.After = int(renewalEvery / time.Second)
		return nil, refusal
	}
	if err := d.mayHaveJWT(name, now); err != nil {
		return nil, err
	}
	if err := d.save(*e); err != nil {
		return nil, err
	}
	d.renewals.spend(name, now)
	return d.grant(request, m)
}

// Trust is for everybody: it proves itself.
func (d desk) Trust(context.Context) (*enrol.TrustMessage, error) { return d.trust.Load(), nil }

// mayHaveJWT refuses who was cut because of a flood. The caller holds enrolling.
func (c *Coordinator) mayHaveJWT(name string, now time.Time) error {
	until, banned := c.banned[name]
	if !banned || now.After(until) {
		return nil
	}
	refusal := enrol.Refuse(enrol.TooMany, "%s has flooded its coordinators and was cut off until %s", name, stamp(until))
	refusal.After = int(until.Sub(now)/time.Second) + 1
	return refusal
}

// grant signs and puts together what makes a host a member. The caller holds enrolling.
func (c *Coordinator) grant(r *collective.SigningRequest, m *member) (*enrol.Welcome, error) {
	signed, err := c.ca.Sign(r, collective.Terms{Name: m.Name, Subnet: m.Subnet})
	if err != nil {
		return nil, err
	}
	jwt, err := c.authority.MemberJWT(m.Name, ed25519.PublicKey(signed.Member.Key[:]), signed.Member.NotAfter)
	if err != nil {
		return nil, err
	}
	return &enrol.Welcome{
		Chain: string(signed.Chain), TrustMessage: *c.trust.Load(), BusJWT: jwt, BusServers: c.busServers(), Coordinators: c.coordinators(),
	}, nil
}

func (c *Coordinator) authorityName() string {
	c.enrolling.Lock()
	defer c.enrolling.Unlock()
	return c.ca.Name()
}

// allowances bound how often members may do something: at once so many, then one each time.
type allowances struct {
	burst int
	every time.Duration
	spent map[string]spending
}

type spending struct {
	times float64
	at    time.Time
}

func newAllowances(burst int, every time.Duration) *allowances {
	return &allowances{burst: burst, every: every, spent: map[string]spending{}}
}

// may says whether a member may do it once more now.
func (a *allowances) may(name string, now time.Time) bool {
	return a.recent(name, now) <= float64(a.burst)-1
}

// spend takes note that it has done it.
func (a *allowances) spend(name string, now time.Time) {
	a.spent[name] = spending{a.recent(name, now) + 1, now}
}

// recent is how often it did so, less what time has made good.
func (a *allowances) recent(name string, now time.Time) float64 {
	s := a.spent[name]
	return max(0, s.times-max(0, now.Sub(s.at).Seconds()/a.every.Seconds()))
}

// sweep forgets who may do all of it again.
func (a *allowances) sweep(now time.Time) {
	for name := range a.spent {
		if a.recent(name, now) == 0 {
			delete(a.spent, name)
		}
	}
}
