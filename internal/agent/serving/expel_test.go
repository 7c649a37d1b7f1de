package serving

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/session"
)

type expulsions struct {
	*expeller
	hurry    chan struct{}
	revoked  []string // serials
	failing  bool
	expelled []string
}

func newExpulsions() *expulsions {
	x := &expulsions{hurry: make(chan struct{}, 1)}
	x.expeller = newExpeller(
		func(m collective.Member) error {
			if slices.Contains(x.revoked, m.Serial) {
				return &collective.RevokedError{Name: m.Name, Serial: m.Serial}
			}
			return collective.ErrExpired // which is no reason: what expired members have here ends by itself
		},
		func(name string) error {
			if x.failing {
				return errors.New("the table is locked")
			}
			x.expelled = append(x.expelled, name)
			return nil
		},
		x.hurry, slog.New(slog.DiscardHandler))
	return x
}

func (x *expulsions) want(t *testing.T, names ...string) {
	t.Helper()
	if !slices.Equal(x.expelled, names) {
		t.Errorf("expelled %q, want %q", x.expelled, names)
	}
	x.expelled = nil
}

func TestExpelWithAndWithoutSession(t *testing.T) {
	x := newExpulsions()
	x.seen(collective.Member{Name: "alice", Serial: "a1"})
	x.seen(collective.Member{Name: "bob", Serial: "b1"})
	x.judgeAll()
	x.want(t)

	x.revoked = []string{"a1"}
	x.judgeAll()
	x.want(t, "alice")
	x.judgeAll()
	x.want(t)
	// Until its session was ended, it may have been granted something again.
	x.sessionDown(session.Peer{Name: "alice", Serial: "a1"})
	x.want(t, "alice")
	x.sessionDown(session.Peer{Name: "bob", Serial: "b1"})
	x.want(t)
}

func TestExpelSparesReplacedCertificates(t *testing.T) {
	x := newExpulsions()
	x.seen(collective.Member{Name: "alice", Serial: "a1"})
	x.seen(collective.Member{Name: "alice", Serial: "a2"})
	x.revoked = []string{"a1"}
	x.judgeAll()
	x.sessionDown(session.Peer{Name: "alice", Serial: "a1"})
	x.want(t)
	x.revoked = []string{"a1", "a2"}
	x.judgeAll()
	x.want(t, "alice")
}

func TestExpelTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExpulsions()
		x.seen(collective.Member{Name: "alice", Serial: "a1"})
		x.failing = true
		refreshed := 0
		lists := &collective.Trust{}
		enforced := make(chan *collective.Trust, 4)
		ctx, stop := context.WithCancel(t.Context())
		go x.run(ctx, func() {
			refreshed++
			x.revoked = []string{"a1"}
			x.failing = refreshed < 3
		}, func() *collective.Trust { return lists }, func(l *collective.Trust) { enforced <- l })
		time.Sleep(2*expelEvery - time.Millisecond)
		synctest.Wait()
		if len(enforced) > 0 {
			t.Error("it is said to be enforced, and alice has what it had")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		x.want(t, "alice")
		if refreshed != 3 || len(enforced) != 1 || <-enforced != lists {
			t.Errorf("the revocation list was read %d times, want 3; or what is enforced was not told once", refreshed)
		}
		// Other lists are looked at when they come, and told once.
		lists = &collective.Trust{}
		x.hurry <- struct{}{}
		time.Sleep(expelEvery - 2*time.Millisecond)
		synctest.Wait()
		if refreshed != 4 || len(enforced) != 1 || <-enforced != lists {
			t.Errorf("read %d times, want 4; or what is enforced was not told once", refreshed)
		}
		stop()
		synctest.Wait()
	})
}
