package published

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func load(t *testing.T) *Tables {
	t.Helper()
	tables, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// Cells as the thesis prints them, of each column and of both networks.
func TestThroughput(t *testing.T) {
	tables := load(t)
	tests := []struct {
		setting   Setting
		procedure string
		want      Throughput
	}{
		{Setting{"core-limited", 0, 5}, "mptcp-1", Throughput{9.41, 0.01, 60, "lia"}},
		{Setting{"core-limited", 0, 5}, "dcol", Throughput{18.81, 0.02, 60, "lia"}},
		{Setting{"core-limited", 0, 100}, "dcol-openvpn", Throughput{15.41, 2.24, 60, "lia"}},
		{Setting{"core-limited", 0.5, 5}, "tcp", Throughput{9.54, 0.01, 20, "cubic"}},
		{Setting{"symmetric", 1, 5}, "tcp", Throughput{6.45, 0.68, 60, "cubic"}},
		{Setting{"symmetric", 0, 50}, "tcp-detour", Throughput{9.36, 0.01, 20, "cubic"}},
		{Setting{"symmetric", 5, 5}, "tcp-openvpn", Throughput{8.90, 0.02, 20, "cubic"}},
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
		{Setting{"core-limited", 0, 5}, "dcol-in-band"},
		{Setting{"core-limited", 1, 100}, "dcol"},
		{Setting{"two-paths", 0, 5}, "dcol"},
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
	got, ok := tables.Split(Setting{"symmetric", 1, 5}, "dcol-openvpn")
	if want := (Split{1885375, 8912407}); got != want || !ok {
		t.Errorf("symmetric lossy vpn: %v, want %v", got, want)
	}
}

func TestBadTables(t *testing.T) {
	empty := func() *Tables { return &Tables{throughput: map[key]Throughput{}, splits: map[key]Split{}} }
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
