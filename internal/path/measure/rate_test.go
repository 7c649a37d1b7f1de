package measure_test

import (
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// Rates are taken over the time since the last round, or since the one before
// when the last is too fresh; a subflow that came later has what it has.
func TestRates(t *testing.T) {
	start := time.Now()
	var m measure.Rates[string]
	round := func(at time.Time, bytes map[string]uint64) {
		m.Begin(at)
		for name, n := range bytes {
			m.Take(name, n, 2*n)
		}
		m.End()
	}
	round(start, map[string]uint64{"a": 1000})
	second := start.Add(time.Second)
	round(second, map[string]uint64{"a": 2000, "b": 500})
	for _, c := range []struct {
		name  string
		bytes uint64
		after time.Duration // since the second round
		want  float64       // received, bit/s
	}{
		{"a", 4000, time.Second, 16000},
		{"a", 4000, 200 * time.Millisecond, 20000}, // 3000 bytes in 1.2 s
		{"b", 1000, time.Second, 4000},
		{"b", 600, 100 * time.Millisecond, 8000},
		{"b", 600, 0, 0},
		{"c", 600, time.Second, 0},
	} {
		send, receive := m.Of(c.name, c.bytes, 2*c.bytes, second.Add(c.after))
		if receive != c.want || send != 2*c.want {
			t.Errorf("%s, %d bytes %v later: %v and %v bit/s, want %v and twice that", c.name, c.bytes, c.after, receive, send, c.want)
		}
	}
	round(second.Add(time.Second), map[string]uint64{"b": 600})
	if m.Len() != 1 {
		t.Errorf("%d readings are left of one subflow", m.Len())
	}
}
