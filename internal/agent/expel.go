package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/session"
)

// expelEvery is how late, at most, a revocation reaches what a member without a
// session has here. The session package is as quick to end sessions.
const expelEvery = 2 * time.Second

// expeller ends what revoked members have at the waypoint: mappings and
// connections outlive sessions, so it is not enough that those end.
type expeller struct {
	check  func(collective.Member) error
	expel  func(name string) error
	log    *slog.Logger
	mu     sync.Mutex
	latest map[string]string // by name: serial of the certificate used last
}

func newExpeller(check func(collective.Member) error, expel func(string) error, log *slog.Logger) *expeller {
	return &expeller{check: check, expel: expel, log: log, latest: make(map[string]string)}
}

// seen notes the certificate that a member now uses. Earlier ones no longer
// matter: whoever replaces a certificate has the old one revoked.
func (e *expeller) seen(name, serial string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.latest[name] = serial
}

// sessionDown comes after the session's last grant, so that none escapes.
func (e *expeller) sessionDown(p session.Peer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	// Expelled by judgeAll already, it may have been granted something since.
	latest, known := e.latest[p.Name]
	if !known || latest == p.Serial {
		e.judge(p.Name, p.Serial)
	}
}

func (e *expeller) judgeAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, serial := range e.latest {
		e.judge(name, serial)
	}
}

// judge expels a member whose certificate is revoked. The caller has the lock.
func (e *expeller) judge(name, serial string) {
	var revoked *collective.RevokedError
	err := e.check(collective.Member{Name: name, Serial: serial})
	if !errors.As(err, &revoked) {
		return
	}
	if err := e.expel(name); err != nil {
		e.log.Error("a revoked member keeps what it has here", "member", name, "err", err)
		return // the next round tries again
	}
	delete(e.latest, name)
}

// run judges until ctx ends; refresh reads a new revocation list.
func (e *expeller) run(ctx context.Context, refresh func()) {
	tick := time.NewTicker(expelEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			refresh()
			e.judgeAll()
		}
	}
}
