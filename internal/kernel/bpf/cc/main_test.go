package cc_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/lab/testbed"
)

func TestMain(m *testing.M) {
	testbed.Stage() // hosts and links start as this executable
	goleak.VerifyTestMain(m)
}
