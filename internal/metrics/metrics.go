// Package metrics serves the agent's status to Prometheus. It reads the same types of package api as all other views,
// so a scrape agrees with `dcol status`.
//
// No metric names a destination. The labels are waypoints that this host uses, parts of the relay and reasons from
// fixed lists, so the number of series is bounded.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/detour-collective/dcol/internal/api"
)

// Path is the URL path at which metrics are served.
const Path = "/metrics"

// scrapeLimit bounds the time of one scrape. Prometheus itself waits for ten seconds.
const scrapeLimit = 5 * time.Second

// Status returns the agent's status.
type Status func(context.Context) (api.Status, error)

// Handler returns a handler that answers scrapes.
func Handler(status Status, log *slog.Logger) http.Handler {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&agent{status: status}, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	scrapes := promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), MaxRequestsInFlight: 2, Timeout: 2 * scrapeLimit,
	})
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, scrapes)
	return mux
}

// Serve answers scrapes on l until ctx ends.
func Serve(ctx context.Context, l net.Listener, status Status, log *slog.Logger) error {
	srv := &http.Server{Handler: Handler(status, log), ReadHeaderTimeout: scrapeLimit, IdleTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the metrics: %w", err)
	}
	return nil
}

// agent is a prometheus.Collector. It makes its metrics from the status at the time of the scrape.
type agent struct{ status Status }

// Describe implements prometheus.Collector. It describes nothing, because the series depend on the roles.
func (a *agent) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (a *agent) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	s, err := a.status(ctx)
	if err != nil {
		out <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	w := writer{out}
	w.gauge("dcol_info", "The agent: 1.", 1, labels{{"member", s.Member}, {"version", s.Version}})
	w.gauge("dcol_start_time_seconds", "When the agent started, in Unix time.", unix(s.Since), nil)
	w.gauge("dcol_problems", "Problems that prevent the agent from working fully; dcol status has their text.", float64(len(s.Problems)), nil)
	if s.Client != nil {
		w.client(s.Client)
	}
	if s.Serving != nil {
		w.serving(s.Serving)
	}
	if s.Relay != nil {
		w.relay(s.Relay)
	}
	if s.Collective != nil {
		w.collective(s.Collective)
	}
	if s.Coordinator != nil {
		w.coordinator(s.Coordinator)
	}
}

// writer makes metrics.
type writer struct{ out chan<- prometheus.Metric }

type labels [][2]string

func (w writer) gauge(name, help string, value float64, with labels) {
	w.write(prometheus.GaugeValue, name, help, value, with)
}

func (w writer) counter(name, help string, value float64, with labels) {
	w.write(prometheus.CounterValue, name, help, value, with)
}

func (w writer) write(kind prometheus.ValueType, name, help string, value float64, with labels) {
	names, values := make([]string, len(with)), make([]string, len(with))
	for i, l := range with {
		names[i], values[i] = l[0], l[1]
	}
	w.out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, value, values...)
}

func unix(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
