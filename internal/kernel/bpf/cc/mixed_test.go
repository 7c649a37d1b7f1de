package cc

import (
	"testing"

	"github.com/detour-collective/dcol/internal/racetest"
)

// solve returns where a function that falls from 0 to 1 is zero.
func solve(f func(float64) float64) float64 {
	low, high := 0., 1.
	for range 60 {
		if middle := (low + high) / 2; f(middle) > 0 {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// predicted returns which part of a link a TCP connection keeps beside a subflow of a connection that has another link for
// itself, as the papers' equations of the equilibrium give it. Both links have the same rate and round trip; rates are in
// parts of theirs. The subflow on the shared link has x, the TCP connection 1-x.
var predicted = map[string]float64{
	"reno": 0.5,
	// RFC 6356, section 3: windows go as 1/p, and the total is what TCP has on the better path: x = (1-x)²/(1+x)².
	"lia": 1 - solve(func(x float64) float64 { return (1-x)*(1-x)/((1+x)*(1+x)) - x }),
	// Khalili 2012: only the best paths are used, but for a window of one packet.
	"olia": 1,
	// draft-walid-mptcp-congestion-control: where the increase and the decrease of each window are equal, with alpha =
	// 1/x on the shared link and 1 on the other.
	"balia": 1 - solve(func(x float64) float64 { return (1-x)*(1-x) - 15*x*x*(1+x)/(1+4*x) }),
}

// A connection with a link for itself moves off one that it shares with a TCP connection, as the papers predict: LIA
// and BALIA somewhat more, OLIA less, and all more than uncoupled Reno. No link is idle.
func TestMixedPaths(t *testing.T) {
	const runs, full = 3, 0.985
	bounds := map[string][2]float64{"reno": {0.4, 0.6}, "lia": {0.6, 0.85}, "olia": {0.7, 1}, "balia": {0.7, 0.95}}
	services := []float64{300, 150}
	if racetest.On {
		services = services[:1]
	}
	for _, service := range services {
		on := line{service: service, trip: 40_000, room: 40_000 / service}
		capacity := 60 * second / service
		for control, bound := range bounds {
			var kept, both float64
			for seed := range uint64(runs) {
				mptcp, tcp := carried(plan{control: control, beside: "reno", others: 1, subflows: []*queue{{line: on}, {line: on}}}, seed)
				kept += tcp.packets / capacity / runs
				both += (mptcp.packets + tcp.packets) / (2 * capacity) / runs
			}
			t.Logf("%s at %.0f Mbit/s: TCP keeps %.2f of the shared link, predicted %.2f; both links are used to %.3f",
				control, 12_000/service, kept, predicted[control], both)
			if kept < bound[0] || kept > bound[1] || both < full {
				t.Errorf("%s at %.0f Mbit/s: TCP keeps %.2f of the shared link, both links are used to %.3f", control, 12_000/service, kept, both)
			}
		}
	}
}
