package paths

// maxWidth is the assumed largest number of next hops of a router.
const maxWidth = 128

// stops computes stopping points for a bound on the failure probability at one router. If stops[k] probes have shown k
// next hops, there are taken to be no more: with at most the bound's probability, a router with k + 1 equally probable
// next hops shows fewer. stops[0] is 1.
//
// The probability includes the earlier stopping points (Veitch et al., section II.C).
type stops struct {
	bound  float64
	points []int
}

func newStops(bound float64) *stops { return &stops{bound: bound, points: []int{1}} }

// after returns the number of probes after which k next hops are taken for all.
func (s *stops) after(k int) int {
	k = min(k, maxWidth)
	for len(s.points) <= k {
		s.points = append(s.points, s.next())
	}
	return s.points[k]
}

// next computes the next stopping point. It follows a Markov chain: the number of next hops, of all that exist, that n
// probes have shown. The chain ends at each stopping point.
func (s *stops) next() int {
	k := len(s.points) // it is the point of k next hops, if there are k + 1
	all := float64(k + 1)
	shown := make([]float64, k+2) // probability of each number
	shown[1] = 1
	failed := 0.0
	for n := 1; ; n++ {
		if failed+shown[k] <= s.bound && n > s.points[k-1] {
			return n
		}
		for i := 1; i < k; i++ {
			if n == s.points[i] {
				failed += shown[i]
				shown[i] = 0
			}
		}
		for i := k; i >= 1; i-- {
			shown[i+1] += shown[i] * (all - float64(i)) / all
			shown[i] *= float64(i) / all
		}
	}
}
