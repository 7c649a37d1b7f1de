package measure

import "math"

const (
	// leastSeen is the least number of packets from which a share of losses is told at all.
	leastSeen = 30
	// z is the quantile of the normal distribution for an interval that holds the truth with 95 %.
	z = 1.96
)

// Interval returns the bounds between which the share of lost packets lies with a probability of 95 %, where so many
// packets of which share was lost were seen (Wilson 1927). It is 0 to 1 if there were too few.
func Interval(share, packets float64) (least, most float64) {
	if packets < leastSeen || share < 0 || share > 1 || math.IsNaN(share) || math.IsInf(packets, 0) {
		return 0, 1
	}
	middle := share + z*z/(2*packets)
	half := z * math.Sqrt(share*(1-share)/packets+z*z/(4*packets*packets))
	whole := 1 + z*z/packets
	return max(0, (middle-half)/whole), min(1, (middle+half)/whole)
}
