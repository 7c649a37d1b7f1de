// Package stats computes the statistics that the lab reports. stats.go summarizes samples, bootstrap.go computes confidence
// intervals, and fairness.go fairness and fair shares. Expectations, tables and plots all use it, so that they agree about
// medians.
package stats

import (
	"math"
	"slices"
	"time"
)

// Summary describes a sample. If the sample is empty, all fields but N are NaN.
type Summary struct {
	N                        int
	Mean, SD                 float64
	Min, Q1, Median, Q3, Max float64
	WhiskerLow, WhiskerHigh  float64
	Outliers                 []float64 // beyond the whiskers, ascending
}

// Summarize computes a Summary. Whiskers reach to the furthest values within 1.5 interquartile ranges of the box
// (Tukey).
func Summarize(sample []float64) Summary {
	nan := math.NaN()
	if len(sample) == 0 {
		return Summary{Mean: nan, SD: nan, Min: nan, Q1: nan, Median: nan, Q3: nan, Max: nan, WhiskerLow: nan, WhiskerHigh: nan}
	}
	v := slices.Sorted(slices.Values(sample))
	s := Summary{
		N: len(v), Mean: Mean(v), SD: SD(v),
		Min: v[0], Q1: quantile(v, 0.25), Median: quantile(v, 0.5), Q3: quantile(v, 0.75), Max: v[len(v)-1],
	}
	reach := 1.5 * (s.Q3 - s.Q1)
	s.WhiskerLow, s.WhiskerHigh = s.Q1, s.Q3
	for _, x := range v {
		switch {
		case x < s.Q1-reach || x > s.Q3+reach:
			s.Outliers = append(s.Outliers, x)
		default:
			s.WhiskerLow, s.WhiskerHigh = min(s.WhiskerLow, x), max(s.WhiskerHigh, x)
		}
	}
	return s
}

// Mean returns the arithmetic mean.
func Mean(sample []float64) float64 {
	sum := 0.0
	for _, x := range sample {
		sum += x
	}
	return sum / float64(len(sample))
}

// SD returns the standard deviation of the population that the sample is from (n-1). For a single value it
// returns 0.
func SD(sample []float64) float64 {
	if len(sample) == 1 {
		return 0
	}
	mean, sum := Mean(sample), 0.0
	for _, x := range sample {
		sum += (x - mean) * (x - mean)
	}
	return math.Sqrt(sum / float64(len(sample)-1))
}

// Quantile returns the q-th quantile, 0..1, interpolated linearly between order statistics (Hyndman and Fan's type 7,
// the default of R and NumPy).
func Quantile(sample []float64, q float64) float64 {
	if len(sample) == 0 {
		return math.NaN()
	}
	sorted := slices.Clone(sample)
	slices.Sort(sorted)
	return quantile(sorted, q)
}

// Median returns the middle of the sample.
func Median(sample []float64) float64 { return Quantile(sample, 0.5) }

func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	below := int(math.Floor(at))
	if below+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[below] + (at-float64(below))*(sorted[below+1]-sorted[below])
}

// Milliseconds returns a time in milliseconds.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
