package bench

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
)

// closing counts how often it is closed.
type closing struct{ closed *int }

func (c closing) Close() error {
	*c.closed++
	return nil
}

// Each thing is measured as often as asked, whichever network does it, and all networks are closed.
func TestAbreast(t *testing.T) {
	closed := 0
	open := func() (closing, error) { return closing{&closed}, nil }
	values, err := abreast(3, open, 5, 4, func(_ closing, i int) (float64, error) { return float64(i), nil })
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range values {
		if want := slices.Repeat([]float64{float64(i)}, 5); !slices.Equal(v, want) {
			t.Errorf("thing %d has %v, want %v", i, v, want)
		}
	}
	if closed != 3 {
		t.Errorf("%d of 3 networks are closed", closed)
	}
}

// After an error, nothing else begins. If a network cannot be opened, the others are closed.
func TestAbreastFails(t *testing.T) {
	failure := errors.New("no such thing")
	var begun atomic.Int64
	closed := 0
	open := func() (closing, error) { return closing{&closed}, nil }
	_, err := abreast(2, open, 100, 4, func(closing, int) (float64, error) {
		begun.Add(1)
		return 0, failure
	})
	if !errors.Is(err, failure) || begun.Load() > 2 || closed != 2 {
		t.Errorf("%d began, and %d networks are closed; error %v", begun.Load(), closed, err)
	}
	opened := 0
	closed = 0
	_, err = abreast(3, func() (closing, error) {
		if opened++; opened == 3 {
			return closing{}, failure
		}
		return open()
	}, 1, 1, func(closing, int) (float64, error) { return 0, nil })
	if !errors.Is(err, failure) || closed != 2 {
		t.Errorf("%d of 2 networks are closed; error %v", closed, err)
	}
}
