package measure

import "math"

const (
	// leastSeen is the number of packets from which a share of losses says something.
	leastSeen = 30
	// z is the quantile of the normal distribution for intervals that hold the true value with a probability of 95 %.
	z = 1.96
)

// Interval returns the bounds of the true share of lost packets with a probability of 95 %, where share was lost
// among that many packets (Wilson 1927). The bounds are 0 and 1 if there were too few packets.
func Interval(share, packets float64) (least, most float64) {
	if packets < leastSeen || share < 0 || share > 1 || math.IsNaN(share) || math.IsInf(packets, 0) {
		return 0, 1
	}
	middle := share + z*z/(2*packets)
	half := z * math.Sqrt(share*(1-share)/packets+z*z/(4*packets*packets))
	whole := 1 + z*z/packets
	return max(0, (middle-half)/whole), min(1, (middle+half)/whole)
}
