package bench

import (
	"testing"

	"github.com/detour-collective/dcol/internal/racetest"
)

// TestSimulatedInterfaces: two subflows by choice fill both interfaces. By chance all are on one of them as often as
// chanceOfOne computes, and then fill half.
func TestSimulatedInterfaces(t *testing.T) {
	racetest.Skip(t)
	const full = 0.95
	if got := simulatedInterfaces(2, true); got < full-0.03 || got > full+0.01 {
		t.Errorf("by choice: %.3f of both interfaces", got)
	}
	want := full * (1 - chanceOfOne(2)/2)
	if got := simulatedInterfaces(2, false); got < want-0.1 || got > want+0.1 {
		t.Errorf("by chance: %.3f of both interfaces, want about %.3f", got, want)
	}
}
