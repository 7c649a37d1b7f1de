package membership

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/enrol"
)

// renewing is the loop's state of the certificate's renewal.
type renewing struct {
	renewal
	asking   bool
	err      error // why the last try failed
	renewed  time.Time
	expelled string // why this host was expelled
}

// renewDue requests a new certificate, JWT and list of servers: the JWT ends with the certificate, and the servers may
// have changed.
func (m *Membership) renewDue(ctx context.Context, now time.Time) time.Time {
	r, self := &m.renewing, m.config.Identity.Self()
	if r.asking {
		return time.Time{}
	}
	if at := r.at(self, m.config.Identity.Usable() == nil); now.Before(at) {
		return at
	}
	r.asking = true
	at := m.coordinators()
	m.begin(ctx, func() func(time.Time) {
		enrolment, err := m.renew(ctx, at)
		return func(now time.Time) { m.renewed(enrolment, err, now) }
	})
	return time.Time{}
}

// coordinators returns the coordinators to ask over HTTPS: those they have named last, then the configured ones.
func (m *Membership) coordinators() []enrol.Endpoint {
	list := slices.Clone(m.enrolment.Coordinators)
	for _, e := range m.config.Coordinators {
		if !slices.Contains(list, e) {
			list = append(list, e)
		}
	}
	return list
}

func (m *Membership) renew(ctx context.Context, at []enrol.Endpoint) (Enrolment, error) {
	w, err := enrol.Renew(ctx, m.config.Identity, at, m.config.LANs())
	if err != nil {
		return Enrolment{}, err
	}
	// Roots first: the certificate may be signed under a new one.
	if w.Whole() {
		if _, err := m.config.Identity.TakeTrust([]byte(w.Roots), []byte(w.Lists)); err != nil {
			return Enrolment{}, fmt.Errorf("renew the certificate: %w", err)
		}
	}
	if err := m.config.Identity.TakeCertificate([]byte(w.Chain)); err != nil {
		return Enrolment{}, fmt.Errorf("renew the certificate: %w", err)
	}
	return EnrolmentOf(*w), nil
}

func (m *Membership) renewed(e Enrolment, err error, now time.Time) {
	r, self := &m.renewing, m.config.Identity.Self()
	r.asking, r.err = false, err
	if err != nil {
		var after time.Duration
		if refusal, ok := errors.AsType[*enrol.Refusal](err); ok {
			after = time.Duration(refusal.After) * time.Second
			if refusal.Reason == enrol.Expelled {
				r.expelled = refusal.Why
				m.config.Identity.Disowned()
			}
		}
		r.failed(self, now, after, rand.Float64())
		m.log.Warn("membership: the certificate is not renewed, trying again", "err", err, "until", self.NotAfter, "next", r.notUntil)
		return
	}
	r.succeeded()
	r.renewed, r.expelled = now, ""
	m.log.Info("membership: the certificate is renewed", "until", self.NotAfter, "serial", self.Serial)
	m.enrolment = e
	m.useJWT(e.BusJWT)
	if m.fileErr = e.Save(m.config.Dir); m.fileErr != nil {
		m.log.Error("membership: what the coordinators sent is not saved", "err", m.fileErr)
	}
	m.keeper.TrustChanged()
	// The bus's connection has the old certificate and JWT, which end. If the servers have changed, the next step
	// makes a new line.
	if slices.Equal(m.link.to, m.busServers()) {
		m.reconnect()
	}
}

// useJWT takes a JWT for the bus, if it is well-formed.
func (m *Membership) useJWT(text string) {
	from, until, err := bus.Life(text)
	m.renewing.jwt = life{from, until}
	if m.renewing.needed = err != nil; err != nil {
		text = ""
	}
	m.jwt.Store(&text)
}
