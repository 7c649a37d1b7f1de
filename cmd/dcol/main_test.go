package main

import (
	"testing"

	"github.com/detour-collective/dcol/internal/cli/clitest"
)

func TestMain(m *testing.M) { clitest.Main(m, "dcol", main) }

// The scripts in testdata have one command more:
//
//	serve SOCKET STATUS   an agent answers at the socket: with the JSON of a file
func TestCommandLine(t *testing.T) {
	clitest.Run(t, "dcol", map[string]clitest.Command{"serve": serve})
}
