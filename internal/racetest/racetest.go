// Package racetest tells tests whether they run with the race detector.
package racetest

import (
	"strings"
	"testing"
)

// simulated is the beginning of the names of tests that Skip skips. `make test` runs them by it.
const simulated = "TestSimulated"

// Skip skips a simulation in one goroutine if the race detector is on: it would find nothing, and makes the simulation
// more than ten times slower. `make test` runs the test once more, without the detector.
func Skip(t *testing.T) {
	t.Helper()
	if !strings.HasPrefix(t.Name(), simulated) {
		t.Fatalf("the name of a test that is not run with the race detector must begin with %s", simulated)
	}
	if On {
		t.Skip("a simulation in one goroutine: run without the race detector")
	}
}
