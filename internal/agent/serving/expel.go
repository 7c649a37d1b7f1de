package serving

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/session"
)

// expelEvery limits the time until a revocation ends the grants of a member without a session. Package session ends sessions
// equally fast.
const expelEvery = 2 * time.Second

// expeller ends the mappings and connections of revoked members, which outlive their sessions.
type expeller struct {
	check  func(collective.Member) error
	expel  func(name string) error
	hurry  <-chan struct{} // new roots or lists were received; nil: they come only in files
	log    *slog.Logger
	mu     sync.Mutex
	latest map[string]collective.Member // by name, with the last used certificate
}

func newExpeller(check func(collective.Member) error, expel func(string) error, hurry <-chan struct{}, log *slog.Logger) *expeller {
	return &expeller{check: check, expel: expel, hurry: hurry, log: log, latest: make(map[string]collective.Member)}
}

// seen records the certificate that a member now uses. Earlier ones do not matter: a certificate that is replaced is also
// revoked.
func (e *expeller) seen(m collective.Member) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.latest[m.Name] = m
}

// sessionDown is called after the session's last grant, so that no grant is missed.
func (e *expeller) sessionDown(p session.Peer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	// If judgeAll has already expelled the member, the member may have got another grant afterwards.
	latest, known := e.latest[p.Name]
	if !known || latest.Serial == p.Serial {
		e.judge(memberOf(p))
	}
}

// judgeAll expels all revoked members, and reports whether all their leases and connections have ended.
func (e *expeller) judgeAll() (clean bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	clean = true
	for _, m := range e.latest {
		clean = e.judge(m) && clean
	}
	return clean
}

// judge expels a member if its certificate is revoked, or was signed under a retired root. It returns
// false if expelling failed. The caller holds the lock.
func (e *expeller) judge(m collective.Member) bool {
	var revoked *collective.RevokedError
	err := e.check(m)
	if !errors.As(err, &revoked) && !errors.Is(err, collective.ErrOtherCA) {
		return true
	}
	if err := e.expel(m.Name); err != nil {
		e.log.Error("a revoked member's leases and connections could not be ended; trying again", "member", m.Name, "err", err)
		return false // the next round tries again
	}
	delete(e.latest, m.Name)
	return true
}

// memberOf returns the member of a session, with enough of its certificate to check for revocation.
func memberOf(p session.Peer) collective.Member {
	return collective.Member{Name: p.Name, Serial: p.Serial, Issuer: p.Issuer}
}

// run expels revoked members until ctx ends. sweep reads a new revocation list and ends the sessions of revoked members.
// enforced is called with each new trust once no revoked member has a lease or connection left here.
func (e *expeller) run(ctx context.Context, sweep func(), trust func() *collective.Trust, enforced func(*collective.Trust)) {
	tick := time.NewTicker(expelEvery)
	defer tick.Stop()
	var last *collective.Trust
	for {
		believed := trust() // read before the round; later changes belong to the next one
		sweep()
		if e.judgeAll() && believed != last {
			last = believed
			enforced(believed)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-e.hurry:
		}
	}
}
