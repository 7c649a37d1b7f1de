package stats

import "math/rand/v2"

// Interval is a confidence interval.
type Interval struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// confidence is that of intervals.
const confidence = 0.95

// resamples is the number of samples that a bootstrap draws. The ends of a 95 % interval are then the 50th values from both
// ends, which repeat to about a tenth of the interval's width.
const resamples = 2000

// BootstrapRatio returns the 95 % confidence interval of the ratio of a statistic of a to that of b, by the
// percentile bootstrap (Efron and Tibshirani, 1993, chapter 13). Values that are not independent of each other, such
// as the latencies of messages that waited for the same lost packet, belong into one block: whole blocks are drawn,
// with replacement. The same input gives the same interval. Without a block in one of the two, the ends are NaN.
func BootstrapRatio(a, b [][]float64, statistic func([]float64) float64) Interval {
	const seed = 1
	random := rand.New(rand.NewPCG(seed, seed))
	ratios := make([]float64, resamples)
	var drawn []float64
	draw := func(blocks [][]float64) float64 {
		drawn = drawn[:0]
		for range blocks {
			drawn = append(drawn, blocks[random.IntN(len(blocks))]...)
		}
		return statistic(drawn)
	}
	for i := range ratios {
		ratios[i] = draw(a) / draw(b)
	}
	return interval(ratios)
}

// Blocks cuts a sequence into blocks of size values. The last block may be shorter.
func Blocks(sequence []float64, size int) (blocks [][]float64) {
	for len(sequence) > 0 {
		n := min(size, len(sequence))
		blocks = append(blocks, sequence[:n])
		sequence = sequence[n:]
	}
	return blocks
}

// PairedInterval returns the 95 % confidence interval of a comparison of two samples, by the percentile bootstrap.
// Values with the same index are a pair: they were measured together, so that a disturbance affects both. Pairs are
// drawn with replacement. The same input gives the same interval.
func PairedInterval(a, b []float64, compare func(a, b []float64) float64) Interval {
	random := rand.New(rand.NewPCG(1, uint64(len(a))))
	drawnA, drawnB := make([]float64, len(a)), make([]float64, len(a))
	results := make([]float64, resamples)
	for r := range results {
		for i := range drawnA {
			pick := random.IntN(len(a))
			drawnA[i], drawnB[i] = a[pick], b[pick]
		}
		results[r] = compare(drawnA, drawnB)
	}
	return interval(results)
}

// interval returns the middle 95 % of the resamples' results.
func interval(results []float64) Interval {
	return Interval{Low: Quantile(results, (1-confidence)/2), High: Quantile(results, (1+confidence)/2)}
}
