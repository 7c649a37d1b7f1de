package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/lab/programs"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

// tiny is a network of two hosts, as a scenario.
const tiny = `
schema = "dcol.scenario/1"
name = "tiny"
repetitions = 1
[[host]]
name = "client"
roles = ["client"]
[[host]]
name = "server"
roles = ["server"]
[[link]]
name = "1"
a = "client"
b = "server"
rate = "20mbit"
[workload]
kind = "http"
size = "1MB"
[[procedure]]
name = "tcp"
transport = "tcp"
`

func parse(t *testing.T, text string) *scenario.Scenario {
	t.Helper()
	s, err := scenario.Parse("test.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func header(t *testing.T, text string) Head {
	t.Helper()
	h, err := NewHead([]*scenario.Scenario{parse(t, text)}, programs.Pair{}, report.Environment{
		Kernel: "6.18", CPUs: 2, Backend: "wire", Programs: map[string]string{"curl": "curl 8"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// What was recorded is found again, by the same experiment only.
func TestLedger(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runs")
	h := header(t, tiny)
	l, runs, other, err := OpenLedger(dir, h, true)
	if err != nil || len(runs) != 0 || len(other) > 0 {
		t.Fatalf("of no record: %d runs, %q, %v", len(runs), other, err)
	}
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	want := []Recorded{
		{"tiny", report.Run{Variant: "base-a", Procedure: "b", Congestion: "cubic", Repetition: 1, Attempt: 1, Started: began, Discarded: "late"}},
		{"tiny", report.Run{Variant: "base", Procedure: "a-b", Congestion: "cubic", Repetition: 1, Attempt: 1, Started: began.Add(time.Minute), GoodputMbps: 9.5}},
		{"tiny", report.Run{Variant: "base", Procedure: "a", Congestion: "cubic", Repetition: 1, Attempt: 2, Started: began.Add(2 * time.Minute)}},
		{"tiny", report.Run{Variant: "base", Procedure: "a", Congestion: "reno", Repetition: 1, Attempt: 2, Started: began.Add(3 * time.Minute)}},
	}
	for _, run := range []Recorded{want[2], want[0], want[1], want[3]} {
		if err := l.Add(run); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Spent(90 * time.Second); err != nil {
		t.Fatal(err)
	}
	again, runs, other, err := OpenLedger(dir, h, true)
	if err != nil || len(other) > 0 {
		t.Fatalf("%q, %v", other, err)
	}
	if diff := cmp.Diff(want, runs); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	if !again.Head.Started.Equal(l.Head.Started) || again.Head.Seconds != 90 {
		t.Errorf("begun %v, %v s", again.Head.Started, again.Head.Seconds)
	}
	if _, runs, other, err = OpenLedger(dir, h, false); err != nil || len(runs) != 0 || len(other) > 0 {
		t.Errorf("begun anew: %d runs, %q, %v", len(runs), other, err)
	}
	if _, runs, _, _ = OpenLedger(dir, h, true); len(runs) != 0 {
		t.Errorf("%d runs were left", len(runs))
	}
}

func TestLedgerOfAnotherExperiment(t *testing.T) {
	kernel, program, tool := header(t, tiny), header(t, tiny), header(t, tiny)
	kernel.Environment.Kernel = "6.1"
	program.Program = "0badc0de"
	mine := header(t, tiny)
	mine.Program = "600dc0de"
	tool.Environment.Programs = map[string]string{"curl": "curl 9"}
	for _, test := range []struct {
		name   string
		before Head
		want   string // in the reason; "" if they belong together
	}{
		{"the same", header(t, tiny), ""},
		{"more of the same", header(t, strings.Replace(tiny, "repetitions = 1", "repetitions = 9", 1)), ""},
		{"another link", header(t, strings.Replace(tiny, `rate = "20mbit"`, `rate = "21mbit"`, 1)), "scenario"},
		{"another kernel", kernel, "Linux 6.1"},
		{"another dcol", program, "version of dcol"},
		{"another curl", tool, `curl "curl 9"`},
	} {
		dir := filepath.Join(t.TempDir(), "runs")
		l, _, _, err := OpenLedger(dir, test.before, true)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Add(Recorded{"tiny", report.Run{Variant: "base", Procedure: "tcp", Congestion: "cubic", Repetition: 1, Attempt: 1}}); err != nil {
			t.Fatal(err)
		}
		_, runs, other, err := OpenLedger(dir, mine, true)
		if err != nil || (len(other) == 0) != (test.want == "") || !strings.Contains(strings.Join(other, "\n"), test.want) || (len(runs) == 1) != (len(other) == 0) {
			t.Errorf("%s: %d runs, %q, %v", test.name, len(runs), other, err)
		}
	}
}

// What somebody else keeps in a folder of that name stays.
func TestLedgerOfSomebodyElse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runs")
	thesis := filepath.Join(dir, "mine", "thesis.txt")
	if err := os.MkdirAll(filepath.Dir(thesis), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(thesis, []byte("years of work"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, resume := range []bool{true, false} {
		if _, _, _, err := OpenLedger(dir, header(t, tiny), resume); err == nil || !strings.Contains(err.Error(), "--out") {
			t.Errorf("resume %v: error %v", resume, err)
		}
		if _, err := os.Stat(thesis); err != nil {
			t.Fatal(err)
		}
	}
	// One that was cut short before it had begun is nobody's.
	dir = filepath.Join(t.TempDir(), "runs")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".experiment.json.123"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := OpenLedger(dir, header(t, tiny), true); err != nil {
		t.Error(err)
	}
}

// A record that was damaged is not taken for one that is empty.
func TestLedgerDamaged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runs")
	if _, _, _, err := OpenLedger(dir, header(t, tiny), true); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "tiny"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tiny", "base+tcp+1+1.json"), []byte(`{"variant": "ba`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := OpenLedger(dir, header(t, tiny), true); err == nil || !strings.Contains(err.Error(), "base+tcp+1+1.json") {
		t.Errorf("error %v does not name the file", err)
	}
	if err := os.WriteFile(filepath.Join(dir, headFile), []byte(`{"program`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := OpenLedger(dir, header(t, tiny), true); err == nil || !strings.Contains(err.Error(), headFile) || !strings.Contains(err.Error(), "--anew") {
		t.Errorf("error %v does not say what helps", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "tiny", "base+tcp+1+1.json")); err != nil {
		t.Error(err)
	}
}
