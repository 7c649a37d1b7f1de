package testbed

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	Stage()
	if victim := os.Getenv(victimEnv); victim != "" {
		beVictim(victim)
	}
	goleak.VerifyTestMain(m)
}
