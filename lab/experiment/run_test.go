package experiment

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("building a network needs root")
	}
}

// clientAndServer goes on from a scenario's name.
const clientAndServer = `
repetitions = 1
[[host]]
name = "client"
roles = ["client"]
[[host]]
name = "server"
roles = ["server"]
`

const tiny = `
schema = "dcol.scenario/1"
name = "tiny"
description = "two hosts and a wire"
` + clientAndServer + `
[[link]]
name = "1"
a = "client"
b = "server"
rate = "20mbit"
delay = "5ms"
[[variant]]
name = "slow"
[[variant.change]]
link = "1"
rate = "8mbit"
[workload]
kind = "http"
size = "1MB"
[[procedure]]
name = "tcp"
transport = "tcp"
[[expect]]
description = "the link is what limits it"
that = 'median("tcp") < 20 and median("tcp") > 0'
[[expect]]
description = "this cannot hold"
that = 'median("tcp") > 100'
`

func parse(t *testing.T, text string) *scenario.Scenario {
	t.Helper()
	s, err := scenario.Parse("test.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A whole experiment with plain TCP: two variants, curl and nginx.
func TestRunPlainTCP(t *testing.T) {
	needRoot(t)
	t.Parallel()
	out := t.TempDir()
	var progress strings.Builder
	result, err := Run(t.Context(), parse(t, tiny), Options{Out: out, Variants: []string{"all"}, Stderr: &progress, anyFidelity: true})
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	base, _ := result.Under("cubic").Row("base", "tcp")
	slow, _ := result.Under("cubic").Row("slow", "tcp")
	if base.N != 1 || slow.N != 1 {
		t.Fatalf("%d and %d valid runs\n%s", base.N, slow.N, progress.String())
	}
	if b, s := base.GoodputMbps.Median, slow.GoodputMbps.Median; !(b < 20 && s < 8) {
		t.Errorf("goodput %.2f on the link, %.2f on the slow one", b, s)
	}
	if got := []bool{result.Expectations[0].Met, result.Expectations[1].Met}; !got[0] || got[1] {
		t.Errorf("expectations met: %v, want the first only", got)
	}
	for _, run := range result.Runs {
		if run.SHA256OK == nil || !*run.SHA256OK {
			t.Errorf("%s: sha256 not checked or wrong", run.Variant)
		}
		if got := run.PathBytes(scenario.DirectPath); got < 1e6*9/10 || got > 1e6*11/10 {
			t.Errorf("%s: %d bytes seen on the direct path of a download of 1 MB", run.Variant, got)
		}
	}
	checkFiles(t, out)
}

// Nobody else gets the output folder before what was found is written.
func TestFolderIsHeldUntilAllIsWritten(t *testing.T) {
	needRoot(t)
	t.Parallel()
	var progress strings.Builder
	o := Options{Out: t.TempDir(), Stderr: &progress, anyFidelity: true}
	suite, err := scenario.SuiteOf(parse(t, tiny), o.selection())
	if err != nil {
		t.Fatal(err)
	}
	kept := false
	_, err = carryOut(t.Context(), suite, o, func(*report.SuiteResult) error {
		kept = true
		if unlock, err := durable.TryLock(o.Out); !errors.Is(err, durable.ErrLocked) {
			t.Errorf("while the result is written the folder is anyone's: %v", err)
			if err == nil {
				unlock()
			}
		}
		return nil
	})
	if err != nil || !kept {
		t.Fatalf("kept %t: %v\n%s", kept, err, progress.String())
	}
	// A process that another test has just forked may still have the lock's descriptor, until it runs its program.
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		unlock, err := durable.TryLock(o.Out)
		if err == nil {
			unlock()
			return
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal(err)
		}
	}
}

func checkFiles(t *testing.T, out string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(out, "result.json"))
	if err != nil {
		t.Fatal(err)
	}
	var stored report.Result
	if err := json.Unmarshal(data, &stored); err != nil || stored.Schema != report.Schema {
		t.Errorf("result.json: schema %q, %v", stored.Schema, err)
	}
	for _, name := range []string{"report.html", "result.csv", "logs/tiny/base-tcp-cubic-1/server-nginx.log"} {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			t.Errorf("missing: %v", err)
		}
	}
}

// An experiment that was interrupted goes on where it was, and makes no run again
// that counts.
func TestRunResumes(t *testing.T) {
	needRoot(t)
	t.Parallel()
	out := t.TempDir()
	run := func(text string, resume bool) (*report.Result, string) {
		t.Helper()
		var progress strings.Builder
		r, err := Run(t.Context(), parse(t, text), Options{Out: out, Resume: resume, Jobs: 2, Stderr: &progress, anyFidelity: true})
		if err != nil {
			t.Fatalf("%v\n%s", err, progress.String())
		}
		return r, progress.String()
	}
	first, _ := run(tiny, true)
	more, progress := run(strings.Replace(tiny, "repetitions = 1", "repetitions = 3", 1), true)
	if len(more.Runs) != 3 || !more.Runs[0].Started.Equal(first.Runs[0].Started) || !strings.Contains(progress, "tiny: 2 runs") {
		t.Errorf("%d runs\n%s", len(more.Runs), progress)
	}
	if row, _ := more.Under("cubic").Row(scenario.Base, "tcp"); row.N != 3 || !more.Started.Equal(first.Started) || more.Seconds <= first.Seconds {
		t.Errorf("%d runs count; begun %v and %v, %.1f s and %.1f s", row.N, first.Started, more.Started, first.Seconds, more.Seconds)
	}
	fewer, progress := run(tiny, true)
	if len(fewer.Runs) != 1 || !strings.Contains(progress, "tiny: 0 runs") {
		t.Errorf("%d runs\n%s", len(fewer.Runs), progress)
	}
	anew, progress := run(tiny, false)
	if len(anew.Runs) != 1 || anew.Runs[0].Started.Equal(first.Runs[0].Started) || strings.Contains(progress, "made anew") {
		t.Errorf("%d runs, the first the same as before\n%s", len(anew.Runs), progress)
	}
	other, progress := run(strings.Replace(tiny, `delay = "5ms"`, `delay = "6ms"`, 1), true)
	if len(other.Runs) != 1 || !strings.Contains(progress, "another version of the scenario: they are made anew") {
		t.Errorf("%d runs\n%s", len(other.Runs), progress)
	}
}

// A link with a radio carries nothing until that is awake, and the run has its energy.
func TestRunOverRadio(t *testing.T) {
	needRoot(t)
	t.Parallel()
	mobile := parse(t, strings.Replace(strings.Replace(tiny, `delay = "5ms"`, "delay = \"5ms\"\nradio = { wake = \"700ms\", sleep = \"5s\", power = 800, low = 400 }", 1),
		`size = "1MB"`, `size = "100KB"`, 1))
	result, err := Run(t.Context(), mobile, Options{Out: t.TempDir(), Stderr: io.Discard, anyFidelity: true})
	if err != nil {
		t.Fatal(err)
	}
	run := result.Runs[0]
	if !run.Valid() || run.CompletionSeconds < 0.7 {
		t.Errorf("the download took %v s, before the radio was awake: %+v", run.CompletionSeconds, run)
	}
	for _, l := range run.Links {
		if l.RadioJoules < 0.8*0.7 {
			t.Errorf("the radio of link %s used %v J, and woke up for 0.7 s at 0.8 W", l.Link, l.RadioJoules)
		}
	}
}
