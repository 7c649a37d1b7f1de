package page

import (
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func compare(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// golden is a suite small enough to be checked by hand: one network with what was
// published of it, a procedure without published values, and one without runs.
func golden() *report.SuiteResult {
	r := &report.Result{
		Scenario: "core-limited", Paths: []string{"direct", "waypoint"}, Variants: conditions()[:1],
	}
	for procedure, all := range map[string][]float64{
		"tcp": {9.5, 9.6, 9.4}, "tcp-detour": {9.5, 9.5, 9.5}, "dcol": {18, 19, 18.5, 18.7},
	} {
		for i, mbps := range all {
			r.Runs = append(r.Runs, report.Run{
				Variant: "base", Procedure: procedure, Congestion: "cubic", Repetition: i + 1, GoodputMbps: mbps,
				Paths: []report.PathUse{{Path: "direct", Bytes: int64(1e6 * mbps)}},
			})
		}
	}
	r.Runs = append(r.Runs, report.Run{
		Variant: "base", Procedure: "dcol-wireguard", Congestion: "cubic", Repetition: 1,
		Discarded: "wg: exit status 1", Cause: report.CauseFailure,
	})
	r.Summarize([]string{"base"}, []string{"tcp", "tcp-detour", "dcol", "dcol-wireguard"}, []string{"cubic"}, []scenario.Expectation{
		{Description: "more than one path has", That: `median("dcol") > 1.5 * median("tcp")`},
	})
	return suiteOf("golden", "made up, to be checked by hand", r)
}

// The numbers of the golden files, worked out by hand.
func TestRowsByHand(t *testing.T) {
	var table Table
	if err := json.Unmarshal([]byte(read(t, written(t, golden()), JSONFile)), &table); err != nil {
		t.Fatal(err)
	}
	rows := map[string]Row{}
	for _, r := range table.Rows {
		rows[r.Procedure] = r
	}
	dcol := rows["dcol"]
	for what, pair := range map[string][2]float64{
		"mean":           {*dcol.Mean, 18.55},
		"median":         {*dcol.Median, 18.6},
		"sd":             {*dcol.SD, 0.42032},
		"q1":             {*dcol.Q1, 18.375},
		"q3":             {*dcol.Q3, 18.775},
		"published mean": {*dcol.PublishedMean, 18.81},
		"ratio":          {*dcol.Ratio, 18.55 / 18.81},
		"direct":         {dcol.PublishedBytesPerPath["waypoint"], 12784884},
		"loss":           {*dcol.LossPct, 0},
		"delay":          {*dcol.DelayMS, 5},
	} {
		if math.Abs(pair[0]-pair[1]) > 1e-4*math.Abs(pair[1])+1e-12 {
			t.Errorf("%s is %v, want %v", what, pair[0], pair[1])
		}
	}
	if w := rows["dcol-wireguard"]; w.N != 0 || w.Discarded != 1 || w.Mean != nil || w.PublishedMean != nil {
		t.Errorf("a procedure without runs: %+v", w)
	}
	// 18.6 of 9.5 + 9.5 is wanted to be what headers leave of it, 1424 of 1448, less two
	// standard errors: of four runs that are 0.42032 of 18.55 apart, and of three, 0.1 of 19.
	first := table.Targets[0]
	spread := 2 * 97.8947 * math.Sqrt(0.42032*0.42032/4/(18.55*18.55)+0.1*0.1/3/(19*19))
	if first.Procedure != "dcol" || math.Abs(*first.Measured-97.8947) > 1e-3 || math.Abs(*first.Published-98.4817) > 1e-3 ||
		math.Abs(first.LimitPct-(100*1424.0/1448-spread)) > 1e-3 || !first.Met {
		t.Errorf("the first target: %+v", first)
	}
}

func TestTargetsDecide(t *testing.T) {
	value := func(v float64) *float64 { return &v }
	for _, test := range []struct {
		target Target
		met    bool
	}{
		{Target{AtLeast: true, LimitPct: 98, Measured: value(98)}, true},
		{Target{AtLeast: true, LimitPct: 98, Measured: value(97.99)}, false},
		{Target{LimitPct: 1.5, Measured: value(1.4)}, true},
		{Target{LimitPct: 1.5, Measured: value(1.66)}, false},
		{Target{LimitPct: 1.5}, false},
	} {
		if got := test.target.decided().Met; got != test.met {
			t.Errorf("%+v: met %t, want %t", test.target, got, test.met)
		}
	}
}

// The detour's part of the bytes stands beside the published one, where there is one.
func TestPartsBeside2017(t *testing.T) {
	cells := 0
	for _, n := range newBook(repetition(t, 3), loadTables(t)).networks {
		for _, r := range n.rows {
			if e := n.splitCell(r); e.Text != "" && r.Congestion == n.congestions[0] {
				cells++
				if len(e.Below) != 2 || !strings.HasSuffix(e.Below[1], " MB") {
					t.Errorf("%s %s %s: %+v", r.Network, r.Variant, r.Procedure, e)
				}
			}
		}
	}
	if cells != 12 {
		t.Errorf("%d cells, want the 12 of Table 2", cells)
	}
	for _, n := range newBook(beyond(), loadTables(t)).networks {
		for _, r := range n.rows {
			if e := n.splitCell(r); e.Text != "" {
				t.Errorf("where nothing was published: %+v", e)
			}
		}
	}
}

// A target is missed when the runs are farther below what headers leave than chance is.
func TestTargetAllowsForHeadersAndChance(t *testing.T) {
	for dcol, met := range map[float64]bool{18.7: true, 18.2: false} {
		s := suiteOf("made-up", "", part("core-limited", conditions()[:1], []string{"tcp", "tcp-detour", "dcol"}, []string{"cubic"}, 3,
			func(_ report.Variant, procedure, _ string) float64 {
				return map[string]float64{"tcp": 9.5, "tcp-detour": 9.5, "dcol": dcol}[procedure]
			}))
		for i, run := range s.Parts[0].Runs { // without the noise that part has
			s.Parts[0].Runs[i].GoodputMbps = map[string]float64{"tcp": 9.5, "tcp-detour": 9.5, "dcol": dcol}[run.Procedure]
		}
		s.Parts[0].Summarize([]string{"base"}, []string{"tcp", "tcp-detour", "dcol"}, []string{"cubic"}, nil)
		target := newBook(s, loadTables(t)).targets()[0]
		if target.SpreadPct != leastSpread || math.Abs(target.LimitPct-97.8425) > 1e-3 || target.Met != met {
			t.Errorf("%v: %+v", dcol, target)
		}
	}
}

// Those of 2017 ran one congestion control, which is beside our first.
func TestWorstPlaceBeside2017(t *testing.T) {
	for worst, published := range map[string]bool{"cubic": true, "bbr": false} {
		s := suiteOf("made-up", "", part("core-limited", conditions()[:1], []string{"tcp", "dcol"}, []string{"cubic", "bbr"}, 3,
			func(_ report.Variant, procedure, congestion string) float64 {
				if procedure == "dcol" && congestion == worst {
					return 12
				}
				return map[string]float64{"tcp": 9, "dcol": 18}[procedure]
			}))
		targets := newBook(s, loadTables(t)).worst()
		if len(targets) != 1 || !strings.HasSuffix(targets[0].Where, worst) || (targets[0].Published != nil) != published {
			t.Errorf("%s: %+v", worst, targets)
		}
	}
}
