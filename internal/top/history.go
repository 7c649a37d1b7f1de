package top

import (
	"math"
	"strings"
)

// samples is the number of rates remembered of each subflow, connection and waypoint.
const samples = 32

// history remembers the last rates of something, in bits per second. The zero value has none.
type history struct {
	rates [samples]float32
	n     int // number of rates added
}

func (h *history) add(bps float64) {
	h.rates[h.n%samples] = float32(bps)
	h.n++
}

// last returns the rate of age samples ago, or 0 if there is none.
func (h *history) last(age int) float64 {
	if h == nil || age >= min(h.n, samples) {
		return 0
	}
	return float64(h.rates[(h.n-1-age)%samples])
}

// mean returns the mean of the last rates, of at most count.
func (h *history) mean(count int) float64 {
	if h == nil || h.n == 0 {
		return 0
	}
	count = min(count, h.n, samples)
	sum := 0.0
	for i := range count {
		sum += h.last(i)
	}
	return sum / float64(count)
}

// quiet is the least rate for which a chart has its tallest bar. So the keepalives of an idle connection give low bars.
const quiet = 20_000

// spark draws the last rates as bars, the latest at the right. The highest rate shown has the tallest bar, if it is at
// least quiet.
func (h *history) spark(columns int, bars []rune) string {
	if columns <= 0 {
		return ""
	}
	top := float64(quiet)
	shown := min(columns, samples)
	for i := range shown {
		top = max(top, h.last(i))
	}
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", columns-shown))
	for i := shown - 1; i >= 0; i-- {
		r := h.last(i)
		if r <= 0 {
			b.WriteRune(' ')
			continue
		}
		level := int(math.Ceil(r / top * float64(len(bars))))
		b.WriteRune(bars[min(max(level, 1), len(bars))-1])
	}
	return b.String()
}
