package testbed

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	Stage()
	// Else hosts and wires built with -race take a second each to end.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	if victim := os.Getenv(victimEnv); victim != "" {
		beVictim(victim)
	}
	goleak.VerifyTestMain(m)
}
