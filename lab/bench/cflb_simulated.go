package bench

import (
	"math/rand/v2"

	"github.com/detour-collective/dcol/lab/datacentre"
)

// placementsByChance is the number of random placements over which the goodput is averaged.
const placementsByChance = 60

// simulatedInterfaces simulates the uploads that twoInterfaces measures. It returns the average share of the two
// interfaces' capacity that the payload fills.
func simulatedInterfaces(subflows int, chosen bool) float64 {
	const payload = 1428. / 1500 // of a segment with timestamps and MPTCP's data sequence
	net, client, server := datacentre.TwoInterfaces(subflowLinks, subflowRate)
	paths := net.Paths(client, server, subflowLinks)
	random := rand.New(rand.NewPCG(1, 515))
	sum, placements := 0.0, placementsByChance
	if chosen {
		placements = 1
	}
	for range placements {
		var placed [][]int
		for i := range subflows {
			path := paths[random.IntN(len(paths))]
			if chosen {
				path = paths[subflowLinks-1-i]
			}
			placed = append(placed, path)
		}
		r := datacentre.Simulate(net, [][][]int{placed}, datacentre.Options{
			Control: datacentre.Cubic, Duration: subflowWarmUp + subflowMeasured, WarmUp: subflowWarmUp,
		})
		sum += r.Goodput[0] * payload / (2 * subflowRate)
	}
	return sum / float64(placements)
}
