package chart

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
)

// scale returns the range of an axis with a little room at both ends.
func scale(values []float64, logarithmic bool) (low, high float64, n plot.Normalizer, err error) {
	low, high = slices.Min(values), slices.Max(values)
	if logarithmic {
		if low <= 0 {
			return 0, 0, nil, errors.New("a value on a logarithmic axis is not above 0")
		}
		room := math.Pow(high/low, 0.05)
		if high == low {
			room = 1.5
		}
		return low / room, high * room, plot.LogScale{}, nil
	}
	room := (high - low) * 0.06
	if high == low {
		room = max(math.Abs(high)*0.1, 1e-9)
	}
	return low - room, high + room, plot.LinearScale{}, nil
}

// decades puts ticks at 1, 2 and 5 of every power of ten; over a wide range at
// 1 only, and over one that has fewer than two of them at even distances.
type decades struct{}

// Ticks implements plot.Ticker.
func (decades) Ticks(low, high float64) []plot.Tick {
	steps := []float64{1, 2, 5}
	if high/low > 2000 {
		steps = steps[:1]
	}
	var ticks []plot.Tick
	for power := math.Floor(math.Log10(low)); power <= math.Log10(high); power++ {
		for _, step := range steps {
			if v := step * math.Pow(10, power); v >= low && v <= high {
				ticks = append(ticks, plot.Tick{Value: v, Label: formatTick(v)})
			}
		}
	}
	if len(ticks) < 2 {
		return evenTicks{4}.Ticks(low, high)
	}
	return ticks
}

func formatTick(v float64) string {
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// evenTicks puts about n labelled ticks at round numbers.
type evenTicks struct{ n int }

// Ticks implements plot.Ticker.
func (e evenTicks) Ticks(low, high float64) []plot.Tick {
	raw := (high - low) / float64(e.n)
	if raw <= 0 || math.IsInf(raw, 0) || math.IsNaN(raw) {
		return nil
	}
	scale := math.Pow(10, math.Floor(math.Log10(raw)))
	step := scale * 10
	for _, m := range []float64{1, 2, 5} {
		if m*scale >= raw {
			step = m * scale
			break
		}
	}
	decimals := max(0, -int(math.Floor(math.Log10(step)+1e-9)))
	var ticks []plot.Tick
	for i := math.Ceil(low/step-1e-9) + 0; /* not -0 */ i*step <= high+step*1e-9; i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: fmt.Sprintf("%.*f", decimals, i*step)})
	}
	return ticks
}
