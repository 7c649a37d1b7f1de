package battery

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/lab/programs/programstest"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/runner"
	"github.com/detour-collective/dcol/lab/scenario"
)

// Names of tests and cases are unique, and each case of a mesh has a line for each pair of uplinks.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, one := range tests() {
		for _, c := range one.cases {
			if key := one.name + "/" + c.name; seen[key] {
				t.Errorf("%s is there twice", key)
			} else {
				seen[key] = true
			}
			if c.shape.bottleneck == nil && len(c.shape.lines) != c.shape.paths() {
				t.Errorf("%s/%s has %d lines for %d paths", one.name, c.name, len(c.shape.lines), c.shape.paths())
			}
			if c.of != "" && !seen["throughput/"+c.of] && one.name != "subflows" {
				t.Errorf("%s/%s takes the runs of %q, which is no case", one.name, c.name, c.of)
			}
		}
		for _, c := range one.cases {
			for key := range c.published {
				if !slices.ContainsFunc(one.shown, func(k column) bool { return k.key == key }) {
					t.Errorf("%s/%s has a published %s, which is not shown", one.name, c.name, key)
				}
			}
		}
		if one.question == "" || one.published == "" || len(one.shown) == 0 {
			t.Errorf("%s lacks its question, the published answer or what is shown", one.name)
		}
	}
}

func TestChoose(t *testing.T) {
	for _, bad := range []struct {
		o    Options
		want string
	}{{Options{Tests: []string{"troughput"}}, "no test"}, {Options{Implementations: []string{"solaris"}}, "no implementation"}} {
		if _, _, err := choose(bad.o); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%+v: %v", bad.o, err)
		}
	}
	chosen, _, err := choose(Options{Tests: []string{"throughput"}, Implementations: []string{"kernel"}})
	if err != nil || len(chosen) != 1 || len(chosen[0].impls) != 2 {
		t.Errorf("%+v, %v: one test by TCP and the kernel is wanted", chosen, err)
	}
}

// planned returns the runs of a battery that has made some before.
func planned(t *testing.T, o Options, before []runner.Recorded) (b *battery, todo []*runner.Task) {
	t.Helper()
	chosen, _, err := choose(o)
	if err != nil {
		t.Fatal(err)
	}
	b = &battery{options: o, tests: chosen}
	var scenarios []*scenario.Scenario
	for _, one := range chosen {
		scenarios = append(scenarios, b.scenarioOf(one))
	}
	todo = b.tasks(scenarios, before)
	return b, todo
}

// The plan has each run once, as often as it is to be repeated. A battery that was stopped plans only what it lacks.
func TestPlan(t *testing.T) {
	for _, full := range []bool{false, true} {
		o := Options{Full: full, Implementations: []string{"kernel"}}
		b, todo := planned(t, o, nil)
		runs, each := map[runner.Key]bool{}, map[string]int{}
		for _, task := range todo {
			runs[task.Key()] = true
			each[task.Scenario.Name+"/"+task.Variant.Name+"/"+task.Procedure.Name]++
		}
		if len(runs) != len(todo) || b.wanted != len(todo) {
			t.Errorf("full %v: %d different runs of %d, %d wanted", full, len(runs), len(todo), b.wanted)
		}
		want, handovers := 3, 3
		if full {
			want, handovers = 10, 20
		}
		if each["throughput/test-2/tcp"] != want || each["fairness/1-tcp-lia/kernel"] != want || each["handover-modes/backup/kernel"] != handovers {
			t.Errorf("full %v: %v", full, each)
		}
		if each["handover-radio/backup/kernel"] == 0 || each["handover-radio/active/kernel"] != 0 {
			t.Errorf("full %v: the kernel has no modes by activity: %v", full, each)
		}
		if each["latency/test-9/kernel"] != 0 {
			t.Errorf("full %v: the round trips of test 9 are those of test 3, and need no runs of their own", full)
		}
		var before []runner.Recorded
		for i, task := range todo[:len(todo)/2] {
			r := report.Run{Variant: task.Variant.Name, Procedure: task.Procedure.Name, Congestion: task.Scenario.Congestion, Repetition: task.Repetition, Attempt: 1}
			if i%4 == 0 { // is to be made again
				r.Cause, r.Discarded = report.CauseLateLink, "the machine was too busy"
			}
			before = append(before, runner.Recorded{Scenario: task.Scenario.Name, Run: r})
		}
		made := len(before) - (len(before)+3)/4
		if b, rest := planned(t, o, before); len(rest) != len(todo)-made || b.wanted != len(todo) || b.made() != made {
			t.Errorf("full %v: after %d runs that count, %d of %d are to be made; %d count", full, made, len(rest), len(todo), b.made())
		}
	}
}

// The shortened battery of one implementation fits into 25 minutes on a machine that bears two networks at a time, with
// a fifth of that for runs that are made again.
func TestLength(t *testing.T) {
	const (
		building = 6 * time.Second // of a network and an implementation, and the end of them
		longest  = 20 * time.Minute
	)
	l := lengthsOf(false)
	lengths := map[string]time.Duration{
		"fairness": l.fairness, "rescue": l.rescue, "handover": l.handover, "handover-modes": l.handover, "handover-radio": l.handover, "signalling": 2 * signalPatience, "withdrawal": 2 * signalPatience,
		// Of each exchange of a voice assistant: nine bursts, the reply, and the pause.
		"answers": time.Duration((l.rounds+assistants-1)/assistants)*3500*time.Millisecond + assistants*assistantStart,
	}
	for _, impl := range multipath {
		if impl.missing() != nil {
			continue
		}
		var all time.Duration
		_, todo := planned(t, Options{Implementations: []string{string(impl)}}, nil)
		for _, task := range todo {
			one, ok := lengths[task.Scenario.Name]
			if !ok {
				one = l.transfer
			}
			all += one + building
		}
		t.Logf("%s: %d runs, %v one after the other", impl, len(todo), all)
		if all > 2*longest {
			t.Errorf("%s: %v is too long", impl, all)
		}
	}
}

// A run has none of the files that an earlier battery has left in its folder.
func TestEmptyFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "logs", "run")
	for range 2 {
		if err := emptyFolder(folder); err != nil {
			t.Fatal(err)
		}
		if files, err := os.ReadDir(folder); err != nil || len(files) > 0 {
			t.Fatalf("%v, %v", files, err)
		}
		if err := os.WriteFile(filepath.Join(folder, "answers.jsonl"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// What was under way when the path died does not count as data that came again.
func TestResumed(t *testing.T) {
	at := func(ms int, received int64, paths ...int) sample {
		s := sample{at: time.Duration(ms) * time.Millisecond, received: received}
		for _, p := range paths {
			s.subflows = append(s.subflows, subflow{path: p})
		}
		return s
	}
	v := values{}
	resumed(v, []sample{at(0, 0, 1), at(1000, 10, 1), at(1050, 12, 1), at(1100, 12, 1), at(1400, 12, 1, 2), at(1900, 20, 2), at(1950, 30, 2), at(4000, 900, 2)}[:7],
		1000*time.Millisecond, 2000*time.Millisecond)
	if v["join_ms"] != 400 || v["data_ms"] != 900 {
		t.Errorf("%v: a join after 400 ms and data after 900 ms are wanted", v)
	}
	resumed(v, []sample{at(0, 0, 1), at(1000, 10, 1), at(1050, 12, 1), at(1900, 12, 1)}, time.Second, 2*time.Second)
	if v["data_ms"] != 1000 || v["join_ms"] != 1000 {
		t.Errorf("%v: nothing came again within the 1000 ms", v)
	}
}

// A message's delay counts from when it was to be sent, and one that has not come yet is late all the same.
func TestMessages(t *testing.T) {
	m := &messages{rate: 1, began: time.Now().Add(-time.Second)} // a message each 10 ms
	m.arrived(2*messageSize-1, m.began.Add(15*time.Millisecond))
	m.arrived(2*messageSize, m.began.Add(30*time.Millisecond))
	m.arrived(3*messageSize, m.began.Add(25*time.Millisecond))
	v := values{}
	m.delays(v)
	if v["delay_p50"] != 15 || v["delay_max"] < 970 {
		t.Errorf("%v", v)
	}
	none := values{}
	(&messages{}).arrived(1<<20, time.Now())
	if (&messages{}).delays(none); len(none) != 0 {
		t.Errorf("%v of no stream", none)
	}
}

// What is as published with --full: WiFi goes at 5 s, and the first 10 s of round trips are apart.
func TestLengths(t *testing.T) {
	full, short := lengthsOf(true), lengthsOf(false)
	if full.wifiOff() != 5*time.Second || full.early() != 10*time.Second || full.handover/2 != 10*time.Second {
		t.Errorf("WiFi goes at %v; %v are early; the path dies at %v", full.wifiOff(), full.early(), full.handover/2)
	}
	if short.wifiOff() != short.handover/2 || short.early() != short.transfer/3 {
		t.Errorf("shortened, WiFi goes at %v, and %v are early", short.wifiOff(), short.early())
	}
}

func TestPage(t *testing.T) {
	r := &Result{Runs: 3, Wanted: 4, Tests: []TestResult{{Title: "A <test>", Columns: []Column{{"goodput", "goodput", "Mbit/s"}}, Cases: []CaseResult{{Name: "c", Published: published("goodput", "14.5"), Rows: []Row{
		{Implementation: "tcp", N: 3, Values: map[string]Value{"best": {10, 9, 11}, "sum": {20, 19, 21}}},
		{Implementation: "mptcpd", Failed: 3, Failure: "no address"},
		{Implementation: "kernel", N: 3, Discarded: 2, Doubt: "link path1 was late", Values: map[string]Value{"goodput": {15, 12, 16}}},
	}}}}}}
	compare(r.Tests[0].Cases[0].Rows)
	if got := r.Tests[0].Cases[0].Rows[2].Values["of_best"]; got != (Value{1.5, 1.2, 1.6}) {
		t.Errorf("of the best: %v", got)
	}
	var page, text bytes.Buffer
	if err := pageTemplate.Execute(&page, r); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"15 (12–16)", "3 (−2)", "published", "14.5", "failed 3 times, the last: no address"} {
		if !strings.Contains(page.String(), want) || !strings.Contains(text.String(), want) {
			t.Errorf("no %q in %s %s", want, &page, &text)
		}
	}
	const resume = "the same command goes on with the rest"
	if !strings.Contains(page.String(), resume) {
		t.Error("the page does not say that a run is missing")
	}
	r.Runs = r.Wanted
	if page.Reset(); pageTemplate.Execute(&page, r) != nil || strings.Contains(page.String(), resume) {
		t.Error("the page says that a run is missing")
	}
	if strings.Contains(page.String(), "<test>") {
		t.Error("a text is not escaped")
	}
}

// Each implementation opens the subflows of a full mesh, a handover loses nothing, and addresses are announced and
// withdrawn, on real networks.
func TestOnNetworks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	if _, err := os.Stat("/proc/sys/net/mptcp/enabled"); err != nil {
		t.Skip("this kernel has no MPTCP")
	}
	o := Options{Programs: programstest.Build(t), Log: slog.New(slog.DiscardHandler)}
	short := lengths{transfer: 2 * time.Second, handover: 4 * time.Second}
	small := shape{n: 2, m: 2, lines: []line{even(5, 10*ms), even(4, 12*ms), even(3, 14*ms), even(2, 16*ms)}}
	for _, test := range []struct {
		name    string
		impls   []implementation
		c       variant
		measure func(a *attempt) (values, error)
		check   func(values) bool
	}{
		{"full mesh", multipath, variant{shape: small}, func(a *attempt) (values, error) { return transfer(t.Context(), a) },
			func(v values) bool { return v["subflows"] == 4 && v["goodput"] > 0 }},
		{"TCP on each path", []implementation{plainTCP}, variant{shape: small}, func(a *attempt) (values, error) { return transfer(t.Context(), a) },
			func(v values) bool { return v["path1"] > 0 && v["path4"] > 0 && v["sum"] > v["best"] }},
		{"handover", multipath, variant{shape: wifi}, func(a *attempt) (values, error) { return handedOver(t.Context(), a) },
			func(v values) bool { return v["lost"] == 0 && v["broke"] == 0 }},
		{"interface down", multipath, variant{shape: wifi, mode: "interface"}, func(a *attempt) (values, error) { return handedOver(t.Context(), a) },
			func(v values) bool { return v["lost"] == 0 && v["broke"] == 0 && v["goodput_after"] > 0 }},
		{"application", []implementation{plainTCP}, variant{shape: mobile, mode: "application"}, func(a *attempt) (values, error) { return modes(t.Context(), a) },
			func(v values) bool { return v["join_ms"] <= v["data_ms"] && v["goodput_after"] > 0 }},
		{"stream", []implementation{kernelPM, dcol}, variant{shape: mobile, mode: "stream-single"}, func(a *attempt) (values, error) { return modes(t.Context(), a) },
			func(v values) bool { return v["delay_p50"] > 0 && v["delay_max"] > v["delay_p50"] }},
		{"signalling", multipath, variant{shape: lossy(0)}, func(a *attempt) (values, error) { return signalled(t.Context(), a) },
			func(v values) bool { return v["joined"] > 0 && v["left"] > 0 }},
		{"withdrawal", []implementation{kernelPM, dcol}, variant{shape: losing(0)}, func(a *attempt) (values, error) { return withdrawn(t.Context(), a) },
			func(v values) bool { return v["joined"] > 0 && v["left"] > 0 }},
	} {
		for _, impl := range test.impls {
			t.Run(test.name+" "+string(impl), func(t *testing.T) {
				t.Parallel()
				if why := impl.missing(); why != nil {
					t.Skip(why)
				}
				b, err := build(t.Context(), o, test.c.shape, impl, 1, t.TempDir())
				if err != nil {
					t.Fatal(err)
				}
				defer b.Close()
				a := &attempt{bed: b, variant: test.c, lengths: short, measured: func() {}}
				if v, err := test.measure(a); err != nil || !test.check(v) {
					t.Errorf("%v, %v", v, err)
				}
			})
		}
	}
}
