package papers

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/lab/report"
)

func load(t *testing.T) *Tables {
	t.Helper()
	tables, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

func setting(network string, lossPct, delayMS float64) report.Setting {
	return report.Setting{Network: network, LossPct: lossPct, DelayMS: delayMS}
}

func printed(mean, sd float64, trials int, congestion string) report.Throughput {
	return report.Throughput{MeanMbps: mean, SDMbps: sd, Trials: trials, Congestion: congestion}
}

// Cells as the thesis prints them, of each column and of both networks.
func TestThroughput(t *testing.T) {
	tables := load(t)
	tests := []struct {
		setting   report.Setting
		procedure string
		want      report.Throughput
	}{
		{setting("core-limited", 0, 5), "mptcp-1", printed(9.41, 0.01, 60, "lia")},
		{setting("core-limited", 0, 5), "dcol", printed(18.81, 0.02, 60, "lia")},
		{setting("core-limited", 0, 100), "dcol-openvpn", printed(15.41, 2.24, 60, "lia")},
		{setting("core-limited", 0.5, 5), "tcp", printed(9.54, 0.01, 20, "cubic")},
		{setting("symmetric", 1, 5), "tcp", printed(6.45, 0.68, 60, "cubic")},
		{setting("symmetric", 0, 50), "tcp-detour", printed(9.36, 0.01, 20, "cubic")},
		{setting("symmetric", 5, 5), "tcp-openvpn", printed(8.90, 0.02, 20, "cubic")},
	}
	for _, test := range tests {
		got, ok := tables.Throughput(test.setting, test.procedure)
		if diff := cmp.Diff(test.want, got); diff != "" || !ok {
			t.Errorf("%v %s: found %t (-want +got):\n%s", test.setting, test.procedure, ok, diff)
		}
	}
	if len(tables.Throughputs) != 16*6 {
		t.Errorf("%d cells, want those of 16 networks and 6 procedures", len(tables.Throughputs))
	}
}

func TestNotMeasuredIn2017(t *testing.T) {
	tables := load(t)
	for _, missing := range []struct {
		report.Setting
		procedure string
	}{
		{setting("core-limited", 0, 5), "dcol-in-band"},
		{setting("core-limited", 1, 100), "dcol"},
		{setting("two-paths", 0, 5), "dcol"},
	} {
		if got, ok := tables.Throughput(missing.Setting, missing.procedure); ok {
			t.Errorf("%v has a throughput: %v", missing, got)
		}
		if got, ok := tables.Split(missing.Setting, missing.procedure); ok {
			t.Errorf("%v has a split: %v", missing, got)
		}
	}
}

// The bytes of Table 2 give the percentages that stand beside them.
func TestSplitAgreesWithItsPercentages(t *testing.T) {
	tables := load(t)
	if len(tables.Splits) != 12 {
		t.Errorf("%d rows, want 12", len(tables.Splits))
	}
	for _, row := range tables.Splits {
		share := 100 * float64(row.DetourBytes) / float64(row.DetourBytes+row.DirectBytes)
		if math.Abs(share-row.DetourPct) > 0.006 {
			t.Errorf("%+v: %.3f %% over the detour, printed %.2f %%", row.Setting, share, row.DetourPct)
		}
	}
	got, ok := tables.Split(setting("symmetric", 1, 5), "dcol-openvpn")
	if want := (report.Split{DirectBytes: 1885375, DetourBytes: 8912407}); got != want || !ok {
		t.Errorf("symmetric lossy vpn: %v, want %v", got, want)
	}
}

func TestBadTables(t *testing.T) {
	for name, table := range map[string]string{
		"no number":   `split = [{ network = "core-limited", direct_bytes = "many" }]`,
		"unknown key": `split = [{ network = "core-limited", windy = 1 }]`,
		"no table":    `split = [`,
	} {
		if _, err := parse([]byte(table)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Reasons are about cells that were published, and no two are the same.
func TestWhy(t *testing.T) {
	tables := load(t)
	for _, d := range tables.Differences {
		matched := false
		for _, cell := range tables.Throughputs {
			matched = matched || tables.Why(cell.Setting, cell.Procedure, d.More) == d.Why
		}
		if !matched || d.Why == "" {
			t.Errorf("%+v is the reason of no cell", d)
		}
	}
	if got := tables.Why(setting("core-limited", 0.5, 5), "mptcp-1", false); !strings.Contains(got, "whole number") {
		t.Errorf("of 0.5 %% loss: %q", got)
	}
	if got := tables.Why(setting("core-limited", 0.5, 5), "mptcp-1", true); strings.Contains(got, "whole number") {
		t.Errorf("a repetition that carries more: %q", got)
	}
}

// Every target is about cells that were published, or about kinds of detours that are
// newer.
func TestGoals(t *testing.T) {
	tables := load(t)
	if len(tables.Goals()) != 8 {
		t.Errorf("%d goals, want 8", len(tables.Goals()))
	}
	for _, g := range tables.Goals() {
		if g.What == "" || g.Procedure == "" || len(g.Of) == 0 {
			t.Errorf("%+v is not complete", g)
		}
		if _, ok := tables.Throughput(g.Setting, g.Of[0]); !ok {
			t.Errorf("nothing was published of %s in %+v", g.Of[0], g.Setting)
		}
	}
}
