package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/detour-collective/dcol/internal/cli/clitest"
)

func TestMain(m *testing.M) { clitest.Main(m, "dcol", main) }

// The scripts in testdata have two commands more:
//
//	serve SOCKET STATUS   an agent answers at the socket: with the JSON of a file
//	capture FILE          writes a packet capture of four connections of Linux
var packageFolder, _ = os.Getwd()

func TestCommandLine(t *testing.T) {
	clitest.Run(t, "dcol", map[string]clitest.Command{"serve": serve, "capture": writeCapture})
}

// writeCapture finds the file by the folder of this package's tests, in which they begin.
func writeCapture(ts *testscript.TestScript, _ bool, args []string) {
	b, err := os.ReadFile(filepath.Join(packageFolder, "../../internal/packet/testdata/mptcp.pcap"))
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b, 0o600))
}
