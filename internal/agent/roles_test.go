package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/detour-collective/dcol/internal/config"
)

// A role whose port is taken is started again until the port is free. That is logged once, and shown as long as
// it is so.
func TestRoleWaitsForItsPort(t *testing.T) {
	other, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, taken := net.ListenUDP("udp", other.LocalAddr().(*net.UDPAddr))
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		starts := make(chan time.Duration, 100)
		began := time.Now()
		var up, free atomic.Bool
		r := &role{
			name: config.RoleWaypoint, log: slog.New(slog.NewTextHandler(&log, nil)), isUp: up.Load,
			start: func(context.Context) (func(context.Context) error, error) {
				starts <- time.Since(began)
				if !free.Load() {
					return nil, fmt.Errorf("listen: %w", taken)
				}
				up.Store(true)
				return func(ctx context.Context) error { <-ctx.Done(); return nil }, nil
			},
		}
		ctx, stop := context.WithCancel(t.Context())
		group, ctx := errgroup.WithContext(ctx)
		if err := r.begin(ctx, group); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		waiting := r.waiting()
		if waiting == nil || waiting.Port != other.LocalAddr().(*net.UDPAddr).Port || waiting.Holder == nil || waiting.Holder.PID != os.Getpid() {
			t.Errorf("the port is told as %+v", waiting)
		}
		n, first, second := len(starts), <-starts, <-starts
		if n < int(time.Minute/retryMost) || n > 25 || first != 0 || second != retryFirst {
			t.Errorf("started %d times, at %v and %v first", n, first, second)
		}
		free.Store(true)
		time.Sleep(retryMost)
		synctest.Wait()
		if !up.Load() || r.waiting() != nil {
			t.Errorf("up is %v, and it waits for %+v", up.Load(), r.waiting())
		}
		stop()
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "waits for its port"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, &log)
		}
	})
}

// Any other fault of a start ends the agent.
func TestRoleThatCannotStart(t *testing.T) {
	broken := errors.New("no such device")
	r := &role{log: slog.New(slog.DiscardHandler), start: func(context.Context) (func(context.Context) error, error) { return nil, broken }}
	if err := r.begin(t.Context(), &errgroup.Group{}); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	r.start = func(context.Context) (func(context.Context) error, error) {
		return func(context.Context) error { return broken }, nil
	}
	var group errgroup.Group
	if err := errors.Join(r.begin(t.Context(), &group), group.Wait()); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}
