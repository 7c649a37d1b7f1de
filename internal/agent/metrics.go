package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"

	"github.com/detour-collective/dcol/internal/metrics"
)

// metricsRole returns the endpoint for Prometheus. Like a role, it waits while another program has its port.
func metricsRole(listen string, a *running, log *slog.Logger) *role {
	var up atomic.Bool
	start := func(ctx context.Context) (func(context.Context) error, error) {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
		if err != nil {
			return nil, fmt.Errorf("[metrics] listen: %w", err)
		}
		up.Store(true)
		return func(ctx context.Context) error {
			defer up.Store(false)
			return metrics.Serve(ctx, l, a.Status, log)
		}, nil
	}
	return &role{name: "metrics", log: log, start: start, isUp: up.Load}
}
