package testbed

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	Stage()
	// Otherwise hosts and emulators built with -race take a second each to exit.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	if victim := os.Getenv(victimEnv); victim != "" {
		beVictim(victim)
	}
	goleak.VerifyTestMain(m)
}
