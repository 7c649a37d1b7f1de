package paths

// maxWidth is the largest number of next hops that a router is assumed to have.
const maxWidth = 128

// stops computes stopping points for a bound on the failure probability at one router. The search stops if points[k]
// probes have shown only k next hops. With at most the bound's probability, a router with k + 1 equally probable next
// hops is missed one then, or at an earlier point (Veitch et al., section II.C). points[0] is 1.
type stops struct {
	bound  float64
	points []int
}

func newStops(bound float64) *stops { return &stops{bound: bound, points: []int{1}} }

// after returns the number of probes after which the search stops if they have shown k next hops.
func (s *stops) after(k int) int {
	k = min(k, maxWidth)
	for len(s.points) <= k {
		s.points = append(s.points, s.next())
	}
	return s.points[k]
}

// next computes the next stopping point with a Markov chain. Its state after n probes is the number of next hops that
// they have shown. The chain ends at earlier stopping points.
func (s *stops) next() int {
	k := len(s.points) // the new point is for k next hops; it fails if there are k + 1
	all := float64(k + 1)
	shown := make([]float64, k+2) // shown[i] is the probability that i were shown
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
