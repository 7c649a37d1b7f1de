package measure_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// A queue, losses that explain the rate, or the kernel's report show that the network limits a subflow. Pauses of a
// program or losses that allow much more do not.
func TestPress(t *testing.T) {
	const ms, rate = time.Millisecond, 8e6
	random := rand.New(rand.NewPCG(4, 4))
	base := measure.Flowing{Received: 100_000, Base: 40 * ms, Trip: 40 * ms}
	with := func(change func(*measure.Flowing)) func() measure.Flowing {
		return func() measure.Flowing {
			f := base
			change(&f)
			return f
		}
	}
	for name, c := range map[string]struct {
		flows func() measure.Flowing
		loss  float64
		want  bool
	}{
		"no sign":                {with(func(*measure.Flowing) {}), 0, false},
		"a queue":                {with(func(f *measure.Flowing) { f.Trip, f.Heard = 90*ms, 2*ms }), 0, true},
		"a queue of 8 ms":        {with(func(f *measure.Flowing) { f.Trip = 48 * ms }), 0, false},
		"a program's pauses":     {with(func(f *measure.Flowing) { f.Heard = time.Duration(random.Float64() * float64(40*ms)); f.Trip = 80 * ms }), 0, false},
		"losses that explain it": {with(func(*measure.Flowing) {}), 0.001, true},
		"losses that do not":     {with(func(*measure.Flowing) {}), 0.0001, false},
		"sends, limited":         {with(func(f *measure.Flowing) { f.Received, f.Acked, f.Limited = 0, 100_000, true }), 0, true},
		"sends, by its program":  {with(func(f *measure.Flowing) { f.Received, f.Acked, f.Trip = 0, 100_000, 90*ms }), 0.01, false},
		"nothing arrives":        {with(func(f *measure.Flowing) { f.Received, f.Trip = 0, 90*ms }), 0, false},
	} {
		var p measure.Press
		now := time.Unix(1_800_000_000, 0)
		for range 40 {
			now = now.Add(100 * ms)
			p.Take(now, c.flows())
		}
		if got := p.Limits(now, rate, c.loss, base.Trip); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if p.Limits(now.Add(time.Minute), rate, 0, base.Trip) {
			t.Errorf("%s: a minute later it still counts", name)
		}
	}
}

// A stream whose packets come every 20 ms has a long round trip as its receiver measures it. That is no queue, whenever the
// sample is taken.
func TestSurelyQueued(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		f    measure.Flowing
		want bool
	}{
		"a stream":                   {measure.Flowing{Received: 6250, Base: 40 * ms, Trip: 65 * ms, Gap: 20 * ms}, false},
		"a download":                 {measure.Flowing{Received: 100_000, Base: 40 * ms, Trip: 65 * ms, Gap: ms}, true},
		"a download, 500 kbit/s":     {measure.Flowing{Received: 6250, Base: 40 * ms, Trip: 200 * ms, Gap: 22 * ms}, true},
		"a download without a queue": {measure.Flowing{Received: 100_000, Base: 40 * ms, Trip: 41 * ms, Gap: ms}, false},
	} {
		if got := c.f.SurelyQueued(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
