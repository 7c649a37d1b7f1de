package client

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/path"
)

// idleKernel has nothing to tell, and notes when it was asked.
type idleKernel struct {
	mptcp.Kernel
	sampled []time.Time
}

func (k *idleKernel) Connections() ([]mptcp.Connection, error) { return nil, nil }
func (k *idleKernel) ChecksumErrors() (uint64, error)          { return 0, nil }
func (k *idleKernel) Subflows(func(*mptcp.Subflow) bool) error {
	k.sampled = append(k.sampled, time.Now())
	return nil
}

// The loop's clock is that of the moment when something happens, not of the one
// when it began to wait: an idle host is sampled as often as a busy one.
func TestLoopKeepsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := &idleKernel{}
		log := slog.New(slog.DiscardHandler)
		c := &Client{
			log: log, host: &host{kernel: kernel, pathManager: func() error { return nil }}, inbox: make(chan func(time.Time)),
			tunnels: emptyTunnels(log), sampler: sampler{kernel: kernel},
			manager: path.New(path.Config{Policy: path.DetourPolicy{Subflows: 2}}), book: detour.New(nil),
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.loop(ctx) }()

		time.Sleep(10*sampleEvery + sampleEvery/2)
		asked := time.Now()
		c.inbox <- func(now time.Time) {
			if late := asked.Sub(now); late != 0 {
				t.Errorf("the loop's clock is %v late", late)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := len(kernel.sampled); n != 10 {
			t.Errorf("subflows were sampled %d times in 10 rounds: %v", n, kernel.sampled)
		}
	})
}
