package experiment

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/runner"
	"github.com/detour-collective/dcol/lab/scenario"
)

// another is tiny under another name.
func another() string { return strings.Replace(tiny, `name = "tiny"`, `name = "another"`, 1) }

func parseSuite(t *testing.T, parts string, texts ...string) *scenario.Suite {
	t.Helper()
	byName := map[string]*scenario.Scenario{}
	for _, text := range texts {
		s := parse(t, text)
		byName[s.Name] = s
	}
	suite, err := scenario.ParseSuite("suite.toml", []byte("schema = \"dcol.suite/1\"\nname = \"both\"\n"+parts),
		func(name string) (*scenario.Scenario, error) { return byName[name], nil })
	if err != nil {
		t.Fatal(err)
	}
	return suite
}

const bothParts = `
[[part]]
scenario = "tiny"
variants = ["all"]
[[part]]
scenario = "another"
congestion_controls = ["reno"]
repetitions = 2
[[part]]
scenario = "tiny"
variants = ["base"]
congestion_controls = ["cubic", "reno"]
repetitions = 2
`

// The parts take turns by repetition; what two parts want is made once, and what was
// made before is not made again.
func TestTasksOfSuite(t *testing.T) {
	e := &experiment{suite: parseSuite(t, bothParts, tiny, another())}
	show := func(tasks []*runner.Task) []string {
		var names []string
		for _, t := range tasks {
			names = append(names, fmt.Sprintf("%s %s %s %d", t.Scenario.Name, t.Variant.Name, t.Scenario.Congestion, t.Repetition))
		}
		return names
	}
	want := []string{
		"tiny base cubic 1", "tiny slow cubic 1", "another base reno 1", "tiny base reno 1",
		"another base reno 2", "tiny base cubic 2", "tiny base reno 2",
	}
	if diff := cmp.Diff(want, show(e.tasks(nil))); diff != "" {
		t.Errorf("tasks (-want +got):\n%s", diff)
	}
	run := func(congestion string, repetition int, discarded string) runner.Recorded {
		return runner.Recorded{Scenario: "tiny", Run: report.Run{
			Variant: "base", Procedure: "tcp", Congestion: congestion, Repetition: repetition, Attempt: 1, Discarded: discarded,
		}}
	}
	left := e.tasks([]runner.Recorded{run("cubic", 1, ""), run("reno", 1, "late"), run("bbr", 1, ""), run("cubic", 3, "")})
	if diff := cmp.Diff(want[1:], show(left)); diff != "" {
		t.Errorf("tasks left (-want +got):\n%s", diff)
	}
	if left[2].Attempts != 1 || left[0].Attempts != 0 {
		t.Errorf("attempts before: %d and %d, want those of the run that did not count", left[2].Attempts, left[0].Attempts)
	}
	if len(e.runs) != 2 {
		t.Errorf("%d runs were taken in, want the two that are wanted", len(e.runs))
	}
}

// The costly procedures, which stand at the end, are never side by side.
func TestInterleave(t *testing.T) {
	for in, want := range map[string]string{"": "", "a": "a", "ab": "ab", "abc": "acb", "abcd": "acbd", "lllllhhhh": "lhlhlhlhl"} {
		var all []scenario.Procedure
		for _, name := range in {
			all = append(all, scenario.Procedure{Name: string(name)})
		}
		var got string
		for _, p := range interleave(all) {
			got += p.Name
		}
		if got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

// A run counts for every part that wants it, and for no other.
func TestResultOfSuite(t *testing.T) {
	e := &experiment{suite: parseSuite(t, bothParts, tiny, another()), ledger: &runner.Ledger{}}
	for _, task := range e.tasks(nil)[:4] { // it was cut short
		e.runs = append(e.runs, runner.Recorded{Scenario: task.Scenario.Name, Run: report.Run{
			Variant: task.Variant.Name, Procedure: "tcp", Congestion: task.Scenario.Congestion, Repetition: 1, GoodputMbps: 10,
		}})
	}
	s := e.result(true)
	var got []string
	for _, p := range s.Parts {
		got = append(got, fmt.Sprintf("%s %d %s", p.Scenario, len(p.Runs), p.Environment.Congestion))
	}
	if diff := cmp.Diff([]string{"tiny 2 cubic", "another 1 reno", "tiny 2 cubic, reno"}, got); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
	if s.Fidelity.Runs != 4 || s.Environment.Congestion != "cubic, reno" {
		t.Errorf("%d runs in all, with %s", s.Fidelity.Runs, s.Environment.Congestion)
	}
	e.runs = e.runs[:1]
	if all, done := e.result(false).Parts[1], e.result(true).Parts[1]; len(all.Expectations) != 2 || len(done.Expectations) != 0 {
		t.Errorf("of a part without runs %d expectations are decided, and %d when it was cut short", len(all.Expectations), len(done.Expectations))
	}
}

func TestCoordinatesOfTheVariedLink(t *testing.T) {
	s := parse(t, strings.Replace(tiny, `name = "tiny"`, "name = \"tiny\"\nvaried = \"1\"", 1)+`
[[variant]]
name = "bad"
[[variant.change]]
link = "1"
loss = "2.5%"
`)
	bad, _ := s.Variant("bad")
	want := []report.Coordinate{
		{Axis: "loss", Label: "loss on link 1", Unit: "%", Value: 2.5},
		{Axis: "delay", Label: "delay of link 1", Unit: "ms", Value: 5},
	}
	if diff := cmp.Diff(want, coordinates(s, bad)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := coordinates(parse(t, tiny), bad); len(got) != 0 {
		t.Errorf("where nothing is said to be varied: %v", got)
	}
}

// A suite for real: two scenarios beside each other; a change in one leaves the other's
// runs as they are.
func TestRunSuite(t *testing.T) {
	needRoot(t)
	t.Parallel()
	out := t.TempDir()
	run := func(second string) (*report.SuiteResult, string) {
		t.Helper()
		var progress strings.Builder
		suite := parseSuite(t, "[[part]]\nscenario = \"tiny\"\ncongestion_controls = [\"cubic\", \"reno\"]\n[[part]]\nscenario = \"another\"\n", tiny, second)
		s, err := RunSuite(t.Context(), suite, Options{Out: out, Jobs: 2, Resume: true, Stderr: &progress, anyFidelity: true})
		if err != nil {
			t.Fatalf("%v\n%s", err, progress.String())
		}
		return s, progress.String()
	}
	first, progress := run(another())
	if first.Fidelity.Runs != 3 || len(first.Parts) != 2 || !strings.Contains(progress, "both: 3 runs") {
		t.Errorf("%d runs in %d parts\n%s", first.Fidelity.Runs, len(first.Parts), progress)
	}
	for _, name := range []string{"report.html", "result.json", "result.csv", "logs/another/base-tcp-cubic-1/server-nginx.log"} {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			t.Errorf("missing: %v", err)
		}
	}
	data, err := os.ReadFile(filepath.Join(out, "runs.json"))
	if err != nil {
		t.Fatal(err)
	}
	var stored report.SuiteResult
	if err := json.Unmarshal(data, &stored); err != nil || stored.Schema != report.SuiteSchema || len(stored.Parts[0].Runs) != 2 {
		t.Errorf("runs.json: schema %q, %v", stored.Schema, err)
	}
	second, progress := run(strings.Replace(another(), `delay = "5ms"`, `delay = "6ms"`, 1))
	if !strings.Contains(progress, "both: 1 run,") || !strings.Contains(progress, "runs of another there are of another version") {
		t.Errorf("after a change in one scenario:\n%s", progress)
	}
	if !second.Parts[0].Runs[0].Started.Equal(first.Parts[0].Runs[0].Started) || second.Parts[1].Runs[0].Started.Equal(first.Parts[1].Runs[0].Started) {
		t.Error("the wrong runs were made again")
	}
}

// A congestion control that this kernel does not have is found before anything is said.
func TestUnknownCongestionControl(t *testing.T) {
	needRoot(t)
	var progress strings.Builder
	_, err := Run(t.Context(), parse(t, tiny), Options{Out: t.TempDir(), Congestions: []string{"cubix"}, Stderr: &progress})
	if err == nil || !strings.Contains(err.Error(), `no congestion control "cubix"; it has `) || progress.Len() > 0 {
		t.Errorf("error %v, after %q", err, progress.String())
	}
}
