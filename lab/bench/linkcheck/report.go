package linkcheck

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/detour-collective/dcol/lab/emulink"
)

// What a link must do to be trusted with an experiment.
const (
	MaxRTTError  = 500 * time.Microsecond // at the 99th percentile
	MaxRateError = 0.01
	MaxLossSigma = 3.0
)

// Report is a whole validation.
type Report struct {
	Scheduling string
	RTT        []RTT
	Rate       []Rate
	Loss       []Loss
	Highest    Highest
}

// Measure validates a backend of testbed in about a minute and a half. The machine should be idle.
func Measure(ctx context.Context, backend string, seed uint64, log *slog.Logger) (r Report, err error) {
	bench, err := Open(ctx, backend, seed, log)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, bench.Close()) }()
	r.Scheduling = bench.Scheduling()

	const (
		probes   = 2000
		interval = 5 * time.Millisecond
		duration = 5 * time.Second
		loss     = 0.01
	)
	for _, delay := range []time.Duration{0, 5 * time.Millisecond, 50 * time.Millisecond} {
		rtt, err := bench.RTT(ctx, emulink.Params{Rate: 100e6, Delay: delay}, probes, interval)
		if err != nil {
			return r, fmt.Errorf("delay %v: %w", delay, err)
		}
		r.RTT = append(r.RTT, rtt)
	}
	for _, bits := range []int64{10e6, 100e6} {
		rate, err := bench.Rate(ctx, bits, duration)
		if err != nil {
			return r, fmt.Errorf("rate %d bit/s: %w", bits, err)
		}
		r.Rate = append(r.Rate, rate)
		lost, err := bench.Loss(ctx, loss, bits, duration)
		if err != nil {
			return r, fmt.Errorf("loss %v at %d bit/s: %w", loss, bits, err)
		}
		r.Loss = append(r.Loss, lost)
	}
	r.Highest, err = bench.Highest(ctx, duration/2)
	return r, err
}
