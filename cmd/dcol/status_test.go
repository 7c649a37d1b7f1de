package main

import (
	"path/filepath"
	"strings"
	"testing"
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
