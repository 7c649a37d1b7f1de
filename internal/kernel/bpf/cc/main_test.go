package cc_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cc"
	"github.com/detour-collective/dcol/lab/testbed"
)

func TestMain(m *testing.M) {
	if cc.Hold() {
		return
	}
	testbed.Stage() // hosts and links start as this executable
	goleak.VerifyTestMain(m)
}
