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

// expelEvery bounds the time until a revocation takes back what a member without a
// session has here. The session package is as quick to end sessions.
const expelEvery = 2 * time.Second

// expeller ends what revoked members have at the waypoint: mappings and
// connections outlive sessions, so it is not enough that those end.
type expeller struct {
	check  func(collective.Member) error
	expel  func(name string) error
	hurry  <-chan struct{} // other roots or lists have come; nil: they are only in files
	log    *slog.Logger
	mu     sync.Mutex
	latest map[string]collective.Member // by name: what is known of the certificate used last
}

func newExpeller(check func(collective.Member) error, expel func(string) error, hurry <-chan struct{}, log *slog.Logger) *expeller {
	return &expeller{check: check, expel: expel, hurry: hurry, log: log, latest: make(map[string]collective.Member)}
}

// seen records the certificate that a member now uses. Earlier ones no longer
// matter: whoever replaces a certificate has the old one revoked.
func (e *expeller) seen(m collective.Member) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.latest[m.Name] = m
}

// sessionDown is called after the session's last grant, so that none escapes.
func (e *expeller) sessionDown(p session.Peer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	// Expelled by judgeAll already, it may have been granted something since.
	latest, known := e.latest[p.Name]
	if !known || latest.Serial == p.Serial {
		e.judge(memberOf(p))
	}
}

// judgeAll expels whoever is revoked, and reports whether nobody who is has anything here.
func (e *expeller) judgeAll() (clean bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	clean = true
	for _, m := range e.latest {
		clean = e.judge(m) && clean
	}
	return clean
}

// judge expels a member whose certificate is revoked, or was signed under a root that the collective has
// given up. It reports false if the member is to be expelled, and could not be. The caller holds the lock.
func (e *expeller) judge(m collective.Member) bool {
	var revoked *collective.RevokedError
	err := e.check(m)
	if !errors.As(err, &revoked) && !errors.Is(err, collective.ErrOtherCA) {
		return true
	}
	if err := e.expel(m.Name); err != nil {
		e.log.Error("a revoked member keeps what it has here", "member", m.Name, "err", err)
		return false // the next round tries again
	}
	delete(e.latest, m.Name)
	return true
}

// memberOf returns what a session knows of a member's certificate, enough to ask whether it is revoked.
func memberOf(p session.Peer) collective.Member {
	return collective.Member{Name: p.Name, Serial: p.Serial, Issuer: p.Issuer}
}

// run judges until ctx ends. Sweep reads a new revocation list and ends the sessions of those on it. Enforced is
// called with each new state of trust, once nobody whom it revokes has anything here.
func (e *expeller) run(ctx context.Context, sweep func(), trust func() *collective.Trust, enforced func(*collective.Trust)) {
	tick := time.NewTicker(expelEvery)
	defer tick.Stop()
	var last *collective.Trust
	for {
		believed := trust() // before the round: what comes during it is of the next
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
