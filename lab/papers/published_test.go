package papers

import (
	"math"
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

func throughput(mean, sd float64, trials int, congestion string) report.Throughput {
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
		{setting("core-limited", 0, 5), "mptcp-1", throughput(9.41, 0.01, 60, "lia")},
		{setting("core-limited", 0, 5), "dcol", throughput(18.81, 0.02, 60, "lia")},
		{setting("core-limited", 0, 100), "dcol-openvpn", throughput(15.41, 2.24, 60, "lia")},
		{setting("core-limited", 0.5, 5), "tcp", throughput(9.54, 0.01, 20, "cubic")},
		{setting("symmetric", 1, 5), "tcp", throughput(6.45, 0.68, 60, "cubic")},
		{setting("symmetric", 0, 50), "tcp-detour", throughput(9.36, 0.01, 20, "cubic")},
		{setting("symmetric", 5, 5), "tcp-openvpn", throughput(8.90, 0.02, 20, "cubic")},
	}
	for _, test := range tests {
		got, ok := tables.Throughput(test.setting, test.procedure)
		if diff := cmp.Diff(test.want, got); diff != "" || !ok {
			t.Errorf("%v %s: found %t (-want +got):\n%s", test.setting, test.procedure, ok, diff)
		}
	}
	if len(tables.throughput) != 16*6 {
		t.Errorf("%d cells, want those of 16 networks and 6 procedures", len(tables.throughput))
	}
}

func TestNotMeasuredIn2017(t *testing.T) {
	tables := load(t)
	for _, missing := range []key{
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
	if len(tables.splits) != 12 {
		t.Errorf("%d rows, want 12", len(tables.splits))
	}
	err := each(table2, func(r record) error {
		detour := r.number("bytes_detour")
		share := 100 * detour / (detour + r.number("bytes_default"))
		if want := r.number("pct_detour"); math.Abs(share-want) > 0.006 {
			t.Errorf("%s: %.3f %% over the detour, printed %.2f %%", r.text("configuration"), share, want)
		}
		return *r.err
	})
	if err != nil {
		t.Fatal(err)
	}
	got, ok := tables.Split(setting("symmetric", 1, 5), "dcol-openvpn")
	if want := (report.Split{DirectBytes: 1885375, DetourBytes: 8912407}); got != want || !ok {
		t.Errorf("symmetric lossy vpn: %v, want %v", got, want)
	}
}

func TestBadTables(t *testing.T) {
	empty := func() *Tables {
		return &Tables{throughput: map[key]report.Throughput{}, splits: map[key]report.Split{}}
	}
	for name, table := range map[string]string{
		"no number":         "configuration,bytes_default,bytes_detour\ncore-limited nat,many,2\n",
		"no column":         "configuration,bytes_default\ncore-limited nat,1\n",
		"unknown condition": "configuration,bytes_default,bytes_detour\ncore-limited windy nat,1,2\n",
		"unknown procedure": "configuration,bytes_default,bytes_detour\ncore-limited gre,1,2\n",
		"no procedure":      "configuration,bytes_default,bytes_detour\ncore-limited,1,2\n",
	} {
		if err := each([]byte(table), empty().addSplit); err == nil {
			t.Errorf("%s: no error", name)
		}
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
