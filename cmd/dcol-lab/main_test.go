package main

import (
	"testing"

	"github.com/detour-collective/dcol/internal/cli/clitest"
	"github.com/detour-collective/dcol/lab/testbed"
)

func TestMain(m *testing.M) {
	testbed.Stage() // hosts of the lab start as this executable
	clitest.Main(m, "dcol-lab", main)
}

func TestCommandLine(t *testing.T) { clitest.Run(t, "dcol-lab", nil) }
