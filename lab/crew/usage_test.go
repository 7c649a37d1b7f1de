package crew

import (
	"testing"
	"time"
)

func TestParseMachineTime(t *testing.T) {
	const tick = 10 * time.Millisecond
	before, err := parseMachineTime("cpu  100 5 50 800 20 3 2 0 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
	if want := (MachineTime{Busy: 160 * tick, Idle: 820 * tick}); err != nil || before != want {
		t.Errorf("%+v, %v; want %+v", before, err, want)
	}
	after := MachineTime{Busy: 180 * tick, Idle: 890 * tick, Stolen: 10 * tick}
	if got := after.ShareSince(before); got != 0.3 {
		t.Errorf("busy %v of the time, want 0.3", got)
	}
	if got := before.ShareSince(before); got != 0 {
		t.Errorf("busy %v of no time", got)
	}
	got, err := parseMachineTime("cpu  100 1 50 9999 9999 2 47 9999 10 0\ncpu0 1\n")
	if want := 2 * time.Second; err != nil || got.Busy != want {
		t.Errorf("busy %v, %v; want %v", got.Busy, err, want)
	}
	for _, bad := range []string{"", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8", "cpu 1 2 3 4 x 6 7 8", "cpu 1 2 3 4 5 6 x 8"} {
		if _, err := parseMachineTime(bad); err == nil {
			t.Errorf("%q was taken for processor times", bad)
		}
	}
}

func FuzzParseMachineTime(f *testing.F) {
	f.Add("cpu  1 2 3 4 5 6 7 8")
	f.Add("71 (dcol) S 1 71")
	f.Fuzz(func(_ *testing.T, text string) { _, _ = parseMachineTime(text) })
}

func TestField(t *testing.T) {
	const text = "Name:\tVmRSS:\nVmHWM:\t   2048 kB\nVmRSS:\t   1024 kB\n"
	for key, want := range map[string]int64{"VmHWM:": 2048, "VmRSS:": 1024, "Threads:": 0, "Name:": 0} {
		if got := Field(text, key); got != want {
			t.Errorf("%s %d, want %d", key, got, want)
		}
	}
}
