package bench

import (
	"context"
	"fmt"
	"math"

	"github.com/detour-collective/dcol/lab/bench/linkcheck"
	"github.com/detour-collective/dcol/lab/stats"
	"github.com/detour-collective/dcol/lab/testbed"
)

// emulator compares the emulated link with its parameters.
func emulator(ctx context.Context, o Options) ([]Measurement, error) {
	report, err := linkcheck.Measure(ctx, testbed.BackendEmulator, 1, o.Log)
	return emulatorFigures(report), err
}

// emulatorFigures returns a report as figures. Each summarizes many packets but is measured once, so it has no spread.
func emulatorFigures(r linkcheck.Report) []Measurement {
	var found []Measurement
	for _, x := range r.RTT {
		m := once(fmt.Sprintf("wire: RTT error at %v one way, 99th percentile", x.Asked.Delay), "ms", stats.Milliseconds(x.P99))
		m.Note = fmt.Sprintf("of %d packets, %d lost; median %v, most %v; by its own clock the emulator was late by %v at the 99th percentile, %v at most",
			x.Probes, x.Lost, x.P50, x.Max, x.Lateness.P99, x.Lateness.Max)
		found = append(found, m.target("<= 0.5 ms", x.P99 <= linkcheck.MaxRTTError && x.Lost == 0))
	}
	for _, x := range r.Rate {
		m := once(fmt.Sprintf("wire: rate at %d Mbit/s", x.Asked/1e6), "Mbit/s", x.Measured/1e6).against(float64(x.Asked) / 1e6)
		found = append(found, m.target("ratio 0.99 to 1.01", math.Abs(x.Error) <= linkcheck.MaxRateError))
	}
	for _, x := range r.Loss {
		m := once(fmt.Sprintf("wire: loss at %d Mbit/s, from what is expected", x.Rate/1e6), "sigma", math.Abs(x.Sigmas))
		m.Note = fmt.Sprintf("%d of %d packets lost where %.3g was asked", x.Lost, x.Packets, x.Asked)
		found = append(found, m.target("<= 3 sigma", math.Abs(x.Sigmas) <= linkcheck.MaxLossSigma))
	}
	if r.Highest.Unlimited == 0 {
		return found // it was not reached
	}
	exact := once("wire: highest rate kept within 1 %", "Mbit/s", float64(r.Highest.Exact)/1e6)
	exact.Note = "TCP, in steps of a tenth of what it reaches without a rate; scheduling " + r.Scheduling
	return append(found, exact,
		once("wire: TCP without a rate", "Mbit/s", r.Highest.Unlimited/1e6),
		once("wire: packets of 100 bytes without a rate", "packets/s", r.Highest.PacketsPerSecond))
}
