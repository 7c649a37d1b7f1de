package measure_test

import (
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

func TestAnswers(t *testing.T) {
	var a measure.Answers
	for i, c := range []struct {
		took, least time.Duration
		known       bool
	}{
		{50 * ms, 0, false}, {20 * ms, 0, false}, {30 * ms, 0, false}, {40 * ms, 20 * ms, true}, {60 * ms, 20 * ms, true}, {60 * ms, 20 * ms, true},
		{60 * ms, 20 * ms, true}, {60 * ms, 20 * ms, true}, {60 * ms, 20 * ms, true}, {60 * ms, 30 * ms, true}, // the last eight
	} {
		a.Take(time.Time{}, c.took)
		if least, known := a.Least(); least != c.least || known != c.known {
			t.Errorf("after %d exchanges: %v, %v", i+1, least, known)
		}
	}
}
