package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/detour-collective/dcol/internal/probe"
	"github.com/detour-collective/dcol/internal/probe/report"
)

// dcol probe run compares plain TCP, MPTCP without detours, and MPTCP with those of the agent. Paths have the waypoints'
// names.
func TestProbeTraffic(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	serve := w.host(server).Command(w.life(), program, "probe", "serve")
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	go serve.Wait() // it ends with its host
	w.eventually("the server listens", func() error {
		return holds(w.run(server, "ss", "-Htln", fmt.Sprintf("sport = :%d", probe.Port)) != "", "it does not")
	})
	file := filepath.Join(w.dir, "probe.jsonl")
	run := func(args ...string) (s report.Summary) {
		argv := []string{"probe", "run", w.addr4(server).String(), string(probe.Requests), "--rounds", "1", "--pause", "0s", "--append", file, "--json"}
		if err := json.Unmarshal([]byte(w.dcol(alice, append(argv, args...)...)), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := run()
	if len(s.Series) != len(probe.Ways()) {
		t.Fatalf("with an agent, all ways are measured: %+v", s.Series)
	}
	for i, way := range probe.Ways() {
		one := s.Series[i]
		if one.Way != way || one.Exchanges != 1 || one.Failed+one.FellBack > 0 || one.Values == nil || one.Values.Count != 20 {
			t.Errorf("%+v", one)
		}
		if way != probe.Detours && one.Replies[probe.Direct] != 20 {
			t.Errorf("%s has no detours, but its replies came by %v", way, one.Replies)
		}
	}
	w.eventually("a detour has its waypoint's name", func() error {
		run("--over", string(probe.Detours))
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		records, damaged, err := probe.Read(bytes.NewReader(data))
		if err != nil {
			return err
		}
		if damaged > 0 {
			return fmt.Errorf("%d damaged lines", damaged)
		}
		last := records[len(records)-1]
		_, byBob := last.Bytes[bob]
		return holds(byBob, "the subflows are %v", last.Bytes)
	})
}
