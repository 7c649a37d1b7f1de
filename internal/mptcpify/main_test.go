package mptcpify

import (
	"fmt"
	"log/slog"
	"os"
	"testing"
)

// runMark makes the test binary stand in for `dcol run --`.
const runMark = "run"

func TestMain(m *testing.M) {
	if code, ok := Stage(os.Args); ok {
		os.Exit(code)
	}
	if len(os.Args) > 2 && os.Args[1] == runMark {
		err := Exec(slog.New(slog.NewTextHandler(os.Stderr, nil)), os.Args[2:])
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(ExitCode(err))
	}
	os.Exit(m.Run())
}
