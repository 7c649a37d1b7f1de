package bench

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
)

// Each thing is measured as often as asked, whichever network does it.
func TestAbreast(t *testing.T) {
	networks := []*network{{}, {}, {}}
	values, err := abreast(networks, 5, 4, func(_ *network, i int) (float64, error) { return float64(i), nil })
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range values {
		if want := slices.Repeat([]float64{float64(i)}, 5); !slices.Equal(v, want) {
			t.Errorf("thing %d has %v, want %v", i, v, want)
		}
	}
}

// After an error, nothing else begins.
func TestAbreastFails(t *testing.T) {
	failure := errors.New("no such thing")
	var begun atomic.Int64
	_, err := abreast([]*network{{}, {}}, 100, 4, func(*network, int) (float64, error) {
		begun.Add(1)
		return 0, failure
	})
	if !errors.Is(err, failure) || begun.Load() > 2 {
		t.Errorf("%d began; error %v", begun.Load(), err)
	}
}
