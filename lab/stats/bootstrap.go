package stats

import "math/rand/v2"

// resamples is how many samples the bootstrap draws.
const resamples = 1000

// PairedInterval returns the interval in which a comparison of two samples lies with a probability of 95 %, by the
// percentile bootstrap: pairs are drawn with replacement, and the comparison is repeated. The values of a pair have the
// same index and were measured together, so that what disturbed both does not count. The same samples give the same
// interval.
func PairedInterval(a, b []float64, compare func(a, b []float64) float64) (low, high float64) {
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
	return Quantile(results, 0.025), Quantile(results, 0.975)
}
