package report

import (
	"math"
	"slices"
)

// Histogram counts values on a logarithmic scale, so that its memory does not grow with the capture. Quantiles are
// exact to 2 %.
type Histogram struct {
	counts   map[int]uint64
	n        uint64
	zero     uint64 // values of 0 and less
	min, max float64
	sum      float64
}

// steps is the number of buckets for each factor of two.
const steps = 32

// Add counts a value.
func (h *Histogram) Add(v float64) {
	if h.n == 0 || v < h.min {
		h.min = v
	}
	if h.n == 0 || v > h.max {
		h.max = v
	}
	h.n++
	h.sum += v
	if v <= 0 {
		h.zero++
		return
	}
	if h.counts == nil {
		h.counts = map[int]uint64{}
	}
	h.counts[int(math.Floor(math.Log2(v)*steps))]++
}

func (h *Histogram) merge(o *Histogram) {
	if o.n == 0 {
		return
	}
	if h.n == 0 {
		h.min, h.max = o.min, o.max
	}
	h.min, h.max = min(h.min, o.min), max(h.max, o.max)
	h.n += o.n
	h.zero += o.zero
	h.sum += o.sum
	if h.counts == nil {
		h.counts = map[int]uint64{}
	}
	for bucket, n := range o.counts {
		h.counts[bucket] += n
	}
}

// Point of a distribution: the share of values up to Value.
type Point struct {
	Value float64 `json:"value"`
	Share float64 `json:"share"`
}

// Points returns the distribution.
func (h *Histogram) Points() (points []Point) {
	if h.n == 0 {
		return nil
	}
	buckets := make([]int, 0, len(h.counts))
	for b := range h.counts {
		buckets = append(buckets, b)
	}
	slices.Sort(buckets)
	below := h.zero
	if below > 0 {
		points = append(points, Point{min(0, h.min), float64(below) / float64(h.n)})
	}
	for _, b := range buckets {
		below += h.counts[b]
		points = append(points, Point{h.middle(b), float64(below) / float64(h.n)})
	}
	return points
}

func (h *Histogram) middle(bucket int) float64 {
	return max(h.min, min(h.max, math.Exp2((float64(bucket)+0.5)/steps)))
}

// Quantile returns the value below which a share of all is.
func (h *Histogram) Quantile(share float64) float64 {
	for _, p := range h.Points() {
		if p.Share >= share {
			return p.Value
		}
	}
	return h.max
}

// Quantiles describes a distribution.
type Quantiles struct {
	Count uint64  `json:"count"`
	Min   float64 `json:"min"`
	P10   float64 `json:"p10"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
	Mean  float64 `json:"mean"`
}

// Quantiles returns nil if there are no values.
func (h *Histogram) Quantiles() *Quantiles {
	if h.n == 0 {
		return nil
	}
	return &Quantiles{
		Count: h.n, Min: h.min, P10: h.Quantile(0.1), P50: h.Quantile(0.5), P90: h.Quantile(0.9), P99: h.Quantile(0.99),
		Max: h.max, Mean: h.sum / float64(h.n),
	}
}
