package measure_test

import (
	"math"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

const tenth = 100 * time.Millisecond

func TestPeak(t *testing.T) {
	var p measure.Peak
	for range 4 {
		p.Take(tenth, 12_500)
	}
	if r := p.Rate(); r != 0 {
		t.Errorf("a peak of %.0f bit/s after four samples", r)
	}
	for range 6 {
		p.Take(tenth, 12_500)
	}
	if r := p.Rate(); math.Abs(r-1e6) > 1e4 {
		t.Errorf("a peak of %.0f bit/s, want 1 Mbit/s", r)
	}
	p.Take(tenth, 25_000) // what had waited for a lost packet
	if r := p.Rate(); r > 1.3e6 {
		t.Errorf("one sample makes a peak of %.0f bit/s", r)
	}
	for range 300 {
		p.Take(tenth, 1_250)
	}
	if r := p.Rate(); r > 0.2e6 {
		t.Errorf("a peak of %.0f bit/s half a minute later", r)
	}
}

func TestPauses(t *testing.T) {
	flowing := func() (p measure.Pauses) {
		for range 10 {
			p.Take(tenth, 12_500, false)
		}
		return p
	}
	for name, c := range map[string]struct {
		bytes       uint64
		gap, before bool
		least, most float64
	}{
		"a pause":             {0, false, false, 12_000, 12_500},
		"nearly a pause":      {1_500, false, false, 10_500, 11_000},
		"a lower rate":        {6_000, false, false, 0, 0},
		"a repair":            {0, true, false, 0, 0},
		"the end of a repair": {0, false, true, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := flowing()
			if c.before {
				p.Take(tenth, 0, true)
			}
			if missed := p.Take(tenth, c.bytes, c.gap); missed < c.least || missed > c.most {
				t.Errorf("missed %.0f bytes, want %.0f to %.0f", missed, c.least, c.most)
			}
		})
	}
	if p := (measure.Pauses{}); p.Take(tenth, 0, false) != 0 {
		t.Error("a subflow that never carried anything missed something")
	}
}
