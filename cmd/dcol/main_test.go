package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/detour-collective/dcol/internal/api"
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

// Who has no agent is told how to start one, or on a host that is no member how to become one.
func TestNoAgent(t *testing.T) {
	err := fmt.Errorf("ask the agent: %w", api.ErrNoAgent)
	there := filepath.Join(t.TempDir(), "dcol.toml")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for file, joins := range map[string]bool{there: false, there + ".none": true} {
		got := sayStartWith(err, file)
		if text := got.Error(); !errors.Is(got, api.ErrNoAgent) || strings.Contains(text, "start it as root: ") == joins || strings.Contains(text, "dcol join") != joins {
			t.Errorf("%s: %v", file, got)
		}
	}
	if got := sayStartWith(errors.New("other"), there+".none"); got.Error() != "other" {
		t.Errorf("another error is changed: %v", got)
	}
}
