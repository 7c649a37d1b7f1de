package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/detour-collective/dcol/internal/api"
)

// On a narrow terminal, a table that is wider becomes paragraphs, and text is folded.
func TestStatusInNarrowTerminal(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	agent := newLive()
	agent.status.Problems = []string{"the certificate expires in 2 h, and no coordinator answers"}
	agent.start(t, socket)
	for _, columns := range []uint16{60, 120} {
		x := startInTerminal(t, columns, 24, nil, "dcol", "status", "--socket", socket)
		x.waitForEnd()
		x.waitForOutput("end of the status", func(out string) bool { return strings.Contains(out, "61.0 ms") && strings.HasSuffix(out, "\n") })
		narrow := strings.Contains(x.output(), "  direct\r\n      STATE up, RTT 30.0 ms, IN 9.4 Mbit/s")
		if narrow != (columns == 60) {
			t.Errorf("with %d columns:\n%s", columns, x.output())
		}
		for line := range strings.SplitSeq(x.output(), "\r\n") {
			if len(line) > int(columns) {
				t.Errorf("with %d columns, a line has %d: %s", columns, len(line), line)
			}
		}
	}
}

// Other commands fold their tables likewise.
func TestTablesInNarrowTerminal(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	socket, logFile := filepath.Join(folder, "agent.sock"), filepath.Join(folder, "attribution.jsonl")
	agent := newLive()
	agent.status.Collective = &api.Collective{Name: "friends"}
	agent.start(t, socket)
	script, err := txtar.ParseFile("testdata/log.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range script.Files {
		if f.Name == filepath.Base(logFile) {
			if err := os.WriteFile(logFile, f.Data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	members, history, log := []string{"members", "--socket", socket}, []string{"history", "--socket", socket}, []string{"log", "show", logFile}
	for _, test := range []struct {
		columns uint16
		args    []string
		end     string
	}{
		{38, members, "  bob (used)\r\n    ROLES waypoint, LAST HEARD never\r\n"},
		{200, members, "  bob (used)         waypoint  never\r\n"},
		{40, history, "  via bob (in-band)\r\n    RECEIVED 1.00 GB, SENT 1.0 MB,\r\n    RTT 35.0 ms\r\n"},
		{200, history, "  via bob (in-band)  1.00 GB   1.0 MB  35.0 ms\r\n"},
		{60, log, "The log names no session for 1 connection: only the member\r\nis known.\r\n"},
		{200, log, "The log names no session for 1 connection: only the member is known.\r\n"},
	} {
		x := startInTerminal(t, test.columns, 24, nil, "dcol", test.args...)
		x.waitForEnd()
		x.waitForOutput(fmt.Sprintf("output of %d columns", test.columns), func(out string) bool { return strings.HasSuffix(out, test.end) })
		for line := range strings.SplitSeq(x.output(), "\r\n") {
			if len(line) > int(test.columns) {
				t.Errorf("with %d columns, a line has %d: %s", test.columns, len(line), line)
			}
		}
	}
}
